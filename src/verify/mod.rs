//! `tokometer verify`: sends canary requests directly to the server and through the proxy, and compares the results.
//!
//! The module is independent of the data path: it has its own HTTP client (`client`) and JSON parsing, and records the
//! bytes of each response and the time of each read.
//!
//! `canary` builds the requests, `compare` compares responses, `difference` compares latency, `counted` reads the admin
//! server's counters, and `bypass` checks for other paths to the server. `run` combines them into a `report`.

mod bypass;
mod canary;
mod compare;
mod counted;
mod difference;
mod mask;
mod report;
mod run;
mod settings;
mod verdict;

pub use difference::Difference;
pub use report::{Check, Grade, Report, Row};
pub use run::run;
pub use settings::{Api, CheckName, Settings};
