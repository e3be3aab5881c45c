//! What an observer costs in memory.

use std::mem::size_of;

use crate::decode::RequestDecoder;
use crate::decode::ResponseDecoder;
use crate::observe::connection::ConnectionObserver;
use crate::observe::exchange::Exchange;
use crate::wire::Http1;

/// The promise: an open stream's observer holds less than this, request and response decoder included.
const OPEN_STREAM_BYTES: usize = 2048;

#[test]
fn an_open_stream_is_observed_in_less_than_two_kib() {
    // The queue of exchanges starts at four places, and a waiting request is one entry of the parser's queue (which
    // starts at eight bytes).
    let queue = 4 * size_of::<Box<Exchange>>() + size_of::<Exchange>() + 8;
    let decoders = size_of::<ResponseDecoder>();
    let open = size_of::<ConnectionObserver>() + size_of::<Http1>() + queue + decoders;
    println!(
        "connection {} http {} exchange {} request {} response {} = {open}",
        size_of::<ConnectionObserver>(),
        size_of::<Http1>(),
        size_of::<Exchange>(),
        size_of::<RequestDecoder>(),
        size_of::<ResponseDecoder>()
    );
    assert!(open < OPEN_STREAM_BYTES, "{open} bytes");
}
