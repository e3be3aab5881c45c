//! One open exchange as it goes on, for whoever must know before it ends.

use std::fmt;
use std::time::Duration;
use std::time::Instant;

use crate::measure::Record;
use crate::measure::Targets;
use tokometer_decode::Route;

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

    /// A token-bearing event came, with so many tokens (1 where the number is not known). False when it need not hear of any
    /// further one (it may all the same): its memory, cold by then, is left alone.
    fn token(&mut self, at: Duration, tokens: u64) -> bool;

    /// Reads a word of each part of its memory that the next token will need. Nothing comes of it but that the memory is
    /// there then: a stream's is cold when its token comes, and what is read at once is waited for once.
    fn warm(&self) {}

    /// The client no longer takes bytes: what the server sends from here on is not read.
    fn held_up(&mut self, at: Duration);

    /// The client takes bytes again.
    fn resumed(&mut self, at: Duration);

    /// The answer's own end mark came; what may follow is no token.
    fn answered(&mut self);

    /// The exchange ended with this record.
    fn ended(self: Box<Self>, record: &Record);
}

/// All who watch one exchange: nobody, mostly one, or several, who are told the same in their order.
///
/// The first is at hand and the others are apart: they are told of few tokens or of none.
#[derive(Default)]
pub struct Watches {
    first: Option<Box<dyn Watch>>,
    others: Box<[Box<dyn Watch>]>,
    /// Of the first and of the others: nobody wants to hear of further tokens.
    deaf: [bool; 2],
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").finish_non_exhaustive()
    }
}

impl Watches {
    /// One who watches.
    pub fn of(watch: impl Watch + 'static) -> Watches {
        Watches { first: Some(Box::new(watch)), ..Watches::default() }
    }

    /// These, and `more` after them.
    #[must_use]
    pub fn and(self, more: Watches) -> Watches {
        match self.first {
            None => more,
            Some(_) => {
                let others = self.others.into_iter().chain(more.first).chain(more.others).collect();
                Watches { first: self.first, others, deaf: [false; 2] }
            }
        }
    }

    /// True when nobody watches.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn each(&mut self, tell: impl Fn(&mut dyn Watch)) {
        self.first.iter_mut().chain(&mut *self.others).for_each(|watch| tell(watch.as_mut()));
    }

    /// As [`Watch::requested`].
    pub fn requested(&mut self, request: &Requested<'_>, at: Duration) {
        self.each(|watch| watch.requested(request, at));
    }

    /// As [`Watch::answering`].
    pub fn answering(&mut self, status: u16, streaming: bool) {
        self.each(|watch| watch.answering(status, streaming));
    }

    /// As [`Watch::prefilling`].
    pub fn prefilling(&mut self, at: Duration) {
        self.each(|watch| watch.prefilling(at));
    }

    /// As [`Watch::token`].
    pub fn token(&mut self, at: Duration, tokens: u64) {
        let [first, others] = &mut self.deaf;
        if !*first {
            *first = !self.first.as_mut().is_some_and(|watch| watch.token(at, tokens));
        }
        if !*others {
            *others = true;
            for watch in &mut self.others {
                *others &= !watch.token(at, tokens);
            }
        }
    }

    /// As [`Watch::warm`].
    pub(crate) fn warm(&self) {
        if let Some(first) = &self.first {
            first.warm();
        }
    }

    /// As [`Watch::held_up`].
    pub fn held_up(&mut self, at: Duration) {
        self.each(|watch| watch.held_up(at));
    }

    /// As [`Watch::resumed`].
    pub fn resumed(&mut self, at: Duration) {
        self.each(|watch| watch.resumed(at));
    }

    /// As [`Watch::answered`].
    pub fn answered(&mut self) {
        self.each(|watch| watch.answered());
    }

    /// As [`Watch::ended`].
    pub fn ended(self, record: &Record) {
        self.first.into_iter().chain(self.others).for_each(|watch| watch.ended(record));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use super::*;
    use crate::measure::Labels;
    use crate::measure::Outcome;

    type Journal = Arc<Mutex<Vec<(char, &'static str)>>>;

    /// Writes down what it is told, and wants to hear of so many tokens.
    struct Scribe(char, usize, Journal);

    impl Scribe {
        fn note(&self, what: &'static str) {
            self.2.lock().unwrap().push((self.0, what));
        }
    }

    impl Watch for Scribe {
        fn requested(&mut self, _: &Requested<'_>, _: Duration) {
            self.note("requested");
        }
        fn answering(&mut self, _: u16, _: bool) {}
        fn prefilling(&mut self, _: Duration) {}
        fn token(&mut self, _: Duration, _: u64) -> bool {
            self.note("token");
            self.1 = self.1.saturating_sub(1);
            self.1 > 0
        }
        fn held_up(&mut self, _: Duration) {}
        fn resumed(&mut self, _: Duration) {}
        fn answered(&mut self) {}
        fn ended(self: Box<Self>, _: &Record) {
            self.note("ended");
        }
    }

    #[test]
    fn all_are_told_in_their_order_and_of_tokens_while_they_want_to_hear_of_them() {
        let journal = Journal::default();
        let scribe = |name, tokens| Watches::of(Scribe(name, tokens, Arc::clone(&journal)));
        let told = || std::mem::take(&mut *journal.lock().unwrap());
        assert!(Watches::default().and(Watches::default()).is_empty());
        let two = scribe('b', 1).and(scribe('c', 1));
        let mut watches = Watches::default().and(scribe('a', 3)).and(two);
        watches.requested(&Requested::default(), Duration::ZERO);
        assert_eq!(told(), [('a', "requested"), ('b', "requested"), ('c', "requested")]);
        for expected in
            [&[('a', "token"), ('b', "token"), ('c', "token")][..], &[('a', "token")], &[('a', "token")], &[]]
        {
            watches.token(Duration::ZERO, 1);
            assert_eq!(told(), expected);
        }
        watches.ended(&Record::new(Labels::default(), Instant::now(), Outcome::Ok, Duration::ZERO));
        assert_eq!(told(), [('a', "ended"), ('b', "ended"), ('c', "ended")]);
    }
}
