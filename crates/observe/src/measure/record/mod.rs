//! The record of one request, created when the request has ended.

mod outcome;
mod sources;
mod trace_parent;
mod values;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::input::Network;
use crate::measure::{Blocked, Labels};
use tokometer_decode::Work;

pub use outcome::Outcome;
pub use sources::{Count, CountSource, QueueSource, QueueTime};
pub use trace_parent::TraceParent;
pub use values::{DecodeRate, EngineValues, RequestTimes, RequestValues, ResponseValues, TokenCounts, TokenGaps};

/// Maximum share of time blocked on the client. Above this share, a measured time mainly describes the client.
const CLIENT_SHARE: f64 = 0.1;

/// A request that has ended. Times are durations since `started` unless noted otherwise. Missing values are `None`,
/// never 0.
#[derive(Clone, Debug)]
pub struct Record {
    /// Labels of this request's series.
    pub labels: Arc<Labels>,
    /// Number of the connection in this process.
    pub connection: u64,
    /// Sequence number of the request on its connection, from 0.
    pub sequence: u64,
    /// Moment at which the first byte of the request was read.
    pub started: Instant,
    /// How the request ended.
    pub outcome: Outcome,
    /// The response was not parsed up to its end marker, so values that it contained may be missing here.
    pub unread: bool,
    /// Packets were lost while the request was captured, so times and network values may be inexact. If bytes of the
    /// request are missing, the outcome is `unobserved`.
    pub capture_loss: bool,
    /// What the client sent.
    pub request: RequestValues,
    /// What the server sent, except tokens.
    pub response: ResponseValues,
    /// Moments of the request.
    pub times: RequestTimes,
    /// Tokens of the request and of the response.
    pub tokens: TokenCounts,
    /// Speed of the response.
    pub rate: DecodeRate,
    /// Gaps between the token-bearing events of the response.
    pub gaps: TokenGaps,
    /// Time during which delivery of this response was blocked on the client.
    pub blocked: Blocked,
    /// What the engine reported about its own work.
    pub engine: EngineValues,
    /// Network between server and client during the request. Some traffic sources do not provide it.
    pub network: Network,
}

impl Record {
    /// The trace context that the server received: the proxy's, otherwise the caller's.
    pub fn server_trace(&self) -> Option<TraceParent> {
        self.request.sent_trace.or(self.request.trace)
    }

    /// Tokens by which the final count exceeds [`TokenCounts::live`]: those that only the engine's span or the
    /// tokenizer counted. 0 if the request had no live counters.
    pub fn late_tokens(&self) -> u64 {
        let count = self.tokens.output.map_or(0, |count| count.tokens);
        self.tokens.live.map_or(0, |live| count.saturating_sub(live))
    }

    /// Creates a minimal record: the first request of connection 0, with one choice and no observed values.
    ///
    /// [`Request`](crate::measure::Request) fills in the observed values.
    pub fn new(labels: Labels, started: Instant, outcome: Outcome, ended: Duration) -> Record {
        Record {
            labels: Arc::new(labels),
            connection: 0,
            sequence: 0,
            started,
            outcome,
            unread: false,
            capture_loss: false,
            request: RequestValues { choices: 1, ..RequestValues::default() },
            response: ResponseValues::default(),
            times: RequestTimes { ended, closed: ended, ..RequestTimes::default() },
            tokens: TokenCounts::default(),
            rate: DecodeRate::default(),
            gaps: TokenGaps { stalls: Some(0), ..TokenGaps::default() },
            blocked: Blocked::default(),
            engine: EngineValues::default(),
            network: Network::default(),
        }
    }

    /// This record with changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Record)) -> Record {
        change(&mut self);
        self
    }

    /// True if the response confirms that its model exists, so that the model name may become a label. Requires status
    /// 101 or 200-299, and either tokens or success on a route that uses the model. Names in rejected requests and in
    /// errors confirm nothing.
    pub fn proves_model(&self) -> bool {
        let tokens = [self.tokens.input, self.tokens.output].into_iter().flatten().any(|count| count.tokens > 0);
        let worked = self.outcome.is_ok() && !self.unread && self.labels.route.work() != Work::Neither;
        matches!(self.response.status, Some(101 | 200..=299)) && (tokens || self.times.first_token.is_some() || worked)
    }

    /// Ends the request at `left`, the time of the client's cancellation. Later times of headers and first events are
    /// dropped.
    pub(in crate::measure) fn end_with_client(&mut self, left: Duration) {
        let times = &mut self.times;
        times.ended = left;
        for time in [&mut times.headers, &mut times.first_event, &mut times.first_token, &mut times.first_visible] {
            *time = time.filter(|time| *time <= left);
        }
        if times.first_token.is_none() {
            // Tokens that arrived later were not delivered.
            times.last_token = None;
            self.tokens.output = None;
            self.rate = DecodeRate::default();
        }
    }

    /// Time from the last request byte to `then`; `None` if either is unknown. 0 if the response begins before the
    /// request is complete.
    pub fn since_requested(&self, then: Option<Duration>) -> Option<Duration> {
        Some(then?.saturating_sub(self.times.requested?))
    }

    /// Network share of the time to first token as seen by the client, measured from the first byte that the client
    /// sends. The network time is the request transfer plus one round trip; the rest is the server's time. `None` if
    /// the round-trip time or the first token is unknown.
    pub fn network_share_of_first_token(&self) -> Option<f64> {
        let server = self.since_requested(self.times.first_token)?.as_secs_f64();
        let network = (self.times.requested? + self.network.rtt?).as_secs_f64();
        (network > 0.0).then(|| network / (network + server))
    }

    /// Time from the last request byte to the first token. `None` if either is unknown. Also `None` if delivery was
    /// blocked on the client for more than 10 % of this time, because the result would mainly describe the client.
    pub fn time_to_first_token(&self) -> Option<Duration> {
        let wait = self.since_requested(self.times.first_token)?;
        (self.blocked.waiting <= wait.mul_f64(CLIENT_SHARE)).then_some(wait)
    }

    /// True if delivery was blocked on the client for more than 10 % of the time from the first to the last token. The
    /// decode rate then mainly describes the client.
    pub fn is_client_limited(&self) -> bool {
        let decode = self.times.first_token.zip(self.times.last_token).map(|(first, last)| last.saturating_sub(first));
        decode.is_some_and(|decode| self.blocked.total() > decode.mul_f64(CLIENT_SHARE))
    }

    /// Time per output token as defined by `gen_ai.server.time_per_output_token`. The seconds from the first token to
    /// the end of the request are divided by the tokens after the first event. `None` if the count is not exact, the
    /// tokens in the first event are unknown, there are several choices, or the client limited the rate.
    pub fn time_per_output_token(&self) -> Option<f64> {
        let output = self.tokens.output?.exact()?;
        if self.request.choices != 1 || self.is_client_limited() {
            return None;
        }
        let after = output.checked_sub(self.tokens.in_first_event(output)?).filter(|n| *n > 0)?;
        // The count includes tokens generated after a cancellation.
        let end = self.times.ended.max(self.times.last_token.unwrap_or_default());
        let span = end.checked_sub(self.times.first_token?)?;
        (!span.is_zero()).then(|| span.as_secs_f64() / after as f64)
    }
}
