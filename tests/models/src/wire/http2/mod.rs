//! HTTP/2 frames, and the parser's calls for them.

pub mod frames;
pub mod trace;
