//! What a person may set about `top`.

use std::time::Duration;

use crate::client::Target;

/// What is watched, and how it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The admin server.
    pub admin: Target,
    /// Show one snapshot and end.
    pub once: bool,
    /// Time between two snapshots.
    pub interval: Duration,
    /// Use colours.
    pub colour: bool,
    /// The terminal cannot move its cursor: print lines.
    pub dumb: bool,
    /// Draw with ASCII alone, for terminals that do not speak UTF-8.
    pub ascii: bool,
}
