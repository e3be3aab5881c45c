//! Unit tests: framing, bodies, predictions, requests. `tests/it/decode` covers the recordings.

mod bodies;
mod engines;
mod forms;
mod framing;
mod limits;
mod named;
mod predictions;
mod requests;
mod texts;

use crate::{Framing, ResponseDecoder, Route, StreamEvent};

/// Decodes a body, and checks that feeding it byte by byte yields the same events.
fn decode(route: Route, framing: Framing, body: &[u8]) -> (Vec<StreamEvent>, ResponseDecoder) {
    let mut events = Vec::new();
    let mut decoder = ResponseDecoder::new(route, framing);
    decoder.feed(body, &mut |event| events.push(*event));
    decoder.finish(&mut |event| events.push(*event));

    let mut again = Vec::new();
    let mut slow = ResponseDecoder::new(route, framing);
    for byte in body.chunks(1) {
        slow.feed(byte, &mut |event| again.push(*event));
    }
    slow.finish(&mut |event| again.push(*event));
    assert_eq!(events, again);
    assert_eq!(decoder.error_type(), slow.error_type());
    assert_eq!(decoder.engine(), slow.engine());
    (events, decoder)
}

/// The only event of a stream with this JSON.
fn chat_event(json: &str) -> StreamEvent {
    let (events, _) = decode(Route::Chat, Framing::Sse, format!("data: {json}\n\n").as_bytes());
    assert_eq!(events.len(), 1, "{json}");
    events[0]
}
