//! What the admin server shows of the program, and its control over it.

pub(super) mod control;
pub(super) mod requests;
pub(super) mod snapshot;
