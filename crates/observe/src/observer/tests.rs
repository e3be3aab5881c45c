//! Memory used by an observer.

use std::mem::size_of;

use crate::observer::connection::ConnectionObserver;
use crate::observer::request::OpenRequest;
use tokometer_decode::{RequestDecoder, ResponseDecoder};
use tokometer_wire::{Http1, Http2};

/// Documented limit: the observer of an open stream uses less than this, including request and response decoder.
const OPEN_STREAM_BYTES: usize = 2048;

#[test]
fn observer_of_open_stream_uses_less_than_two_kib() {
    // A waiting request is one entry of the parser's queue, which initially takes eight bytes.
    let request = size_of::<OpenRequest>() + 8;
    let open = size_of::<ConnectionObserver>() + request + size_of::<ResponseDecoder>();
    println!(
        "connection {} (HTTP parser {}), request record {}, request decoder {}, response decoder {}: total {open}",
        size_of::<ConnectionObserver>(),
        size_of::<Http1>(),
        size_of::<OpenRequest>(),
        size_of::<RequestDecoder>(),
        size_of::<ResponseDecoder>()
    );
    assert!(open < OPEN_STREAM_BYTES, "{open} bytes");
}

#[test]
fn observer_memory_of_http2_streams_stays_within_limits() {
    // Request record with its queue entry, an entry of the parser, and the response decoder. A connection also holds
    // two header compression tables: 4 KiB each by default, at most 64 KiB.
    let stream = size_of::<OpenRequest>() + size_of::<Box<OpenRequest>>() + 8 + size_of::<ResponseDecoder>();
    let connection = size_of::<ConnectionObserver>() + size_of::<Http2>();
    println!("stream {stream}, connection {connection} (HTTP parser {})", size_of::<Http2>());
    assert!(stream < OPEN_STREAM_BYTES, "{stream} bytes");
    assert!(connection < 528, "{connection} bytes");
}
