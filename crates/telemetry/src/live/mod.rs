//! What is going on at this moment, and what has just been: the exchanges in flight, whether the engine behind them still
//! works, the latest exchanges that ended, with the time lines of their tokens, and the sums of the last minute. `snapshot` is the
//! shape in which the live page and `tokometer top` are told of it.
//!
//! [`InFlight`] is fed by the observers, as a [`Sink`](tokometer_observe::measure::Sink) that watches every exchange. The data path's
//! threads only store to atomics and to memory of their own; all arithmetic is done by whoever asks. Times come in.

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
