//! What a connection costs to watch.

use tokometer_wire::Http1;

#[test]
fn a_connection_with_nothing_pending_fits_256_bytes() {
    assert!(size_of::<Http1>() <= 256, "{} bytes", size_of::<Http1>());
}
