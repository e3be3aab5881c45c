//! The expected results of the scanner.

pub mod lenient;
pub mod strict;
pub mod tree;
