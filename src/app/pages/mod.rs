//! Contents of the admin pages, and the health and drain state that they report.

pub(super) mod control;
pub(super) mod requests;
pub(super) mod snapshot;
