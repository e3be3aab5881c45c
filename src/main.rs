//! The `tokometer` command.

fn main() {}
