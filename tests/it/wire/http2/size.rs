//! What a connection costs to watch.

use tokometer_wire::Http2;

#[test]
fn a_connection_with_nothing_pending_fits_512_bytes() {
    assert!(size_of::<Http2>() <= 512, "{} bytes", size_of::<Http2>());
}
