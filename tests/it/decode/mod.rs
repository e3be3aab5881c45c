//! Tests of `decode` with recordings of real servers, a naive model, and random bytes.

// The whole module is tests.
#![allow(clippy::unwrap_used)]

mod cost;
mod counts;
mod grpc;
mod random;
mod random_named;
mod random_native;
pub(crate) mod recording;
mod recordings;

use tokometer_decode::{Framing, ResponseDecoder, Route, StreamEvent};
use tokometer_models::decode as model;

/// Decodes a body fed in these pieces; returns its events and the decoder.
fn decode<'a>(
    route: Route,
    framing: Framing,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<StreamEvent>, ResponseDecoder) {
    let mut events = Vec::new();
    let mut decoder = ResponseDecoder::new(route, framing);
    for piece in pieces {
        decoder.feed(piece, &mut |event| events.push(*event));
    }
    decoder.finish(&mut |event| events.push(*event));
    (events, decoder)
}

/// `body` split at these places (modulo its length).
fn cut<'a>(body: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (body.len() + 1)).collect();
    places.sort_unstable();
    let mut pieces = Vec::new();
    let mut start = 0;
    for place in places {
        pieces.push(&body[start..place]);
        start = place;
    }
    pieces.push(&body[start..]);
    pieces
}
