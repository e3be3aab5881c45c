//! Compressed bodies: what their decoders give, what they hold, and what the observer makes of them.

// The whole module is tests.
#![allow(clippy::unwrap_used)]

mod decoding;
pub(crate) mod encode;
mod hostile;
mod memory;
mod observed;
mod relayed;

use tokometer_wire::budget::Account;
use tokometer_wire::coding::Codings;
use tokometer_wire::coding::Decoder;
use tokometer_wire::coding::Limits;
use tokometer_wire::coding::Unreadable;

/// A decoder of these codings (a value of `Content-Encoding`).
fn decoder(codings: &str, limits: Limits) -> Decoder {
    Decoder::new(Codings::of([codings.as_bytes()]).unwrap(), limits, Account::unlimited())
}

/// What a body stands for that comes in these pieces, and why it could not be read on.
fn decode<'a>(codings: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Unreadable>) {
    let mut decoder = decoder(codings, Limits::default());
    let mut given = Vec::new();
    for piece in pieces {
        let mut each = |slice: &[u8]| {
            assert!(!slice.is_empty(), "an empty slice says nothing");
            given.extend_from_slice(slice);
        };
        if let Err(why) = decoder.feed(piece, &mut each) {
            return (given, Some(why));
        }
    }
    (given, None)
}

/// The same, of a body that can be read.
fn decoded<'a>(codings: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (given, why) = decode(codings, pieces);
    assert_eq!(why, None, "{codings}");
    given
}
