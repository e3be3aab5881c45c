//! What the admin server shows of the program, and how it controls the program.

pub(super) mod control;
pub(super) mod requests;
pub(super) mod snapshot;
