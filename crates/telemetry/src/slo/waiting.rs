//! Requests without a first token: a miss is counted when it happens, not when the client gives up.

use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use tokometer_decode::Route;
use tokometer_observe::measure::Targets;

/// A table of open requests.
pub trait Waiting {
    /// Calls `show` for every complete request for a stream without a first token. Called about once per second, never
    /// on a data path thread.
    fn each(&self, show: &mut dyn FnMut(&Wait<'_>));

    /// True while this request is open, with or without a first token.
    fn is_open(&self, connection: u64, sequence: u64) -> bool;
}

/// A request without a first token.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// Connection number in this process, as in the record.
    pub connection: u64,
    /// Request number on its connection.
    pub sequence: u64,
    /// Route of the request.
    pub route: Route,
    /// `model` of the request.
    pub request_model: Option<&'a str>,
    /// Time since the last byte of the request.
    pub waited: Duration,
    /// Size of the request body in bytes.
    pub request_bytes: u64,
    /// The SLO targets in the request itself.
    pub targets: Option<&'a Targets>,
}

/// Connection number, and request number on that connection.
pub(super) type ExchangeId = (u64, u64);

/// Progress of evaluating a pending request. It takes two sweeps: the first notes the request, the second counts it. A
/// record that arrives in between removes the note, so each request is counted exactly once.
#[derive(Clone, Debug)]
pub(super) enum Note {
    /// It has waited too long, and was open when this was noted.
    Late,
    /// Its misses are counted.
    Counted {
        /// The objectives that counted it.
        by: Vec<String>,
        /// When a sweep first found it closed.
        closed: Option<Instant>,
    },
}

/// Notes on overdue requests. At most [`MOST`]; further requests are evaluated when they end.
#[derive(Debug, Default)]
pub(super) struct Notes(pub(super) HashMap<ExchangeId, Note>);

/// Maximum number of notes.
pub(super) const MOST: usize = 100_000;

/// Maximum time to wait for the record of a closed request. It normally arrives at once, unless its thread waits for a
/// CPU; after this time the connection was no longer observed and no record will arrive.
pub(super) const RECORD_COMES: Duration = Duration::from_secs(60);
