//! Compressed bodies: decoder output, decoder memory, and the observer's records.

// The whole module is tests.
#![allow(clippy::unwrap_used)]

mod decoding;
pub(crate) mod encode;
mod hostile;
mod memory;
mod observed;
mod relayed;

use tokometer_wire::budget::Account;
use tokometer_wire::coding::{Codings, Decoder, Limits, Unreadable};
use tokometer_wire::websocket::Sender;

/// A decoder for these codings (a `Content-Encoding` value).
fn decoder(codings: &str, limits: Limits) -> Decoder {
    Decoder::new(Codings::of([codings.as_bytes()]).unwrap(), limits, Account::unlimited().credit(Sender::Server))
}

/// Decodes these pieces; returns the decoded bytes, and the reason if decoding stopped early.
fn decode<'a>(codings: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Unreadable>) {
    let mut decoder = decoder(codings, Limits::default());
    let mut given = Vec::new();
    for piece in pieces {
        let mut each = |slice: &[u8]| {
            assert!(!slice.is_empty(), "slices are never empty");
            given.extend_from_slice(slice);
        };
        if let Err(why) = decoder.feed(piece, &mut each) {
            return (given, Some(why));
        }
    }
    (given, None)
}

/// Decodes these pieces, and asserts that they are valid.
fn decoded<'a>(codings: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (given, why) = decode(codings, pieces);
    assert_eq!(why, None, "{codings}");
    given
}
