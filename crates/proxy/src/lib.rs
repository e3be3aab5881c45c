//! The proxy: listeners, TLS, and a byte relay on pingora-core.

pub mod listen;
pub mod relay;
