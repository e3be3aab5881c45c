//! What an observer costs in memory.

use std::mem::size_of;

use crate::observer::connection::ConnectionObserver;
use crate::observer::exchange::Exchange;
use tokometer_decode::RequestDecoder;
use tokometer_decode::ResponseDecoder;
use tokometer_wire::Http1;
use tokometer_wire::Http2;

/// The promise: an open stream's observer holds less than this, request and response decoder included.
const OPEN_STREAM_BYTES: usize = 2048;

#[test]
fn an_open_stream_is_observed_in_less_than_two_kib() {
    // A waiting request is one entry of the parser's queue, which starts at eight bytes.
    let exchange = size_of::<Exchange>() + 8;
    let open = size_of::<ConnectionObserver>() + exchange + size_of::<ResponseDecoder>();
    println!(
        "connection {} (of it http {}) exchange {} request {} response {} = {open}",
        size_of::<ConnectionObserver>(),
        size_of::<Http1>(),
        size_of::<Exchange>(),
        size_of::<RequestDecoder>(),
        size_of::<ResponseDecoder>()
    );
    assert!(open < OPEN_STREAM_BYTES, "{open} bytes");
}

#[test]
fn a_stream_of_http_2_costs_no_more_than_a_connection_of_http_1_and_its_connection_half_a_kib() {
    // Its exchange with its place in the queue, an entry of the parser's, and the decoder of its answer. A connection has
    // beside this what its two header compression tables hold: 4 KiB each if no side asks for more, 64 KiB at most.
    let stream = size_of::<Exchange>() + size_of::<Box<Exchange>>() + 8 + size_of::<ResponseDecoder>();
    let connection = size_of::<ConnectionObserver>() + size_of::<Http2>();
    println!("stream {stream}, connection {connection} (of it the parser {})", size_of::<Http2>());
    assert!(stream < OPEN_STREAM_BYTES, "{stream} bytes");
    assert!(connection < 512, "{connection} bytes");
}
