//! The attributes of series: label sets and their limits.

use tokometer_metrics::Value;
use tokometer_metrics::table::Key;

pub(crate) mod classes;
pub(crate) mod failure;
pub(crate) mod names;
pub(crate) mod sets;

/// At most three attributes in addition to those of a label set.
pub(crate) type Extra = [Option<(Key, Value)>; 3];

/// No additional attributes.
pub(crate) const NONE: Extra = [None, None, None];

/// One additional attribute.
pub(crate) fn one(key: Key, value: impl Into<Value>) -> Extra {
    [Some((key, value.into())), None, None]
}
