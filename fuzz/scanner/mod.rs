//! What the scanner must tell of a text.

pub(crate) mod lenient;
pub(crate) mod strict;
pub(crate) mod tree;
