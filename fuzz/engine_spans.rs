//! The receiver of engine spans without its sockets.

#![allow(dead_code, reason = "the rest of the module uses it")]

#[path = "../crates/engine/src/engine_spans/engine.rs"]
mod engine;
#[path = "../crates/engine/src/engine_spans/protobuf.rs"]
mod protobuf;
#[path = "../crates/engine/src/engine_spans/spans.rs"]
mod spans;
#[path = "../crates/engine/src/engine_spans/stages.rs"]
mod stages;

use self::engine::Meaning;
use self::stages::Stages;

/// Checks the invariants for arbitrary bytes from an engine.
pub fn check(message: &[u8]) {
    let counted = spans::read(message, |_| {});
    let mut stages = Stages::new(4);
    let mut seen = 0;
    let read = spans::read(message, |span| {
        seen += 1;
        assert!(span.trace_id != 0 && span.span_id != 0 && span.parent != Some(0));
        assert!(span.attributes().count() * 2 <= message.len());
        let place = (span.trace_id, span.span_id);
        match engine::meaning(&span) {
            Meaning::Request(request) => {
                assert!(request.id.as_ref().is_none_or(|id| !id.is_empty() && id.len() <= 127));
                assert_eq!((request.told.trace_id, request.told.span_id), place);
                if request.staged {
                    assert!(stages.request(request).is_none_or(|request| request.told.queue.is_some()));
                }
            }
            Meaning::Queued(time) => stages.queued((span.trace_id, span.parent.unwrap_or(1)), time),
            Meaning::Other => {
                let request = stages.ended(place, span.parent);
                assert!(request.is_none_or(|request| request.told.queue.is_some()));
            }
        }
    });
    assert_eq!(counted, read);
    assert!(read.is_err() || read.is_ok_and(|count| seen <= count));
}
