//! Settings of `top`.

use std::time::Duration;

use crate::client::Target;

/// What to watch and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The admin server.
    pub admin: Target,
    /// Print one snapshot and exit.
    pub once: bool,
    /// Interval between two snapshots.
    pub interval: Duration,
    /// Use colours.
    pub colour: bool,
    /// The terminal cannot move its cursor: print lines.
    pub dumb: bool,
    /// Draw with ASCII only, for terminals without UTF-8.
    pub ascii: bool,
}
