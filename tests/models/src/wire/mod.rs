//! Traffic of connections, the parser's calls for it, and a naive parser.

pub mod http2;
pub mod model;
pub mod traffic;
