//! The receiver's decoder of engine spans: it never panics, returns the same count with and without inspecting the
//! spans, reads each span's attributes within its bytes, and stays within its limits (`queue.rs`).
//!
//! The input is an unmodified `ExportTraceServiceRequest`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer_fuzz::work::Work;

fuzz_target!(|message: &[u8]| {
    let _work = Work::on(message);
    tokometer_fuzz::engine_spans::check(message);
});
