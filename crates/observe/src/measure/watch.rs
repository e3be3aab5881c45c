//! Callbacks on the progress of one open request, for code that cannot wait for the record.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::measure::Record;
use tokometer_decode::{OutputLimit, Route};

/// Data available once a request's route is known.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Index of the listener.
    pub listener: usize,
    /// Route of the request.
    pub route: Route,
    /// Number of the connection in this process.
    pub connection: u64,
    /// Sequence number of the request on its connection, from 0.
    pub sequence: u64,
    /// When the first byte of the request was read. Times passed to [`Watch`] are relative to this moment.
    pub started: Instant,
}

/// Latency targets, tenant and other values from the headers of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Maximum time to first token: header `x-llm-d-slo-ttft-ms`, or its old name `x-slo-ttft-ms` (llm-d inference
    /// scheduler, latencyslo/plugin.go).
    pub first_token: Option<Duration>,
    /// Maximum time per output token: header `x-llm-d-slo-tpot-ms` or `x-slo-tpot-ms` (same source).
    pub per_token: Option<Duration>,
    /// Tenant from the configured header or claim, at most 128 bytes, as sent by the client. The tenant rules decide
    /// whether it becomes a label.
    pub tenant: Option<Box<str>>,
    /// Priority class, at most 128 bytes: the name of an InferenceObjective in the header
    /// `x-llm-d-inference-objective`, or its old name `x-gateway-inference-objective` (llm-d, Gateway API inference
    /// extension). Parsed only if tenants are configured.
    pub priority_class: Option<Box<str>>,
    /// Data-parallel rank selected by a router: header `x-data-parallel-rank` (vLLM, llm-d).
    pub data_parallel_rank: Option<u8>,
}

impl Targets {
    /// Returns the targets, or `None` if no target is set.
    pub fn if_any(self) -> Option<Box<Targets>> {
        (self != Targets::default()).then(|| Box::new(self))
    }

    /// Parses a header value: a rank from 0 to 255.
    pub fn rank(value: &[u8]) -> Option<u8> {
        let text = number_text(value)?;
        text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// Parses a header value in milliseconds: a number above 0, with or without a fraction.
    pub fn milliseconds(value: &[u8]) -> Option<Duration> {
        let text = number_text(value)?;
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number: f64 = text.parse().ok().filter(|number| plain && *number > 0.0)?;
        Duration::try_from_secs_f64(number / 1e3).ok().filter(|time| !time.is_zero())
    }
}

/// Maximum bytes of a header value that is a number.
const NUMBER_BYTES: usize = 64;

/// The text of a header value that is a number, without surrounding white space. `None` if it is too long: with header
/// compression, a client sends a long value with one byte.
pub(crate) fn number_text(value: &[u8]) -> Option<&str> {
    if value.len() > NUMBER_BYTES {
        return None;
    }
    std::str::from_utf8(value).ok().map(str::trim)
}

/// Parameters of a complete request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested<'a> {
    /// `model`, at most 128 bytes.
    pub model: Option<&'a str>,
    /// The request set `stream`; `None` if unspecified.
    pub streaming: Option<bool>,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens: Option<u64>,
    /// The limit on output tokens as evidence about the engine.
    pub limit: OutputLimit,
    /// Bytes of the request body.
    pub bytes: u64,
    /// Latency targets of the request.
    pub targets: Option<&'a Targets>,
}

/// Callbacks for one open request, called on its connection's thread: must not block, and must not allocate per token.
/// Times are relative to the start of the request. If a watch is dropped without [`Watch::ended`], its request was not
/// recorded.
pub trait Watch: Send {
    /// The request is complete; the server now has everything it needs to respond.
    fn requested(&mut self, request: &Requested<'_>, at: Duration);

    /// The final response headers arrived. `streaming`: the body is an event stream.
    fn response_started(&mut self, status: u16, streaming: bool);

    /// The server reported prompt processing progress.
    fn prefilling(&mut self, at: Duration);

    /// A token-bearing event with `tokens` tokens (1 if unknown) arrived. Returns false if the watch needs no further
    /// tokens, so that its memory need not be loaded for each token. The method may still be called afterwards.
    fn token(&mut self, at: Duration, tokens: u64) -> bool;

    /// The usual gap between the response's token-bearing events. Called when the usual gap becomes known, and while it
    /// is long.
    fn usual_gap(&mut self, _usual: Duration) {}

    /// Prefetches the memory that the next token needs, by reading a word of each part. The memory is usually not
    /// cached when a token arrives, and cache misses of independent loads overlap.
    fn warm(&self) {}

    /// The client stopped reading. From now on, the server's data is not read either.
    fn client_blocked(&mut self, at: Duration);

    /// The client resumed reading.
    fn resumed(&mut self, at: Duration);

    /// The response's end marker arrived; no more tokens follow.
    fn response_complete(&mut self);

    /// The client closed its side of the connection, and most likely no longer waits for the response.
    fn client_left(&mut self) {}

    /// The request ended with this record.
    fn ended(self: Box<Self>, record: &Arc<Record>);
}

/// The watches of one request, notified in order: usually one, but possibly none or several.
///
/// The first watch is stored inline. The others are behind a pointer, because they need few tokens or none.
#[derive(Default)]
pub struct Watches {
    first: Option<Box<dyn Watch>>,
    others: Box<[Box<dyn Watch>]>,
    /// No further tokens are needed: by the first watch, and by all others.
    done: [bool; 2],
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").finish_non_exhaustive()
    }
}

impl Watches {
    /// A single watch.
    pub fn of(watch: impl Watch + 'static) -> Watches {
        Watches { first: Some(Box::new(watch)), ..Watches::default() }
    }

    /// Appends `more`.
    #[must_use]
    pub fn and(self, more: Watches) -> Watches {
        match self.first {
            None => more,
            Some(_) => {
                let others = self.others.into_iter().chain(more.first).chain(more.others).collect();
                Watches { first: self.first, others, done: [false; 2] }
            }
        }
    }

    /// True if there are no watches.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn each(&mut self, call: impl Fn(&mut dyn Watch)) {
        self.first.iter_mut().chain(&mut *self.others).for_each(|watch| call(watch.as_mut()));
    }

    /// Calls [`Watch::requested`] on each.
    pub fn requested(&mut self, request: &Requested<'_>, at: Duration) {
        self.each(|watch| watch.requested(request, at));
    }

    /// Calls [`Watch::response_started`] on each.
    pub fn response_started(&mut self, status: u16, streaming: bool) {
        self.each(|watch| watch.response_started(status, streaming));
    }

    /// Calls [`Watch::prefilling`] on each.
    pub fn prefilling(&mut self, at: Duration) {
        self.each(|watch| watch.prefilling(at));
    }

    /// Calls [`Watch::token`] on each watch that still needs tokens.
    pub fn token(&mut self, at: Duration, tokens: u64) {
        let [first, others] = &mut self.done;
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

    /// Calls [`Watch::usual_gap`] on each.
    pub fn usual_gap(&mut self, usual: Duration) {
        self.each(|watch| watch.usual_gap(usual));
    }

    /// Calls [`Watch::warm`] on the first watch.
    pub(crate) fn warm(&self) {
        if let Some(first) = &self.first {
            first.warm();
        }
    }

    /// Calls [`Watch::client_blocked`] on each.
    pub fn client_blocked(&mut self, at: Duration) {
        self.each(|watch| watch.client_blocked(at));
    }

    /// Calls [`Watch::resumed`] on each.
    pub fn resumed(&mut self, at: Duration) {
        self.each(|watch| watch.resumed(at));
    }

    /// Calls [`Watch::response_complete`] on each.
    pub fn response_complete(&mut self) {
        self.each(|watch| watch.response_complete());
    }

    /// Calls [`Watch::client_left`] on each.
    pub fn client_left(&mut self) {
        self.each(|watch| watch.client_left());
    }

    /// Calls [`Watch::ended`] on each.
    pub fn ended(self, record: &Arc<Record>) {
        self.first.into_iter().chain(self.others).for_each(|watch| watch.ended(record));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::measure::{Labels, Outcome};

    type Journal = Arc<Mutex<Vec<(char, &'static str)>>>;

    /// Records the calls that it receives. Fields: its name, how many more tokens it needs, the recorded calls.
    struct CallRecorder(char, usize, Journal);

    impl CallRecorder {
        fn note(&self, what: &'static str) {
            self.2.lock().unwrap().push((self.0, what));
        }
    }

    impl Watch for CallRecorder {
        fn requested(&mut self, _: &Requested<'_>, _: Duration) {
            self.note("requested");
        }
        fn response_started(&mut self, _: u16, _: bool) {}
        fn prefilling(&mut self, _: Duration) {}
        fn token(&mut self, _: Duration, _: u64) -> bool {
            self.note("token");
            self.1 = self.1.saturating_sub(1);
            self.1 > 0
        }
        fn client_blocked(&mut self, _: Duration) {}
        fn resumed(&mut self, _: Duration) {}
        fn response_complete(&mut self) {}
        fn ended(self: Box<Self>, _: &Arc<Record>) {
            self.note("ended");
        }
    }

    #[test]
    fn watches_are_notified_in_order_until_they_need_no_tokens() {
        let journal = Journal::default();
        let recorder = |name, tokens| Watches::of(CallRecorder(name, tokens, Arc::clone(&journal)));
        let calls = || std::mem::take(&mut *journal.lock().unwrap());
        assert!(Watches::default().and(Watches::default()).is_empty());
        let two = recorder('b', 1).and(recorder('c', 1));
        let mut watches = Watches::default().and(recorder('a', 3)).and(two);
        watches.requested(&Requested::default(), Duration::ZERO);
        assert_eq!(calls(), [('a', "requested"), ('b', "requested"), ('c', "requested")]);
        for expected in
            [&[('a', "token"), ('b', "token"), ('c', "token")][..], &[('a', "token")], &[('a', "token")], &[]]
        {
            watches.token(Duration::ZERO, 1);
            assert_eq!(calls(), expected);
        }
        watches.ended(&Arc::new(Record::new(Labels::default(), Instant::now(), Outcome::Ok, Duration::ZERO)));
        assert_eq!(calls(), [('a', "ended"), ('b', "ended"), ('c', "ended")]);
    }

    #[test]
    fn milliseconds_accepts_only_positive_decimal_numbers() {
        let table = [
            ("200", Some(Duration::from_millis(200))),
            (" 12.5 ", Some(Duration::from_micros(12_500))),
            ("0", None),
            ("-1", None),
            ("1e3", None),
            ("inf", None),
            ("nan", None),
            ("", None),
            ("5s", None),
            ("99999999999999999999999999999999", None),
            (&format!("{}1", " ".repeat(NUMBER_BYTES - 1)), Some(Duration::from_millis(1))),
            (&format!("{}1", " ".repeat(NUMBER_BYTES)), None),
        ];
        for (text, expected) in table {
            assert_eq!(Targets::milliseconds(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(Targets::milliseconds(b"\xff"), None);
    }

    #[test]
    fn rank_accepts_only_whole_numbers_up_to_255() {
        for (text, expected) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("255", Some(255)),
            ("256", None),
            ("-1", None),
            ("+1", None),
            ("", None),
        ] {
            assert_eq!(Targets::rank(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(Targets::rank(b"\xff"), None);
    }

    #[test]
    fn targets_without_values_are_none() {
        assert_eq!(Targets::default().if_any(), None);
        let tenant = Targets { tenant: Some("a".into()), ..Targets::default() };
        assert_eq!(tenant.clone().if_any(), Some(Box::new(tenant)));
    }
}
