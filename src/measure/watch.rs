//! One open exchange as it goes on, for whoever must know before it ends.

use std::time::Duration;
use std::time::Instant;

use crate::decode::Route;
use crate::measure::Record;
use crate::measure::Targets;

/// What is known of an exchange when its route is.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Index of the listen -> upstream pair.
    pub pair: usize,
    /// What kind of request it is.
    pub route: Route,
    /// Number of the connection in this process.
    pub connection: u64,
    /// Number of the exchange on its connection, from 0.
    pub sequence: u64,
    /// When the first byte of the request was read. The times below are counted from here.
    pub started: Instant,
}

/// What a complete request asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested<'a> {
    /// `model`, at most 128 bytes.
    pub model: Option<&'a str>,
    /// The answer is to be a stream (`None`: it did not say).
    pub streaming: Option<bool>,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens: Option<u64>,
    /// Bytes of the request body.
    pub bytes: u64,
    /// What it said of how fast its answer should be.
    pub targets: Option<&'a Targets>,
}

/// Told of one open exchange, step by step, from the thread of its connection: must not block, and must not allocate per
/// token. Times are counted from the exchange's start. One that is dropped before [`Watch::ended`] was left unrecorded.
pub trait Watch: Send {
    /// The request is complete: from now on the server owes something.
    fn requested(&mut self, request: &Requested<'_>, at: Duration);

    /// The final response head came. `streaming`: its body is a stream of events.
    fn answering(&mut self, status: u16, streaming: bool);

    /// The server told how far it is with the prompt.
    fn prefilling(&mut self, at: Duration);

    /// A token-bearing event came, with so many tokens (1 where the number is not known). False when it needs to hear of no
    /// further one: its memory, cold by then, is left alone.
    fn token(&mut self, at: Duration, tokens: u64) -> bool;

    /// The client no longer takes bytes: what the server sends from here on is not read.
    fn held_up(&mut self, at: Duration);

    /// The client takes bytes again.
    fn resumed(&mut self, at: Duration);

    /// The answer's own end mark came; what may follow is no token.
    fn answered(&mut self);

    /// The exchange ended with this record.
    fn ended(self: Box<Self>, record: &Record);
}

impl dyn Watch {
    /// Both are told the same, this one first.
    pub fn and(self: Box<Self>, other: Box<dyn Watch>) -> Box<dyn Watch> {
        Box::new(Both { watches: [self, other], tokens: [true; 2] })
    }
}

/// Two who watch one exchange.
struct Both {
    watches: [Box<dyn Watch>; 2],
    /// Who wants to hear of further tokens.
    tokens: [bool; 2],
}

impl Both {
    fn each(&mut self, tell: impl Fn(&mut dyn Watch)) {
        self.watches.iter_mut().for_each(|watch| tell(watch.as_mut()));
    }
}

impl Watch for Both {
    fn requested(&mut self, request: &Requested<'_>, at: Duration) {
        self.each(|watch| watch.requested(request, at));
    }

    fn answering(&mut self, status: u16, streaming: bool) {
        self.each(|watch| watch.answering(status, streaming));
    }

    fn prefilling(&mut self, at: Duration) {
        self.each(|watch| watch.prefilling(at));
    }

    fn token(&mut self, at: Duration, tokens: u64) -> bool {
        for (watch, wants) in self.watches.iter_mut().zip(&mut self.tokens) {
            *wants = *wants && watch.token(at, tokens);
        }
        self.tokens.contains(&true)
    }

    fn held_up(&mut self, at: Duration) {
        self.each(|watch| watch.held_up(at));
    }

    fn resumed(&mut self, at: Duration) {
        self.each(|watch| watch.resumed(at));
    }

    fn answered(&mut self) {
        self.each(|watch| watch.answered());
    }

    fn ended(self: Box<Self>, record: &Record) {
        self.watches.into_iter().for_each(|watch| watch.ended(record));
    }
}
