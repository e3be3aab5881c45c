//! State of one open request: consumes headers, events and times, and produces a [`Record`] at the end.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::measure::Asked;
use crate::measure::Closing;
use crate::measure::Count;
use crate::measure::Ending;
use crate::measure::Habits;
use crate::measure::Labels;
use crate::measure::Live;
use crate::measure::Opening;
use crate::measure::Phase;
use crate::measure::Profile;
use crate::measure::QueueTime;
use crate::measure::Record;
use crate::measure::Requested;
use crate::measure::Sink;
use crate::measure::Targets;
use crate::measure::Thresholds;
use crate::measure::TraceParent;
use crate::measure::UncountedText;
use crate::measure::Watches;
use crate::measure::blocked::Blocked;
use crate::measure::gaps::Gaps;
use crate::measure::outcome::{Answer, outcome};
use crate::measure::since::Since;
use crate::measure::sink::Unmoved;
use crate::measure::tokens::{Prompts, Tokens, Whole};
use crate::measure::waited::Signs;
use tokometer_decode::{Channels, Counter, EngineTiming, FinishReason, Finishes, Route, StreamEvent, Work};

/// Channels that a person sees as the response: neither reasoning nor tool calls.
const VISIBLE: Channels = Channels(Channels::CONTENT.0 | Channels::REFUSAL.0 | Channels::AUDIO.0);

/// Status of a WebSocket handshake (RFC 6455, section 4.2.2).
const SWITCHING_PROTOCOLS: u16 = 101;

/// One open request. Times are passed in as instants and stored as offsets from the first byte of the request.
pub struct Exchange {
    connection: u64,
    sequence: u64,
    started: Instant,
    route: Route,
    asked: Asked,
    /// Boxed: few requests have one.
    trace: Option<Box<TraceParent>>,
    /// Boxed for the same reason.
    targets: Option<Box<Targets>>,
    request_id: Option<Box<str>>,
    request_bytes: u64,
    response_bytes: u64,
    phase: Option<Phase>,
    /// `u32` keeps the memory of an open stream small.
    pair: u32,
    live: Option<Arc<dyn Live>>,
    watches: Watches,

    requested: Since,
    status: Option<u16>,
    streaming: bool,
    headers: Since,
    first_event: Since,
    first_token: Since,
    first_visible: Since,
    last_token: Since,
    /// `u32` like `pair`.
    first_tokens: Option<u32>,
    /// Boxed: most clients are never slow.
    blocked: Option<Box<Blocked>>,

    tokens: Tokens,
    gaps: Gaps,
    finishes: Finishes,
    /// Boxed: most responses have none before their last event.
    timing: Option<Box<EngineTiming>>,
    /// Queue time from the response headers.
    head_queue: Since,
    events: u64,
    done: bool,
    error: bool,
    /// The client closed its side of the connection.
    client_left: bool,
    /// An error arrived after that.
    error_after: bool,
    /// The body of a non-streamed response had content, or announced a later (background) response.
    carried: bool,
    unread: bool,
    /// No longer counted as in flight.
    left: bool,
    /// Final status of an RPC, mapped to an HTTP status.
    call: Option<u16>,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange")
            .field("connection", &self.connection)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Exchange {
    /// Starts a request whose first byte was read at `started`.
    pub fn begin(connection: u64, sequence: u64, pair: usize, started: Instant) -> Exchange {
        Exchange {
            connection,
            sequence,
            started,
            route: Route::Other,
            asked: Asked::default(),
            trace: None,
            targets: None,
            request_id: None,
            request_bytes: 0,
            response_bytes: 0,
            phase: None,
            pair: u32::try_from(pair).unwrap_or(u32::MAX),
            live: None,
            watches: Watches::default(),
            requested: Since::NEVER,
            status: None,
            streaming: false,
            headers: Since::NEVER,
            first_event: Since::NEVER,
            first_token: Since::NEVER,
            first_visible: Since::NEVER,
            last_token: Since::NEVER,
            first_tokens: None,
            blocked: None,
            tokens: Tokens::default(),
            gaps: Gaps::default(),
            finishes: Finishes::default(),
            timing: None,
            head_queue: Since::NEVER,
            events: 0,
            done: false,
            error: false,
            client_left: false,
            error_after: false,
            carried: false,
            unread: false,
            left: false,
            call: None,
        }
    }

    fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }

    /// Prefetches the memory that the next event needs.
    pub(crate) fn warm(&self) {
        self.watches.warm();
        black_box((self.asked.echo, self.sequence, self.response_bytes, self.last_token, self.events, self.done));
        black_box((self.first_event, self.first_visible, self.live.is_some(), self.blocked.is_some()));
        self.tokens.warm();
        self.gaps.warm();
    }

    /// Sequence number on the connection.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Index of the listener.
    pub fn pair(&self) -> usize {
        self.pair as usize
    }

    /// Request id from a header of the client, otherwise of the server.
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

    /// The request headers are complete.
    pub fn request_head(
        &mut self,
        route: Route,
        trace: Option<TraceParent>,
        request_id: Option<Box<str>>,
        sink: &dyn Sink,
    ) {
        self.route = route;
        self.trace = trace.map(Box::new);
        self.request_id = request_id;
        self.open(sink);
    }

    /// Tenant of the request, if its headers named one.
    pub fn tenant(&self) -> Option<&str> {
        self.targets.as_ref()?.tenant.as_deref()
    }

    /// Sets the latency targets from the request headers.
    pub fn targets(&mut self, targets: Option<Box<Targets>>) {
        self.targets = targets;
    }

    /// Sets the route from the body, if the path did not determine it.
    pub fn request_is(&mut self, route: Route, sink: &dyn Sink) {
        self.route = route;
        self.open(sink);
    }

    /// The route became known or more specific.
    fn open(&mut self, sink: &dyn Sink) {
        if self.generates() && self.phase.is_none() {
            self.enter(Some(Phase::WaitingFirstToken), sink);
        }
        if self.route.is_read() && self.route.work() != Work::Neither && self.watches.is_empty() {
            self.watches = sink.opened(&Opening {
                pair: self.pair(),
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

    /// The request is complete.
    pub fn request_end(&mut self, asked: Asked, at: Instant) {
        self.asked = asked;
        self.requested = Since::at(self.since(at));
    }

    /// Notifies the watches of the complete request. Call after [`Exchange::request_end`].
    pub fn announce(&mut self, model: Option<&str>, streaming: Option<bool>) {
        if let Some(at) = self.requested.get() {
            let (max_tokens, bytes) = (self.asked.max_tokens, self.request_bytes);
            let targets = self.targets.as_deref();
            self.watches.requested(&Requested { model, streaming, max_tokens, bytes, targets }, at);
        }
    }

    /// Sets the parameters of a request that was never completed.
    pub fn asked(&mut self, asked: Asked) {
        self.asked = asked;
    }

    /// The final response headers are complete. `streaming`: the body is an event stream.
    pub fn response_head(&mut self, status: u16, streaming: bool, request_id: Option<Box<str>>, at: Instant) {
        self.status = Some(status);
        self.streaming = streaming;
        self.headers = Since::at(self.since(at));
        if self.request_id.is_none() {
            self.request_id = request_id;
        }
        self.watches.answering(status, streaming);
    }

    /// Queue time and token count from the headers of a non-streamed response (TGI).
    pub fn told_by_head(&mut self, queue: Option<Duration>, counter: Counter) {
        self.head_queue = queue.into();
        self.tokens.whole_counter(counter, 1);
    }

    /// Sets the status of an RPC, which ends its response, mapped to an HTTP status.
    pub fn called(&mut self, http_status: u16) {
        self.call = Some(http_status);
    }

    /// Adds bytes of the response body.
    pub fn response_body(&mut self, bytes: usize) {
        self.response_bytes += bytes as u64;
    }

    /// The request was a handshake of another protocol: the bytes that follow are not its response.
    pub fn handshake(&mut self) {
        self.route = Route::Other;
    }

    /// The response is sent on a WebSocket: it has no headers, so no time for them.
    pub fn in_session(&mut self) {
        self.status = Some(SWITCHING_PROTOCOLS);
        self.streaming = true;
        self.watches.answering(SWITCHING_PROTOCOLS, true);
    }

    /// The server reported an error.
    pub fn fail(&mut self) {
        self.error = true;
    }

    /// The rest of the response body cannot be parsed.
    pub fn response_unread(&mut self) {
        self.unread = true;
    }

    /// The client stopped reading, at this response or at an earlier one on the connection.
    pub fn held_up(&mut self, at: Instant) {
        let at = self.since(at);
        self.watches.held_up(at);
    }

    /// The client reads again.
    pub fn resumed(&mut self, at: Instant) {
        let at = self.since(at);
        self.watches.resumed(at);
    }

    /// Delivery of the response was blocked on the client from `since` until `until`.
    pub fn blocked(&mut self, since: Instant, until: Instant) {
        let (from, to) = (self.since(since), self.since(until));
        self.blocked.get_or_insert_default().add(from, to, self.first_token != Since::NEVER);
        self.gaps.interrupt();
    }

    /// The client closed its side of the connection.
    pub fn client_left(&mut self) {
        self.client_left = true;
    }

    /// Processes one stream event that arrived at `at`. `labels` is called at the first token.
    pub fn event(
        &mut self,
        event: &StreamEvent,
        at: Instant,
        profile: Profile,
        thresholds: &Thresholds,
        sink: &dyn Sink,
        labels: impl FnOnce() -> Labels,
    ) {
        let at = self.since(at);
        self.events += 1;
        self.first_event.first(at);
        self.note(event);
        if event.progress {
            self.watches.prefilling(at);
        }
        if event.done || event.end {
            self.watches.answered();
        }
        if event.done || event.progress {
            return;
        }
        let step = self.tokens.event(event, profile.habits, self.asked.echo);
        if !step.bears {
            return;
        }
        if event.channels.intersects(VISIBLE) {
            self.first_visible.first(at);
        }
        if self.first_token == Since::NEVER {
            self.first_token = Since::at(at);
            self.first_tokens = step.tokens.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            self.enter(Some(Phase::Streaming), sink);
            let live = self.is_answered().then(|| sink.live(&labels())).flatten();
            self.live = Some(live.unwrap_or_else(|| Arc::new(Unmoved)));
        }
        self.last_token = Since::at(at);
        self.watches.token(at, step.tokens.unwrap_or(1));
        if let Some(blocked) = &mut self.blocked {
            blocked.token();
        }
        if let Some(live) = &self.live {
            self.gaps.token(event.choice, at, step.tokens, thresholds.stall, live.as_ref());
        }
    }

    /// Processes the complete body of a non-streamed response; the time of its first token is unknown.
    pub fn whole_answer(&mut self, event: &StreamEvent, at: Instant) {
        let at = self.since(at);
        self.events += 1;
        self.first_event.first(at);
        self.note(event);
        self.carried |= !event.channels.is_empty() || event.pending;
        self.tokens.whole_answer(event);
    }

    fn note(&mut self, event: &StreamEvent) {
        self.done |= event.done || event.end;
        let mut error = event.error;
        for reason in event.finishes.iter() {
            error |= reason == FinishReason::Error;
            self.finishes.push(reason);
        }
        self.error |= error && !self.client_left;
        self.error_after |= error && self.client_left;
        self.unread |= event.unread;
        if let Some(timing) = event.timing {
            **self.timing.get_or_insert_default() = timing;
        }
    }

    fn enter(&mut self, phase: Option<Phase>, sink: &dyn Sink) {
        let phase = phase.filter(|_| !self.left);
        if let Some(left) = std::mem::replace(&mut self.phase, phase) {
            sink.in_flight(self.pair(), left, -1);
        }
        if let Some(entered) = phase {
            sink.in_flight(self.pair(), entered, 1);
        }
    }

    /// Stops counting the request as in flight: it is over, even if a last few bytes are still to be parsed.
    pub fn leave(&mut self, sink: &dyn Sink) {
        self.enter(None, sink);
        self.left = true;
    }

    /// The latest recorded moment of this request.
    pub fn latest(&self) -> Instant {
        let blocked = self.blocked.as_ref().map(|blocked| blocked.end());
        let known = [self.requested, self.headers, self.first_event, self.last_token].map(Since::get);
        self.started + known.into_iter().chain([blocked]).flatten().max().unwrap_or_default()
    }

    /// Drops the request without a record: the observer lost its connection's thread.
    pub fn abandon(mut self, sink: &dyn Sink) {
        self.enter(None, sink);
        if let Some(live) = self.live.take() {
            self.gaps.hand_on(live.as_ref());
        }
    }

    /// Ends the request and passes its record to the sink.
    pub fn end(mut self, mut closing: Closing, at: Instant, thresholds: &Thresholds, sink: &dyn Sink) {
        self.enter(None, sink);
        let text = closing.text.take();
        let record = self.record(closing, at, thresholds);
        if let Some(live) = &self.live {
            self.gaps.hand_on(live.as_ref());
        }
        let told = self.gaps.told();
        let exact = record.output_tokens.filter(|n| n.source.is_exact()).map_or(0, |n| n.tokens);
        if exact > told
            && let Some(live) = self.live.take().or_else(|| sink.live(&record.labels))
        {
            live.reconcile(exact - told);
        }
        std::mem::take(&mut self.watches).ended(&record);
        let text = text.filter(|_| self.is_uncounted(&record));
        match text.map(|text| UncountedText::of(text, &record, self.asked.echo, thresholds)) {
            Some(text) => sink.record_with_text(&record, &mut Some(text)),
            None => sink.record(&record),
        }
    }

    /// True if a response was generated and no exact token count is known.
    fn is_uncounted(&self, record: &Record) -> bool {
        let begun = record.output_tokens.is_some() || self.carried;
        begun && self.is_answered() && self.generates() && !record.output_tokens.is_some_and(|n| n.source.is_exact())
    }

    fn is_answered(&self) -> bool {
        self.status.is_some_and(|s| (200..300).contains(&s) || s == SWITCHING_PROTOCOLS)
    }

    fn record(&mut self, closing: Closing, at: Instant, thresholds: &Thresholds) -> Record {
        let Closing { mut ending, mut labels, response_id, error_type, profile, text: _ } = closing;
        let gave_up = self.error_after && profile.gives_up_with_error && !self.error;
        let mut error = self.error || self.error_after && !gave_up;
        let mut failed = None;
        match self.call {
            None => {}
            Some(200) => self.done = true,
            // Client closed request: the server noticed the client's disconnect.
            Some(499) => ending = Ending::ClientGone,
            Some(_) if self.first_token != Since::NEVER => error = true,
            call => failed = call,
        }
        let prompts =
            Prompts { number: self.asked.prompts.unwrap_or(1).max(1), answers: self.asked.n.unwrap_or(1).max(1) };
        let choices = prompts.answers.saturating_mul(prompts.number);
        let finished = if self.streaming { self.tokens.finished() } else { u64::from(self.finishes.len()) };
        let ended = self.route.ends_with_body() && ending == Ending::Complete && !self.unread;
        let marked_end = ended || self.done || (self.route.ends_with_finish() && finished >= choices.max(1));
        // The RPC status ends a response without the body having been parsed.
        let unread = self.unread && (!marked_end || self.call.is_some());
        let complete = match ending {
            _ if unread => false,
            _ if error || gave_up => false,
            Ending::Complete => !self.streaming || marked_end,
            _ => marked_end,
        };
        // Requests that do not generate have no choices: their usage covers the whole request.
        let usage_per_choice = profile.habits.usage_per_choice && self.generates();
        let habits = Habits { usage_per_choice, ..profile.habits };
        let whole = Whole { choices, echo: self.asked.echo, complete, habits };
        let answered = self.is_answered();
        let output = self.tokens.output(whole).filter(|_| answered && self.generates());
        let excused = self.finishes.iter().any(FinishReason::is_idle) || self.asked.excuses_silence(self.first_token);
        let answer = Answer {
            status: failed.or(self.status),
            generates: self.generates(),
            streaming: self.streaming,
            has_output: output.is_some_and(|n| n.tokens > 0)
                || excused
                || (!self.streaming && (finished > 0 || self.carried)),
            begun: self.first_token != Since::NEVER,
            marked_end,
            error,
            gave_up,
            unread,
            has_body: self.response_bytes > 0,
        };
        let asked_stream = labels.streaming;
        let blocked = self.blocked.take().map(|blocked| *blocked).unwrap_or_default();
        labels.streaming = self.status.map(|_| self.streaming).or(labels.streaming);
        Record {
            labels: Arc::new(labels),
            connection: self.connection,
            sequence: self.sequence,
            outcome: outcome(ending, answer),
            status: self.status,
            finish_reasons: self.finishes.iter().collect(),
            response_id,
            error_type,
            request_id: self.request_id.take(),
            trace: self.trace.as_deref().copied(),
            targets: self.targets.take(),
            asked_stream,
            started: self.started,
            requested: self.requested.get(),
            headers: self.headers.get(),
            first_event: self.first_event.get(),
            first_token: self.first_token.get(),
            first_visible: self.first_visible.get(),
            last_token: self.last_token.get(),
            ended: self.since(at),
            input_tokens: self.tokens.input(prompts, habits).filter(|_| answered && !self.is_in_pieces()),
            cached_tokens: self.tokens.cached(prompts, habits),
            cache_creation_tokens: self.tokens.cache_creation(),
            input_audio_tokens: self.tokens.input_audio(),
            input_image_tokens: self.tokens.input_image(),
            output_tokens: output,
            reasoning_tokens: self.tokens.reasoning(),
            output_audio_tokens: self.tokens.output_audio(),
            first_tokens: self.first_tokens.map(u64::from),
            decode_rate: self.decode_rate(output, true, thresholds),
            decode_rate_at_least: self.decode_rate(output, false, thresholds),
            // The text has not been tokenized yet.
            decode_rate_estimated: None,
            chunks: self.tokens.deltas(),
            events: self.events,
            longest_gap: self.gaps.longest(),
            longest_gap_tokens: self.gaps.longest_tokens(),
            stalls: self.gaps.stalls(),
            delivery_blocked: blocked.total(),
            blocked,
            unread,
            queue: self.queue(profile),
            timing: self.timing.as_deref().copied(),
            engine_span: None,
            max_tokens: self.asked.max_tokens,
            choices: if self.generates() { u32::try_from(choices).unwrap_or(u32::MAX) } else { 1 },
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
        }
    }

    /// The audio was transcribed in several pieces: `usage` then covers only the prompt of the last one (vLLM 0.33,
    /// speech_to_text/base/serving.py).
    fn is_in_pieces(&self) -> bool {
        matches!(self.route, Route::AudioTranscription | Route::AudioTranslation) && self.finishes.len() > 1
    }

    /// Decode rate, with n_first = 1 if unknown. `exact` requires an exact output count; otherwise the count must be
    /// inexact.
    fn decode_rate(&self, output: Option<Count>, exact: bool, thresholds: &Thresholds) -> Option<f64> {
        let told = output.filter(|n| n.source.is_exact() == exact)?.tokens;
        // If the first event may contain several tokens, use the number of later events as the lower bound: each has at
        // least one.
        let output = if exact || self.first_tokens.is_some() { told } else { self.tokens.deltas() };
        let first = self.first_tokens.map_or(1, u64::from);
        thresholds.rate(output, first, self.first_token.get(), self.last_token.get())
    }

    fn queue(&self, profile: Profile) -> Option<QueueTime> {
        let scheduled = profile.head_when_scheduled && self.streaming && self.status == Some(200);
        let signs = Signs {
            timing: self.timing.as_deref(),
            told_by_head: self.head_queue.get(),
            requested: self.requested.get(),
            began: self.headers.get().filter(|_| scheduled),
            first_token: self.first_token.get(),
        };
        signs.queue_time()
    }
}
