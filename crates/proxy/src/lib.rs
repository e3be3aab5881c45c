//! The proxy: listeners, TLS, a byte relay on pingora-core, and rewrite mode on pingora-proxy.

pub mod listen;
pub mod relay;
pub mod rewrite;
