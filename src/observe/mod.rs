//! One connection from its first byte to its last: joins `wire`, `decode` and `measure`, and contains their faults.

mod settings;

pub use settings::Settings;
