//! Memory size of a parser.

use tokometer_wire::Http2;

#[test]
fn http2_parser_without_pending_bytes_fits_512_bytes() {
    assert!(size_of::<Http2>() <= 512, "{} bytes", size_of::<Http2>());
}
