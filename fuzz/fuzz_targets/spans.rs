//! The parser of engine spans: it never panics, and reports the same spans whether or not their attributes are read. It
//! returns only attributes within the span's bytes, and keeps a limited number of spans.
//!
//! The input is an `ExportTraceServiceRequest`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer_engine::engine_spans::interpret::{ID_BYTES, Interpreter};
use tokometer_engine::engine_spans::spans;
use tokometer_fuzz::work::Work;

fuzz_target!(|message: &[u8]| {
    let _work = Work::on(message);
    let counted = spans::read(message, |_| {});
    let mut interpreter = Interpreter::new(4);
    let mut seen = 0;
    let read = spans::read(message, |span| {
        seen += 1;
        assert!(span.trace_id != 0 && span.span_id != 0 && span.parent != Some(0));
        let mut attributes = 0;
        span.attributes(|_, _| attributes += 1);
        assert!(attributes * 2 <= message.len());
        if let Some(request) = interpreter.take(&span) {
            assert!(request.id.as_ref().is_none_or(|id| !id.is_empty() && id.len() <= ID_BYTES));
            assert_eq!(request.reported.trace_id, span.trace_id);
        }
    });
    assert_eq!(counted, read);
    assert!(read.is_err() || read.is_ok_and(|count| seen <= count));
});
