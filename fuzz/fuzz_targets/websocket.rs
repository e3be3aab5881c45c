//! WebSocket frames: any frames cause the same calls at any split.
//!
//! The first input byte contains the sender (bit 0) and the negotiated compression (bits 1 and 2: compression, and
//! whether the window is reset per message), the second the split; the rest is the frames.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use tokometer_wire::{Fault, Visitor};
use tokometer_wire::budget::Account;
use tokometer_wire::websocket::{Deflate, Extensions, Event, Sender, WebSocket};
use tokometer_fuzz::work::Work;

/// The calls, each as a line, with adjacent data joined.
#[derive(Default)]
struct Trace(Vec<(String, Vec<u8>)>);

impl Visitor for Trace {
    fn websocket(&mut self, _: u64, sender: Sender, seen: &Event<'_>, _: Instant) {
        match (seen, self.0.last_mut()) {
            (Event::Data(bytes), Some((word, data))) if word.is_empty() => data.extend_from_slice(bytes),
            (Event::Data(bytes), _) => self.0.push((String::new(), bytes.to_vec())),
            (seen, _) => self.0.push((format!("{sender:?} {seen:?}"), Vec::new())),
        }
    }
}

type Reported = (Vec<(String, Vec<u8>)>, Option<Fault>);

fn read<'a>(of_client: bool, extensions: Extensions, pieces: impl Iterator<Item = &'a [u8]>) -> Reported {
    let account = Account::unlimited();
    let mut websocket = WebSocket::new(0, extensions, &account);
    let mut trace = Trace::default();
    let at = Instant::now();
    let fault = pieces.into_iter().find_map(|piece| {
        let result = if of_client {
            websocket.request(piece, at, &mut trace)
        } else {
            websocket.response(piece, at, &mut trace)
        };
        result.err()
    });
    drop(websocket);
    assert_eq!(account.held(), 0);
    (trace.0, fault)
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let [first, stride, bytes @ ..] = input else { return };
    let deflate = Deflate { server_no_context_takeover: first & 4 != 0, client_no_context_takeover: first & 4 != 0 };
    let extensions = if first & 2 != 0 { Extensions::Deflate(deflate) } else { Extensions::None };
    let of_client = first & 1 != 0;
    let whole = read(of_client, extensions, std::iter::once(bytes));
    assert!(read(of_client, extensions, bytes.chunks(1)) == whole, "byte by byte");
    assert!(read(of_client, extensions, bytes.chunks(usize::from(*stride).max(1))) == whole, "split by {stride}");
});
