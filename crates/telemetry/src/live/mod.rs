//! Live state: requests in flight, engine health, recently finished requests with their token timelines, and totals of
//! the last minute. `snapshot` is the JSON model of the live page and `tokometer top`.
//!
//! The observers feed [`InFlight`] as a [`Sink`](tokometer_observe::measure::Sink) that watches every request. The data path's
//! threads only store to atomics and to their own memory; readers do all arithmetic. Times are passed in by the caller.

pub mod snapshot;

mod buckets;
mod free;
mod history;
mod in_flight;
mod model_name;
mod pace;
mod pairs;
mod recent;
mod seat;
mod settings;
mod shelf;
mod slot;
mod slow;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod totals;
mod view;
mod witness;

pub use in_flight::InFlight;
pub use recent::{Finished, Kept, Recent};
pub use settings::{Bounds, Settings};
pub use stats::{Phases, Stats};
pub use table::Open;
pub use view::View;
pub use witness::{Rule, State, Verdict};
