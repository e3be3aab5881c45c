//! Live state: requests in flight, engine health, recently finished requests with their token timelines, and
//! last-minute totals. `snapshot` is the JSON model of the live page and `tokometer top`.
//!
//! [`InFlight`] is a [`Sink`](tokometer_observe::measure::Sink) that watches every request. The data path's threads
//! write only to atomics and to memory that no other thread uses, and never wait for a lock. Readers compute all
//! derived values. Callers pass in all times.

pub mod snapshot;

mod histogram;
mod in_flight;
mod recent;
mod requests;
#[cfg(test)]
mod tests;
mod token_rates;
mod totals;
mod view;
mod watch;
mod wedge;

pub use in_flight::{InFlight, Phases, Settings, SignsSource, Stats};
pub use recent::{Finished, Kept};
pub use requests::{Doing, Open};
pub use view::View;
pub use wedge::{Bounds, Reach, Rule, Signs, State, Verdict};
