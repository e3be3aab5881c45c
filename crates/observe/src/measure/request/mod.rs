//! State of one open request: consumes headers, events and times, and produces a [`Record`](crate::measure::Record) at the end.

pub mod cadence;
mod end;
mod gaps;
mod outcome;
mod parameters;
mod response;
mod times;
mod transport;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::input::Network;
use crate::measure::request::gaps::Gaps;
use crate::measure::request::response::{Failure, Response};
use crate::measure::request::times::{Since, Times};
use crate::measure::request::transport::Transport;
use crate::measure::tokens::Tokens;
use crate::measure::{Labels, Live, Opening, Phase, Requested, Sink, Targets, TraceParent, Watches};
use tokometer_decode::{Channels, Counter, EngineHabits, Route, StreamEvent, Work};

pub use outcome::Ending;
pub use parameters::{Closing, Parameters, Server, Thresholds};
pub use times::Blocked;

/// Channels that are shown to a user: not reasoning or tool calls.
const VISIBLE: Channels = Channels(Channels::CONTENT.0 | Channels::REFUSAL.0 | Channels::AUDIO.0);

/// Progress of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not counted as in flight, because the route is unknown or generates no tokens.
    #[default]
    Open,
    /// Counted as in flight.
    InFlight(Phase),
    /// Ended, even if a few last bytes remain to be parsed.
    Over,
}

/// One open request. Times are passed in as instants and stored as offsets from the first byte of the request.
pub struct Request {
    connection: u64,
    sequence: u64,
    started: Instant,
    route: Route,
    parameters: Parameters,
    /// Boxed: few requests have a trace.
    trace: Option<Box<TraceParent>>,
    /// Boxed: few requests have targets.
    targets: Option<Box<Targets>>,
    request_id: Option<Box<str>>,
    request_bytes: u64,
    /// This and the following fields have small types, because every open stream stores them.
    listener: u16,
    first_tokens: Option<NonZeroU32>,
    state: State,
    /// When the client closed its side of the connection, if it did.
    client_left: Since,
    live: Option<Arc<dyn Live>>,
    watches: Watches,
    times: Times,
    response: Response,
    tokens: Tokens,
    gaps: Gaps,
    transport: Transport,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("connection", &self.connection)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// Starts a request whose first byte was read at `started`.
    pub fn begin(connection: u64, sequence: u64, listener: usize, started: Instant) -> Request {
        Request {
            connection,
            sequence,
            started,
            route: Route::Other,
            parameters: Parameters::default(),
            trace: None,
            targets: None,
            request_id: None,
            request_bytes: 0,
            listener: u16::try_from(listener).unwrap_or(u16::MAX),
            first_tokens: None,
            state: State::default(),
            client_left: Since::default(),
            live: None,
            watches: Watches::default(),
            times: Times::default(),
            response: Response::default(),
            tokens: Tokens::default(),
            gaps: Gaps::default(),
            transport: Transport::default(),
        }
    }

    fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }

    /// Prefetches the memory that the next event needs.
    pub(crate) fn warm(&self) {
        self.watches.warm();
        black_box((self.parameters.echo, self.sequence, self.state, self.live.is_some()));
        self.times.warm();
        self.response.warm();
        self.tokens.warm();
        self.gaps.warm();
    }

    /// When the first byte of the request was read.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Number of the connection in this process.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Sequence number on the connection.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Index of the listener.
    pub fn listener(&self) -> usize {
        self.listener.into()
    }

    /// Request id from the client's headers, otherwise from the server's.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// Route of the request.
    pub fn route(&self) -> Route {
        self.route
    }

    /// True if the route generates tokens.
    pub fn generates(&self) -> bool {
        self.route.generates()
    }

    /// Processes the complete request headers.
    pub fn request_head(
        &mut self,
        route: Route,
        trace: Option<TraceParent>,
        request_id: Option<Box<str>>,
        targets: Option<Box<Targets>>,
        sink: &dyn Sink,
    ) {
        self.trace = trace.map(Box::new);
        self.request_id = request_id;
        self.targets = targets;
        self.request_is(route, sink);
    }

    /// Records the trace context that the proxy sent to the server.
    pub fn sent_trace(&mut self, sent: TraceParent) {
        self.transport.sent_trace(sent);
    }

    /// Tenant of the request, if the headers named one.
    pub fn tenant(&self) -> Option<&str> {
        self.targets.as_ref()?.tenant.as_deref()
    }

    /// Sets the route. Called again if the body determines another route than the path.
    pub fn request_is(&mut self, route: Route, sink: &dyn Sink) {
        if self.route != route {
            // A watch is created for one route and cannot be kept for another.
            self.watches = Watches::default();
        }
        self.route = route;
        match (self.generates(), self.state) {
            (true, State::Open) => self.enter(State::InFlight(Phase::WaitingFirstToken), sink),
            (false, State::InFlight(_)) => self.enter(State::Open, sink),
            _ => {}
        }
        if self.route.is_read() && self.route.work() != Work::Neither && self.watches.is_empty() {
            self.watches = sink.opened(&Opening {
                listener: self.listener(),
                route: self.route,
                connection: self.connection,
                sequence: self.sequence,
                started: self.started,
            });
        }
    }

    /// Adds bytes of the request body.
    pub fn request_body(&mut self, bytes: usize) {
        self.request_bytes += bytes as u64;
    }

    /// Processes the end of the request.
    pub fn request_end(&mut self, parameters: Parameters, at: Instant, sink: &dyn Sink) {
        self.parameters = parameters;
        self.announce(self.parameters.stream, at);
        // Response headers that arrived earlier take precedence.
        if self.response.status.is_none() {
            self.expect(self.parameters.stream == Some(true), sink);
        }
    }

    /// Sets the expected delivery: token by token, or in one piece at the end.
    fn expect(&mut self, streaming: bool, sink: &dyn Sink) {
        let phase = if streaming { Phase::WaitingFirstToken } else { Phase::Unstreamed };
        if matches!(self.state, State::InFlight(now) if now != phase && now != Phase::Streaming) {
            self.enter(State::InFlight(phase), sink);
        }
    }

    /// Notifies the watches of the complete request. `streaming`: a stream was requested.
    fn announce(&mut self, streaming: Option<bool>, at: Instant) {
        let at = self.since(at);
        self.times.requested = Since::at(at);
        let Parameters { model, max_tokens, limit, .. } = &self.parameters;
        let (model, max_tokens, limit, bytes) = (model.as_deref(), *max_tokens, *limit, self.request_bytes);
        let targets = self.targets.as_deref();
        self.watches.requested(&Requested { model, streaming, max_tokens, limit, bytes, targets }, at);
    }

    /// Sets the parameters of a request that was not received completely.
    pub fn parameters(&mut self, parameters: Parameters) {
        self.parameters = parameters;
    }

    /// Processes the final response headers. `streaming`: the body is an event stream.
    pub fn response_head(
        &mut self,
        status: u16,
        streaming: bool,
        request_id: Option<Box<str>>,
        at: Instant,
        sink: &dyn Sink,
    ) {
        self.response.status = Some(status);
        self.response.streaming = streaming;
        self.times.headers = Since::at(self.since(at));
        if self.request_id.is_none() {
            self.request_id = request_id;
        }
        self.watches.response_started(status, streaming);
        self.expect(streaming, sink);
    }

    /// The body shows whether the response is an event stream, unlike its `content-type`.
    pub fn response_streams(&mut self, streaming: bool, sink: &dyn Sink) {
        self.response.streaming = streaming;
        if let Some(status) = self.response.status {
            self.watches.response_started(status, streaming);
        }
        self.expect(streaming, sink);
    }

    /// Sets queue time and token counts from the headers of a non-streamed response (TGI).
    pub fn header_values(&mut self, queue: Option<Duration>, counter: Counter) {
        self.times.header_queue = queue.into();
        self.tokens.whole_counter(counter, 1);
    }

    /// Sets the status of an RPC, mapped to an HTTP status. This ends the response.
    pub fn rpc_status(&mut self, http_status: u16) {
        self.response.call = Some(http_status);
    }

    /// Adds bytes of the response body.
    pub fn response_body(&mut self, bytes: usize) {
        self.response.bytes += bytes as u64;
    }

    /// Marks the request as a handshake for another protocol. Its record is not counted as a generating request.
    pub fn handshake(&mut self) {
        self.route = Route::Other;
    }

    /// Starts a response on a WebSocket, which has no response headers. `asked`: when the client requested the
    /// response.
    pub fn begin_in_session(
        &mut self,
        route: Route,
        targets: Option<Box<Targets>>,
        asked: Option<Instant>,
        sink: &dyn Sink,
    ) {
        self.request_head(route, None, None, targets, sink);
        if let Some(at) = asked {
            self.announce(Some(true), at);
        }
        let status = self.response.begin_session();
        self.watches.response_started(status, true);
    }

    /// True if the request asks for the prefill only.
    pub fn is_context_only(&self) -> bool {
        self.parameters.context_only
    }

    /// The response shows that the engine computed only the prefill.
    pub fn was_prefill(&mut self) {
        self.route = Route::Prefill;
    }

    /// True if the engine gave up the request.
    pub fn is_aborted(&self) -> bool {
        self.response.is_aborted()
    }

    /// The server reported an error.
    pub fn fail(&mut self) {
        self.response.failure = Failure::Reported;
    }

    /// The rest of the response body cannot be parsed.
    pub fn response_unread(&mut self) {
        self.response.unread = true;
    }

    /// The client stopped reading, either this response or an earlier response on the connection.
    pub fn client_blocked(&mut self, at: Instant) {
        let at = self.since(at);
        self.watches.client_blocked(at);
    }

    /// The client resumed reading.
    pub fn resumed(&mut self, at: Instant) {
        let at = self.since(at);
        self.watches.resumed(at);
    }

    /// Delivery of the response was blocked on the client from `since` until `until`.
    pub fn blocked(&mut self, since: Instant, until: Instant) {
        let (from, to) = (self.since(since), self.since(until));
        self.times.blocked(from, to);
        self.gaps.interrupt();
    }

    /// The client closed its side of the connection. It may still read, so the request continues.
    pub fn client_left(&mut self, at: Instant) {
        let at = self.since(at);
        self.client_left.first(at);
        self.watches.client_left();
    }

    /// True if a token arrived before the client left.
    fn has_begun(&self) -> bool {
        let left = self.client_left.get();
        self.times.first_token.get().is_some_and(|first| left.is_none_or(|left| first <= left))
    }

    /// Adds a delay of this thread: since the last event, or before the first bytes of the request were read.
    pub fn late(&mut self, by: Duration) {
        self.gaps.late(by);
    }

    /// Sets the connection's network values at the start of the request.
    pub fn network_at_begin(&mut self, network: &Network) {
        self.transport.begin(network);
    }

    /// Sets the connection's current network values.
    pub fn network(&mut self, network: &Network) {
        self.transport.network(network);
    }

    /// The capture lost packets, possibly of this request.
    pub fn lost_packets(&mut self) {
        self.transport.lost_packets();
    }

    /// True if the response is an event stream.
    pub fn is_streaming(&self) -> bool {
        self.response.streaming
    }

    /// Labels of a response from this server.
    fn labels(&self, server: Server, streaming: Option<bool>) -> Labels {
        Labels {
            listener: self.listener(),
            route: self.route,
            engine: server.engine,
            request_model: None,
            response_model: server.model,
            streaming,
        }
    }

    /// Processes one stream event that arrived at `at`. `server` is called at the first token.
    pub fn event(
        &mut self,
        event: &StreamEvent,
        at: Instant,
        habits: EngineHabits,
        thresholds: &Thresholds,
        sink: &dyn Sink,
        server: impl FnOnce() -> Server,
    ) {
        let at = self.since(at);
        self.note(event, at);
        if event.progress {
            self.watches.prefilling(at);
        }
        if event.done || event.end {
            self.watches.response_complete();
        }
        if event.done || event.progress {
            return;
        }
        let step = self.tokens.event(event, habits, self.parameters.echo);
        if !step.has_token {
            return;
        }
        if event.channels.intersects(VISIBLE) {
            self.times.first_visible.first(at);
        }
        if !self.times.first_token.is_known() {
            self.response.first_channels = event.channels;
            self.first_token(step.tokens, sink, server);
        }
        self.times.token(at);
        self.watches.token(at, step.tokens.unwrap_or(1));
        let usual = self.gaps.token(event.choice, at, step.tokens, thresholds.stall, self.live.as_deref());
        if let Some(usual) = usual {
            self.watches.usual_gap(usual);
        }
    }

    /// Processes the first token, which arrived in an event with `tokens` tokens.
    fn first_token(&mut self, tokens: Option<u64>, sink: &dyn Sink, server: impl FnOnce() -> Server) {
        self.first_tokens = tokens.and_then(|n| NonZeroU32::new(u32::try_from(n).ok()?));
        self.enter(State::InFlight(Phase::Streaming), sink);
        if self.response.is_successful() {
            let request_model = self.parameters.model.clone();
            self.live = sink.live(&Labels { request_model, ..self.labels(server(), Some(true)) });
        }
    }

    /// Processes the complete body of a non-streamed response. The time of its first token is unknown.
    pub fn whole_response(&mut self, event: &StreamEvent, at: Instant) {
        self.note(event, self.since(at));
        self.response.has_content |= !event.channels.is_empty() || event.pending;
        self.tokens.whole_response(event);
    }

    /// Processes the parts common to stream events and whole bodies.
    fn note(&mut self, event: &StreamEvent, at: Duration) {
        self.times.first_event.first(at);
        let cancel_is_abort = self.route == Route::Responses;
        self.response.event(event, cancel_is_abort, self.client_left.is_known());
        if let Some(timing) = event.timing {
            self.times.engine(timing);
        }
    }

    fn enter(&mut self, state: State, sink: &dyn Sink) {
        if self.state == State::Over {
            return;
        }
        if let State::InFlight(left) = std::mem::replace(&mut self.state, state) {
            sink.in_flight(self.listener(), left, -1);
        }
        if let State::InFlight(entered) = state {
            sink.in_flight(self.listener(), entered, 1);
        }
    }

    /// Stops counting the request as in flight. The request has ended, even if a few last bytes remain to be parsed.
    pub fn leave(&mut self, sink: &dyn Sink) {
        self.enter(State::Over, sink);
    }

    /// The latest moment recorded for this request.
    pub fn latest(&self) -> Instant {
        self.started + self.times.latest()
    }

    /// Drops the request without a record. Used for probes.
    pub fn abandon(mut self, sink: &dyn Sink) {
        self.leave(sink);
        self.gaps.forward(self.live.as_deref());
    }
}
