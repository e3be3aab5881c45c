//! The metric catalogue, and how the owner of a value declares and reports it.
//!
//! [`table`] has one entry per metric: the source of the exporters, `docs/reference/metrics.md`, the dashboards and the
//! rules. The owner of a value implements [`Collect`], in any crate. [`closed_enum!`] names the values of an attribute.

mod attributes;
mod collect;
mod counter;
mod enums;
pub mod table;

pub use attributes::{Attributes, Listener, Servers, Value};
pub use collect::{Collect, Number, Points, Values, values_of};
pub use counter::Counter;
