//! The receiver's decoder of engine spans: it never panics, tells the same with and without looking at the spans, reads
//! each span's attributes within its bytes, and keeps what it understands within its caps (`queue.rs`).
//!
//! The input is an `ExportTraceServiceRequest` as it came.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer_fuzz::work::Work;

fuzz_target!(|message: &[u8]| {
    let _work = Work::on(message);
    tokometer_fuzz::engine_spans::check(message);
});
