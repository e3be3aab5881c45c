//! WebSocket: frames compared with a naive model, compression, and the observer's records of sessions.

// The whole module is tests.
#![allow(clippy::unwrap_used)]

mod frames;
pub(crate) mod model;
pub(crate) mod observed;
mod relayed;

pub(crate) use observed::{HANDSHAKE, SWITCHED, of_client, of_server};

use std::time::Instant;

use tokometer_wire::budget::Account;
use tokometer_wire::coding::Unreadable;
use tokometer_wire::websocket::{Event, Extensions, Sender, WebSocket};
use tokometer_wire::{Fault, Visitor};

/// Parsed frames, with adjacent data joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    Data(Vec<u8>),
    End { text: bool },
    Close(Option<u16>),
    Unreadable(Unreadable),
}

#[derive(Default)]
struct Trace(Vec<Reported>);

impl Visitor for Trace {
    fn websocket(&mut self, number: u64, _: Sender, seen: &Event<'_>, _: Instant) {
        assert_eq!(number, 7);
        let reported = match seen {
            Event::Data(bytes) => {
                assert!(!bytes.is_empty(), "slices are never empty");
                if let Some(Reported::Data(data)) = self.0.last_mut() {
                    data.extend_from_slice(bytes);
                    return;
                }
                Reported::Data(bytes.to_vec())
            }
            Event::MessageEnd { text } => Reported::End { text: *text },
            Event::Close(code) => Reported::Close(*code),
            Event::Unreadable(why) => Reported::Unreadable(*why),
        };
        self.0.push(reported);
    }
}

/// The parsed frames of one sender, received in these pieces.
fn read<'a>(
    sender: Sender,
    extensions: &str,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Reported>, Result<(), Fault>) {
    read_by(sender, extensions, &Account::unlimited(), pieces)
}

/// Like `read`, with the memory account of a connection.
fn read_by<'a>(
    sender: Sender,
    extensions: &str,
    account: &Account,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Reported>, Result<(), Fault>) {
    let extensions = Extensions::of([extensions.as_bytes()]);
    let mut websocket = WebSocket::new(7, extensions, account);
    let mut trace = Trace::default();
    let at = Instant::now();
    for piece in pieces {
        let result = match sender {
            Sender::Client => websocket.request(piece, at, &mut trace),
            Sender::Server => websocket.response(piece, at, &mut trace),
        };
        if result.is_err() {
            return (trace.0, result);
        }
    }
    (trace.0, Ok(()))
}

/// Parses the bytes whole, byte by byte, and at every split in two; all results must be equal.
fn read_every_split(sender: Sender, extensions: &str, bytes: &[u8]) -> Vec<Reported> {
    let (whole, result) = read(sender, extensions, [bytes]);
    assert_eq!(result, Ok(()));
    assert_eq!(read(sender, extensions, bytes.chunks(1)).0, whole, "byte by byte");
    for at in 0..bytes.len() {
        let (before, after) = bytes.split_at(at);
        assert_eq!(read(sender, extensions, [before, after]).0, whole, "cut at {at}");
    }
    whole
}
