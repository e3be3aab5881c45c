//! Memory size of a parser.

use tokometer_wire::Http1;

#[test]
fn http1_parser_without_pending_bytes_fits_256_bytes() {
    assert!(size_of::<Http1>() <= 256, "{} bytes", size_of::<Http1>());
}
