//! The plainest pair, in front of any server.

use tokometer::listen::Address;
use tokometer::listen::Pair;

/// A plain pair on a free TCP port.
pub(crate) fn pair(upstream: impl Into<Address>) -> Pair {
    Pair {
        name: "test".to_owned(),
        listen: Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 },
        upstream: upstream.into(),
        tls: None,
        upstream_tls: None,
    }
}
