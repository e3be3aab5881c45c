//! `tokometer verify`: canary requests beside the relay (straight to the server) and through it, and what they show.
//!
//! A witness of its own: it reads HTTP (`client`) and JSON by itself, with the bytes of each answer and the time of each read.
//! `canary` is the request, `likeness` and `sandwich` say whether two answers are
//! the same, `difference` whether one way is slower, `counted` what the admin server counted, `bypass` who else can reach the
//! server; `run` joins them, and `report` is what is told.

mod bypass;
mod canary;
mod counted;
mod difference;
mod engine;
mod likeness;
mod mask;
mod own_addresses;
mod report;
mod run;
mod sandwich;
mod settings;
mod verdict;

pub use report::{Check, Grade, Report, Row};
pub use run::run;
pub use settings::{Api, CheckName, Settings, UnknownName};
