//! Requests that wait for their first token: a miss is counted when it happens, not when the client gives up.

use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use tokometer_decode::Route;
use tokometer_observe::measure::Targets;

/// A table of open exchanges.
pub trait Waiting {
    /// Shows every exchange that has asked for a stream, is whole and waits for its first token. Called about once per
    /// second, never on the data path's threads.
    fn each(&self, show: &mut dyn FnMut(&Wait<'_>));

    /// True while this exchange is open, waiting or not.
    fn is_open(&self, connection: u64, sequence: u64) -> bool;
}

/// A request that waits for its first token.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// Number of the connection in this process, as in the record.
    pub connection: u64,
    /// Number of the exchange on its connection.
    pub sequence: u64,
    /// What kind of request it is.
    pub route: Route,
    /// `model` of the request.
    pub request_model: Option<&'a str>,
    /// Time since the last byte of the request.
    pub waited: Duration,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// What the request said of its own targets.
    pub targets: Option<&'a Targets>,
}

/// Connection and number on it.
pub(super) type ExchangeId = (u64, u64);

/// How far the judgement of a waiting exchange is. Two looks are needed: one that notes it and one that counts it. A record
/// that comes between them finds the note and takes it away; so each exchange is counted once, whoever comes first.
#[derive(Clone, Debug)]
pub(super) enum Note {
    /// It has waited too long, and was open when this was noted.
    Late,
    /// Its misses are counted.
    Counted {
        /// By these objectives.
        by: Vec<String>,
        /// When a look first found it closed.
        closed: Option<Instant>,
    },
}

/// What is noted of exchanges that wait too long. At most [`MOST`]; further ones are judged when they end.
#[derive(Debug, Default)]
pub(super) struct Notes(pub(super) HashMap<ExchangeId, Note>);

/// Most exchanges that are noted.
pub(super) const MOST: usize = 100_000;

/// The record of an exchange that has closed comes at once, unless its thread has to wait for a core. After this time none
/// will come: its connection was no longer observed.
pub(super) const RECORD_COMES: Duration = Duration::from_secs(60);
