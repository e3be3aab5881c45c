//! Naive reimplementations of the parsers and decoders, and scripted traffic, for tests and fuzz targets.

#![allow(clippy::unwrap_used, missing_docs, missing_debug_implementations, reason = "only tests use this crate")]

pub mod decode;
pub mod wire;
