//! The expected results of the scanner.

pub(crate) mod lenient;
pub(crate) mod strict;
pub(crate) mod tree;
