//! The catalogue: every metric, in the order of the documentation.
//!
//! A new metric is one entry here, and one line where its value is known: in the recorder, or in its owner's
//! [`Collect`](crate::export::Collect).

use crate::export::table::{Generation, Key, Kind, Metric, Scope};

/// Declares each metric once: the documentation of its identifier is its description.
macro_rules! catalogue {
    ($(
        $(#[doc = $help:literal])+
        $id:ident = $kind:ident($scope:expr, $name:literal, $unit:literal) $({ $($field:ident: $value:expr),+ })?,
    )+) => {
        /// Identifiers of the metrics, in the order of [`TABLE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Id { $( $(#[doc = $help])+ $id, )+ }

        /// Every metric that is recorded or observed, except `target_info`, which is generated from the resource.
        pub static TABLE: [Metric; [$(Id::$id),+].len()] =
            // Each line of a description begins with a space.
            [$(Metric {
                id: Id::$id,
                help: concat!($($help),+).split_at(1).1,
                kind: Kind::$kind,
                scope: $scope,
                name: $name,
                unit: $unit,
                $($($field: $value,)+)?
                ..Metric::PLAIN
            }),+];
    };
}

/// Attributes of a prompt, added only if the settings enable them.
const PROMPT_CLASSES: &[Key] = &[Key::InputLengthClass, Key::CacheHitClass];

/// Attribute of values that each data-parallel rank of an engine has.
const RANK: &[Key] = &[Key::DataParallelRank];

// Bucket boundaries, in seconds where the unit is `s`.

/// Durations, as recommended by semantic conventions v1.41 for `gen_ai.*.duration`.
const DURATION: &[f64] = &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// Tokens of one operation, as recommended by semantic conventions v1.41.
const TOKENS: &[f64] = &[
    1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0,
    67108864.0,
];

/// `gen_ai.server.time_to_first_token`, as recommended by semantic conventions v1.41.
const TIME_TO_FIRST_TOKEN: &[f64] =
    &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// `gen_ai.server.time_per_output_token`, as recommended by semantic conventions v1.41.
const TIME_PER_OUTPUT_TOKEN: &[f64] = &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];

/// Delays of timers: those that the data path counts by, so that no delay changes its bucket.
const DELAY: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];

/// Waits of a whole request. Compared with the conventions: finer between 100 ms and 10 s, where objectives lie, and
/// with a higher upper end.
const WAIT: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0,
    20.0, 30.0, 60.0, 120.0, 300.0,
];

/// Waits of a tenant's requests: coarser than [`WAIT`], because there may be many tenants.
const TENANT_WAIT: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

/// Phases of a request: coarser than [`WAIT`], because every label set has one series per phase.
const PHASE: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

/// Round trips to clients: from the same pod (under 0.1 ms) to a satellite.
const ROUND_TRIP: &[f64] = &[0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8];

/// Gaps between tokens: from speculative decoding (under 1 ms) to a stall.
const GAP: &[f64] = &[
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
];

/// Decode rates of one stream, tokens per second.
const RATE: &[f64] = &[
    1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 75.0, 100.0, 125.0, 150.0, 200.0, 250.0,
    300.0, 400.0, 500.0, 750.0, 1000.0,
];

/// Prefill rates of one request, prompt tokens per second.
const PREFILL_RATE: &[f64] =
    &[10.0, 30.0, 100.0, 300.0, 1000.0, 2000.0, 3000.0, 5000.0, 10000.0, 20000.0, 30000.0, 100000.0, 300000.0];

/// Tokens in one event.
const CHUNK_TOKENS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0];

catalogue! {
    // GenAI semantic conventions.

    /// Time from the last byte of the request (from its first byte if it never ended) to the end of the response
    RequestDuration = Histogram(Scope::GenAi, "gen_ai.server.request.duration", "s")
        { buckets: DURATION, extra: &[Key::ErrorType], exemplar: true },
    /// Time to the first token of successful streamed responses; see tokometer.time_to_first_token for all
    TimeToFirstToken = Histogram(Scope::GenAi, "gen_ai.server.time_to_first_token", "s")
        { buckets: TIME_TO_FIRST_TOKEN, optional: PROMPT_CLASSES, exemplar: true },
    /// Time from the first token to the end, divided by the tokens after the first event; successful streamed responses
    /// with one choice and an exact count that their client did not limit
    TimePerOutputToken = Histogram(Scope::GenAi, "gen_ai.server.time_per_output_token", "s")
        { buckets: TIME_PER_OUTPUT_TOKEN, exemplar: true },
    /// Tokens of one request, as counted by the engine
    TokenUsage = Histogram(Scope::GenAi, "gen_ai.client.token.usage", "{token}")
        { buckets: TOKENS, extra: &[Key::TokenType], generation: Generation::V1_41 },
    /// Prompt tokens, including cached ones
    UsageInput = Counter(Scope::GenAi, "gen_ai.client.inference.usage.input_tokens", "{token}")
        { extra: &[Key::TokenModality], generation: Generation::Latest },
    /// Output tokens, including reasoning
    UsageOutput = Counter(Scope::GenAi, "gen_ai.client.inference.usage.output_tokens", "{token}")
        { extra: &[Key::TokenModality], generation: Generation::Latest },
    /// Prompt tokens read from the engine's cache
    UsageCacheRead = Counter(Scope::GenAi, "gen_ai.client.inference.usage.cache_read.input_tokens", "{token}")
        { extra: &[Key::TokenModality], generation: Generation::Latest },
    /// Prompt tokens written to the engine's cache
    UsageCacheWrite = Counter(Scope::GenAi, "gen_ai.client.inference.usage.cache_write.input_tokens", "{token}")
        { extra: &[Key::TokenModality], generation: Generation::Latest },
    /// Reasoning tokens in the output
    UsageReasoning = Counter(Scope::GenAi, "gen_ai.client.inference.usage.reasoning.output_tokens", "{token}")
        { extra: &[Key::TokenModality], generation: Generation::Latest },
    /// Prompt tokens of one request, where the engine reported them
    OperationInput = Histogram(Scope::GenAi, "gen_ai.client.inference.operation.input_tokens", "{token}")
        { buckets: TOKENS, extra: &[Key::ErrorType], generation: Generation::Latest },
    /// Output tokens of one request, where the engine reported them
    OperationOutput = Histogram(Scope::GenAi, "gen_ai.client.inference.operation.output_tokens", "{token}")
        { buckets: TOKENS, extra: &[Key::ErrorType], generation: Generation::Latest },

    // Requests.

    /// Requests that ended, each with exactly one outcome
    Requests = Counter(Scope::Request, "tokometer.requests", "{request}") { extra: &[Key::Outcome, Key::StatusClass] },
    /// Choices with a finish reason (a request may have several)
    Finishes = Counter(Scope::Request, "tokometer.finishes", "{choice}") { extra: &[Key::FinishReason] },
    /// Time from the last byte of the request to the end of the response headers
    OwnTimeToHeaders = Histogram(Scope::Request, "tokometer.time_to_headers", "s")
        { buckets: WAIT, extra: &[Key::OutcomeClass], exemplar: true },
    /// Time from the last byte of the request to the first event of a streamed response
    OwnTimeToFirstEvent = Histogram(Scope::Request, "tokometer.time_to_first_event", "s")
        { buckets: WAIT, extra: &[Key::OutcomeClass], exemplar: true },
    /// Time from the last byte of the request to the first token on any channel of a streamed response, regardless of
    /// its outcome
    OwnTimeToFirstToken = Histogram(Scope::Request, "tokometer.time_to_first_token", "s")
        { buckets: WAIT, extra: &[Key::OutcomeClass], optional: PROMPT_CLASSES, exemplar: true },
    /// Time from the last byte of the request to the first visible content of a streamed response
    OwnTimeToFirstVisible = Histogram(Scope::Request, "tokometer.time_to_first_visible", "s")
        { buckets: WAIT, extra: &[Key::OutcomeClass], optional: PROMPT_CLASSES, exemplar: true },
    /// Time that requests without a token waited until their end; for cancelled ones, until the client disconnected
    WaitWithoutFirstToken = Histogram(Scope::Request, "tokometer.wait_without_first_token", "s")
        { buckets: WAIT, extra: &[Key::Outcome], exemplar: true },
    /// Tokens per second between the first and the last token-bearing event of one stream; `source` marks lower bounds
    /// and estimates; not of streams with several choices, or limited by their client
    DecodeRate = Histogram(Scope::Request, "tokometer.decode.tokens", "{token}/s")
        { buckets: RATE, extra: &[Key::Source], exemplar: true },
    /// Gap between token-bearing events divided by the tokens in the event: k observations of gap/k
    InterTokenLatency = Histogram(Scope::Request, "tokometer.inter_token_latency", "s")
        { buckets: GAP, exemplar: true },
    /// Gap between token-bearing events
    ChunkGap = Histogram(Scope::Request, "tokometer.chunk_gap", "s") { buckets: GAP, exemplar: true },
    /// Tokens in one event after the first, where the engine reports them
    ChunkTokens = Histogram(Scope::Request, "tokometer.chunk.tokens", "{token}") { buckets: CHUNK_TOKENS },
    /// Gaps longer than the stall threshold that neither the stream's cadence explains nor the client caused (docs/concepts/stalls.md)
    Stalls = Counter(Scope::Request, "tokometer.stalls", "{stall}"),
    /// Uncached prompt tokens divided by the time to the first token without queueing; only where cached tokens and
    /// queue time are known
    PrefillRate = Histogram(Scope::Request, "tokometer.prefill.tokens", "{token}/s")
        { buckets: PREFILL_RATE, extra: &[Key::Source], optional: PROMPT_CLASSES, exemplar: true },
    /// Time in the server's queue; `remainder` (Ollama) includes some milliseconds of templating and tokenizing
    QueueTime = Histogram(Scope::Request, "tokometer.queue.time", "s")
        { buckets: WAIT, extra: &[Key::Source], exemplar: true },
    /// Time of a request by phase; the phases add up to the time from its first byte to its end
    PhaseDuration = Histogram(Scope::Request, "tokometer.phase.duration", "s")
        { buckets: PHASE, extra: &[Key::Phase], exemplar: true },
    /// Time during which the response was blocked on a slow client (backpressure)
    DeliveryBlocked = Histogram(Scope::Request, "tokometer.delivery.blocked", "s") { buckets: WAIT, exemplar: true },
    /// Minimum round-trip time to the client in the minutes before the end of the request; absent where the source of the
    /// traffic does not show it (Unix sockets)
    NetworkRtt = Histogram(Scope::Request, "tokometer.network.rtt", "s") { buckets: ROUND_TRIP, exemplar: true },
    /// Segments that were sent to the client more than once during requests
    NetworkRetransmits = Counter(Scope::Request, "tokometer.network.retransmits", "{segment}"),
    /// Time for which the client's receive window was full, of requests where this occurred
    NetworkZeroWindow = Histogram(Scope::Request, "tokometer.network.zero_window", "s")
        { buckets: PHASE, exemplar: true },
    /// Prompt tokens, including cached ones
    InputTokens = Counter(Scope::Request, "tokometer.input.tokens", "{token}") { extra: &[Key::Source] },
    /// Output tokens of requests that ended, including partial ones of aborted requests
    OutputTokens = Counter(Scope::Request, "tokometer.output.tokens", "{token}") { extra: &[Key::Source] },
    /// Prompt tokens read from the engine's cache, where the engine reports them
    CachedTokens = Counter(Scope::Request, "tokometer.cached.tokens", "{token}"),
    /// Prompt tokens written to the engine's cache, where the engine reports them
    CacheCreationTokens = Counter(Scope::Request, "tokometer.cache_creation.tokens", "{token}"),
    /// Audio tokens in prompts, where the engine reports them
    InputAudioTokens = Counter(Scope::Request, "tokometer.input.audio.tokens", "{token}"),
    /// Image tokens in prompts, where the engine reports them
    InputImageTokens = Counter(Scope::Request, "tokometer.input.image.tokens", "{token}"),
    /// Reasoning tokens in the output, where the engine reports them
    ReasoningTokens = Counter(Scope::Request, "tokometer.reasoning.tokens", "{token}"),
    /// Audio tokens in the output, where the engine reports them
    OutputAudioTokens = Counter(Scope::Request, "tokometer.output.audio.tokens", "{token}"),
    /// Output tokens while they are streamed: a lower bound that is corrected upward at the end of each stream
    LiveTokens = Counter(Scope::Request, "tokometer.live.tokens", "{token}"),
    /// Bytes of request bodies
    RequestBody = Counter(Scope::Request, "tokometer.request.body", "By"),
    /// Bytes of response bodies
    ResponseBody = Counter(Scope::Request, "tokometer.response.body", "By"),

    // Requests in flight and recently ended ones.

    /// Open requests
    InFlight = UpDownCounter(Scope::Listener, "tokometer.in_flight", "{request}") { extra: &[Key::Phase] },
    /// Mean age of the requests in flight, from their first byte; absent when there is none
    InFlightMeanAge = Gauge(Scope::Listener, "tokometer.in_flight.age.mean", "s") { extra: &[Key::Phase] },
    /// Age of the oldest request in flight; absent when there is none
    InFlightOldest = Gauge(Scope::Listener, "tokometer.in_flight.age.max", "s") { extra: &[Key::Phase] },
    /// Maximum time that a request in flight has waited for its next (or first) token; absent when there is none
    InFlightWaited = Gauge(Scope::Listener, "tokometer.in_flight.wait.max", "s") { extra: &[Key::Phase] },
    /// Streams whose next token takes longer than the stall threshold and the stream's cadence allow (docs/concepts/stalls.md), and
    /// whose clients are not blocking
    InFlightStalled = Gauge(Scope::Listener, "tokometer.in_flight.stalled", "{request}"),
    /// Requests in flight that are blocked on a slow client (backpressure)
    InFlightBlocked = Gauge(Scope::Listener, "tokometer.in_flight.blocked", "{request}"),
    /// Requests not tracked while in flight because more than 65,536 were open
    InFlightUntracked = Counter(Scope::Process, "tokometer.in_flight.untracked", "{request}"),
    /// Time since the engine last sent a token to any client while it had pending requests, on all its listeners together;
    /// 0 when it has none
    EngineSilence = Gauge(Scope::Server, "tokometer.engine.silence", "s"),
    /// Maximum silence allowed for the requests in flight; absent when the engine has no pending request
    EngineSilenceBound = Gauge(Scope::Server, "tokometer.engine.silence.bound", "s"),
    /// 1 while the engine, or one of its data-parallel ranks, has been silent for longer than its bound, so that
    /// /engine/healthz returns 503; else 0
    EngineWedged = Gauge(Scope::Server, "tokometer.engine.wedged", ""),
    /// 0 while the server accepts no connections and no request makes progress, so that /engine/healthz returns 503; else
    /// 1; absent until it is known, and where the upstream is `original`
    EngineReachable = Gauge(Scope::Server, "tokometer.engine.reachable", ""),
    /// Ended requests kept for /requests
    RecentRequests = Gauge(Scope::Process, "tokometer.recent.requests", "{request}"),
    /// Memory used by the ended requests kept for /requests
    RecentMemory = Gauge(Scope::Process, "tokometer.recent.memory", "By"),
    /// Ended requests not kept because they ended faster than they could be stored
    RecentDropped = Counter(Scope::Process, "tokometer.recent.dropped", "{request}"),
    /// Requests whose records were dropped because too many were waiting to be counted: only tokometer.requests counts
    /// them, by operation, server and outcome
    RecordsDropped = Counter(Scope::Process, "tokometer.records.dropped", "{request}"),
    /// Access log lines lost; absent where no access log is written
    AccessLogDropped = Counter(Scope::Process, "tokometer.access_log.dropped", "{line}") { extra: &[Key::Reason] },

    // Connections and observers.

    /// Connections that are still relayed but no longer read; their open requests are recorded with the outcome
    /// `unobserved`
    ObserverDetached = Counter(Scope::Listener, "tokometer.observer.detached", "{connection}") { extra: &[Key::Reason] },
    /// Bodies relayed without being read, or not to their end, because of their compression
    BodiesUnread = Counter(Scope::Listener, "tokometer.observer.bodies.unread", "{body}")
        { extra: &[Key::Direction, Key::Reason] },
    /// Connections accepted
    ConnectionsOpened = Counter(Scope::Listener, "tokometer.connections.opened", "{connection}"),
    /// Open connections
    ConnectionsOpen = UpDownCounter(Scope::Listener, "tokometer.connections.open", "{connection}"),
    /// Connections refused because the maximum number was open: the open file limit (`descriptors`) or
    /// `relay.max_connections` (`max_connections`)
    ConnectionsRefused = Counter(Scope::Listener, "tokometer.connections.refused", "{connection}")
        { extra: &[Key::Reason] },
    /// Client connections that ended in the TLS handshake; 0 on listeners without TLS
    HandshakeFailures = Counter(Scope::Listener, "tokometer.connections.handshake_failures", "{connection}"),
    /// Connections for which the server was unreachable: `refused`, `timeout`, `name_resolution`, `unreachable` (no
    /// route), `tls` (handshake failed) or `other`
    ConnectFailures = Counter(Scope::Listener, "tokometer.connect.failures", "{connection}") { extra: &[Key::Reason] },
    /// Requests in rewrite mode, by what was done with them
    RewriteRequests = Counter(Scope::Listener, "tokometer.rewrite.requests", "{request}")
        { extra: &[Key::Rewrite, Key::Result] },
    /// Bytes relayed, including headers and framing
    RelayIo = Counter(Scope::Listener, "tokometer.relay.io", "By") { extra: &[Key::Direction] },
    /// Always 1: how traffic to the server is intercepted, and whether the server can be reached directly; absent while
    /// the server does not respond
    Interception = Gauge(Scope::Listener, "tokometer.interception", "") { extra: &[Key::Mode, Key::Result] },
    /// Always 1: whether the listener accepts clients
    Listening = Gauge(Scope::Listener, "tokometer.listening", "") { extra: &[Key::State] },
    /// Connections currently read
    ObserverConnections = Gauge(Scope::Process, "tokometer.observer.connections", "{connection}"),
    /// Time spent reading relayed bytes: tokometer's own overhead on the data path's threads
    ObserverTime = Counter(Scope::Process, "tokometer.observer.time", "s"),
    /// Bytes produced by decoders of compressed bodies and messages, including those of inner codings
    ObserverDecoded = Counter(Scope::Process, "tokometer.observer.decoded", "By"),
    /// Memory charged to the budget (`observe.memory`): data that observers hold because of clients
    ObserverMemory = Gauge(Scope::Process, "tokometer.observer.memory", "By"),
    /// The memory budget
    ObserverMemoryLimit = Gauge(Scope::Process, "tokometer.observer.memory.limit", "By"),
    /// Memory requests refused because the budget was exhausted
    ObserverMemoryRefused = Counter(Scope::Process, "tokometer.observer.memory.refused", "{request}"),
    /// Delay of the last timers of the data path's threads, or of timers overdue now: maximum over all threads; timers
    /// have a resolution of one millisecond
    EventLoopLag = Gauge(Scope::Process, "tokometer.event_loop.lag", "s"),
    /// Delays of the data path's timers, ten per second and thread: everything that waits for the thread is delayed by as
    /// much (docs/concepts/stalls.md)
    EventLoopDelay = Histogram(Scope::Process, "tokometer.event_loop.delay", "s")
        { buckets: DELAY, extra: &[Key::Thread] },
    /// Responses without a token count from the engine that the tokenizer could not count either; only where a
    /// tokenizer is configured
    TokenizerUncounted = Counter(Scope::Process, "tokometer.tokenizer.uncounted", "{response}")
        { extra: &[Key::Reason] },

    // Captured packets; only in `tokometer tap`.

    /// Packets captured; only in `tokometer tap`, as all metrics of the capture
    CapturePackets = Counter(Scope::Process, "tokometer.capture.packets", "{packet}"),
    /// Packets that the kernel dropped because the capture was too slow; requests that were open are marked
    /// (`capture_loss`), and a connection with missing bytes is read again from its next request on
    CaptureLost = Counter(Scope::Process, "tokometer.capture.packets.lost", "{packet}"),
    /// Captured packets that could not be read, or not to their end: invalid headers (`malformed`), fragments of IP packets
    /// (`fragment`), or longer than the capture allows (`truncated`)
    CaptureUnread = Counter(Scope::Process, "tokometer.capture.packets.unread", "{packet}") { extra: &[Key::Reason] },
    /// TCP segments from and to the captured ports, without duplicates
    CaptureSegments = Counter(Scope::Process, "tokometer.capture.segments", "{segment}"),
    /// Segments captured twice (`duplicate`), before an earlier one (`out_of_order`), sent again (`retransmitted`), or of
    /// connections that were not followed because too many were open (`shed`)
    CaptureIrregular = Counter(Scope::Process, "tokometer.capture.segments.irregular", "{segment}")
        { extra: &[Key::Kind] },
    /// Captured connections: from their beginning (`opened`), in progress (`attached`), read from one of their requests on
    /// (`synchronised`), and unreadable ones with TLS (`tls`)
    CaptureConnections = Counter(Scope::Process, "tokometer.capture.connections", "{connection}")
        { extra: &[Key::Kind] },
    /// Captured connections that are open
    CaptureOpen = UpDownCounter(Scope::Process, "tokometer.capture.connections.open", "{connection}"),
    /// Open connections that are not read before their next request
    CaptureUnsynchronised = UpDownCounter(Scope::Process, "tokometer.capture.connections.unsynchronised", "{connection}"),
    /// Gaps in captured connections that could not be filled; their open requests are recorded with the outcome
    /// `unobserved`
    CaptureGaps = Counter(Scope::Process, "tokometer.capture.gaps", "{gap}"),
    /// Captured bytes that were read, including headers and framing
    CaptureIo = Counter(Scope::Process, "tokometer.capture.io", "By") { extra: &[Key::Direction] },
    /// Captured bytes of connections that could not be read at that time
    CaptureUnobserved = Counter(Scope::Process, "tokometer.capture.unobserved", "By"),
    /// Captured bytes that wait for an earlier segment
    CaptureReassembly = Gauge(Scope::Process, "tokometer.capture.reassembly.memory", "By"),
    /// How often the buffer of captured packets became full (`tap.buffer`)
    CaptureRingFull = Counter(Scope::Process, "tokometer.capture.ring.full", ""),
    /// Maximum share of the buffer of captured packets in use in the last 30 to 60 s
    CaptureRingUsed = Gauge(Scope::Process, "tokometer.capture.ring.used", "1"),

    // The engine's own metrics.

    /// Requests being processed by the engine, from the engine's own metrics
    EngineRunning = Gauge(Scope::Server, "tokometer.engine.requests.running", "{request}") { extra: RANK },
    /// Requests waiting in the engine's queue, from the engine's own metrics
    EngineWaiting = Gauge(Scope::Server, "tokometer.engine.requests.waiting", "{request}") { extra: RANK },
    /// Share of the engine's key-value cache in use, from the engine's own metrics
    EngineKvUsage = Gauge(Scope::Server, "tokometer.engine.kv_cache.usage", "1") { extra: RANK },
    /// Lookups in the engine's prefix cache, in its own unit (tokens or blocks)
    EngineCacheQueries = Counter(Scope::Server, "tokometer.engine.prefix_cache.queries", "") { extra: RANK },
    /// Hits in the engine's prefix cache, in its own unit (tokens or blocks)
    EngineCacheHits = Counter(Scope::Server, "tokometer.engine.prefix_cache.hits", "") { extra: RANK },
    /// Recent hit ratio of the engine's prefix cache
    EngineCacheRatio = Gauge(Scope::Server, "tokometer.engine.prefix_cache.hit_ratio", "1") { extra: &[Key::DataParallelRank, Key::Source] },
    /// Iterations (forward passes with output) of the engine, from its own metrics
    EngineIterations = Counter(Scope::Server, "tokometer.engine.iterations", "{iteration}") { extra: RANK },
    /// Time without an iteration while the engine, or this data-parallel rank, reported running requests, from its own
    /// metrics; 0 while it iterates or has no running request
    EngineIterationsStopped = Gauge(Scope::Server, "tokometer.engine.iterations.stopped", "s") { extra: RANK },
    /// Output tokens generated by the engine, from its own metrics, including those of requests whose clients are gone
    EngineGenerated = Counter(Scope::Server, "tokometer.engine.tokens.generated", "{token}") { extra: RANK },
    /// Requests that the engine preempted in favour of others and restarted
    EnginePreemptions = Counter(Scope::Server, "tokometer.engine.preemptions", "{preemption}") { extra: RANK },
    /// Tokens proposed by the engine's speculative decoding
    EngineDrafted = Counter(Scope::Server, "tokometer.engine.speculative.drafted", "{token}") { extra: RANK },
    /// Proposed tokens accepted by the engine's model
    EngineAccepted = Counter(Scope::Server, "tokometer.engine.speculative.accepted", "{token}") { extra: RANK },
    /// Recent share of proposed tokens accepted by the engine's model
    EngineAcceptanceRatio = Gauge(Scope::Server, "tokometer.engine.speculative.acceptance_ratio", "1")
        { extra: &[Key::DataParallelRank, Key::Source] },
    /// Total time requests waited in the engine's queue, from the engine's own metrics; most engines count a wait when
    /// the request ends
    EngineQueueTime = Counter(Scope::Server, "tokometer.engine.queue.time", "s") { extra: RANK },
    /// Requests whose waits are included in tokometer.engine.queue.time
    EngineQueueRequests = Counter(Scope::Server, "tokometer.engine.queue.requests", "{request}") { extra: RANK },
    /// Total time of key-value cache transfers from other engines (disaggregated prefill), from the engine's own metrics
    EngineKvTransferTime = Counter(Scope::Server, "tokometer.engine.kv_transfer.time", "s") { extra: RANK },
    /// Transfers included in tokometer.engine.kv_transfer.time
    EngineKvTransfers = Counter(Scope::Server, "tokometer.engine.kv_transfers", "{transfer}") { extra: RANK },
    /// Mean queue wait of the requests added to the engine's queue metrics between two scrapes: an estimate for the
    /// whole engine
    QueueTimeEstimate = Gauge(Scope::Server, "tokometer.queue.time.estimate", "s") { extra: &[Key::DataParallelRank, Key::Source] },
    /// Always 1, with the name and the version of the engine as attributes, where the engine reports its version (vLLM);
    /// absent while its metrics are not scraped
    EngineInfo = Gauge(Scope::Server, "tokometer.engine.info", "") { extra: &[Key::Provider, Key::Version] },
    /// Attempts to scrape the engine's metrics
    EngineScrapes = Counter(Scope::Server, "tokometer.engine.scrape.attempts", "{scrape}"),
    /// Scrapes of the engine's metrics that failed
    EngineScrapeFailures = Counter(Scope::Server, "tokometer.engine.scrape.failures", "{scrape}")
        { extra: &[Key::Reason] },
    /// Duration of the last attempt to scrape the engine's metrics
    EngineScrapeDuration = Gauge(Scope::Server, "tokometer.engine.scrape.duration", "s"),
    /// Time since the last successful scrape of the engine's metrics
    EngineScrapeAge = Gauge(Scope::Server, "tokometer.engine.scrape.age", "s"),

    // Tokometer's own telemetry.

    /// Spans accepted by a collector
    SpansSent = Counter(Scope::Process, "tokometer.telemetry.spans.sent", "{span}"),
    /// Spans lost because the queue was full or their export failed
    SpansDropped = Counter(Scope::Process, "tokometer.telemetry.spans.dropped", "{span}"),
    /// Traces kept because of their content that the sampler alone would have dropped
    TracesKept = Counter(Scope::Process, "tokometer.telemetry.traces.kept", "{trace}") { extra: &[Key::Reason] },
    /// Traces dropped although their content qualified them to be kept: the rate limit per second was reached
    TracesCapped = Counter(Scope::Process, "tokometer.telemetry.traces.capped", "{trace}"),
    /// OTLP exports attempted
    Exports = Counter(Scope::Process, "tokometer.telemetry.exports", "{export}") { extra: &[Key::Signal] },
    /// OTLP exports that failed after their retries
    ExportsFailed = Counter(Scope::Process, "tokometer.telemetry.exports.failed", "{export}") { extra: &[Key::Signal] },
    /// Requests whose attributes were folded into `other` because a cap was reached
    LabelsFolded = Counter(Scope::Process, "tokometer.labels.folded", "{request}") { extra: &[Key::Kind] },

    /// 1 after a successful load of the configuration; 0 while the configuration file has errors, so that the previous
    /// configuration stays in effect
    ConfigReload = Gauge(Scope::Process, "tokometer.config.last_reload.successful", ""),

    // Objectives.

    /// Requests evaluated by an objective; bad ones carry the reason
    SloEvents = Counter(Scope::Process, "tokometer.slo.events", "{request}")
        { extra: &[Key::Slo, Key::Model, Key::Verdict, Key::Reason] },
    /// Requests in scope of an objective but not evaluated: the server was not the cause, or too little is known
    SloExcluded = Counter(Scope::Process, "tokometer.slo.excluded", "{request}")
        { extra: &[Key::Slo, Key::Model, Key::Reason] },
    /// Output tokens of requests that met a goodput objective
    SloGoodTokens = Counter(Scope::Process, "tokometer.slo.good_output.tokens", "{token}")
        { extra: &[Key::Slo, Key::Model, Key::Source] },
    /// Target share of good requests of an objective
    SloObjective = Gauge(Scope::Process, "tokometer.slo.objective", "1") { extra: &[Key::Slo] },
    /// Limit of an objective, in the unit given by its name
    SloThreshold = Gauge(Scope::Process, "tokometer.slo.threshold", "") { extra: &[Key::Slo, Key::Threshold] },

    // Tenants, cost and budgets.

    /// Requests by tenant; only with `tenants`
    TenantRequests = Counter(Scope::Process, "tokometer.tenant.requests", "{request}")
        { extra: &[Key::Tenant, Key::OutcomeClass] },
    /// Prompt tokens by tenant, including cached ones; only with `tenants`
    TenantInputTokens = Counter(Scope::Process, "tokometer.tenant.input.tokens", "{token}")
        { extra: &[Key::Tenant, Key::Source] },
    /// Prompt tokens read from the engine's cache, where the engine reports them, by tenant; only with `tenants`
    TenantCachedTokens = Counter(Scope::Process, "tokometer.tenant.cached.tokens", "{token}") { extra: &[Key::Tenant] },
    /// Output tokens by tenant, including partial ones of aborted requests; only with `tenants`
    TenantOutputTokens = Counter(Scope::Process, "tokometer.tenant.output.tokens", "{token}")
        { extra: &[Key::Tenant, Key::Source] },
    /// Time from the last byte of the request to the first token of a streamed response, by tenant and priority class,
    /// regardless of its outcome; only with `tenants`
    TenantTimeToFirstToken = Histogram(Scope::Tenant, "tokometer.tenant.time_to_first_token", "s")
        { buckets: TENANT_WAIT },
    /// Time from the first token to the end, divided by the tokens after the first event, by tenant and priority class;
    /// successful streamed responses with an exact count only; only with `tenants`
    TenantTimePerOutputToken = Histogram(Scope::Tenant, "tokometer.tenant.time_per_output_token", "s")
        { buckets: TIME_PER_OUTPUT_TOKEN },
    /// Time from the last byte of the request to the end of a successful response of tokens, by tenant and priority
    /// class; only with `tenants`
    TenantRequestDuration = Histogram(Scope::Tenant, "tokometer.tenant.request.duration", "s")
        { buckets: TENANT_WAIT },
    /// Cost of responses at the configured prices; `source` marks it as exact, an estimate or a lower bound; only with
    /// `prices`
    Cost = Counter(Scope::Process, "tokometer.cost", "{currency}")
        { extra: &[Key::Model, Key::Tenant, Key::Currency, Key::Source] },
    /// Responses not included in any cost because their model has no price or their token count is unknown; only with
    /// `prices`
    Unpriced = Counter(Scope::Process, "tokometer.unpriced", "{request}") { extra: &[Key::Model, Key::Reason] },
    /// Amount of a budget used since the process started, in the budget's unit
    BudgetSpent = Counter(Scope::Process, "tokometer.budget.spent", "") { extra: &[Key::Budget, Key::Unit] },
    /// Daily limit of a budget (midnight to midnight UTC)
    BudgetLimit = Gauge(Scope::Process, "tokometer.budget.limit", "") { extra: &[Key::Budget, Key::Unit] },

    // The engine's own spans.

    /// Engine spans received; these metrics exist only where spans are received
    EngineSpansReceived = Counter(Scope::Process, "tokometer.engine_spans.received", "{span}"),
    /// Engine spans accepted by the collector
    EngineSpansForwarded = Counter(Scope::Process, "tokometer.engine_spans.forwarded", "{span}"),
    /// Engine spans received that did not reach the collector
    EngineSpansDropped = Counter(Scope::Process, "tokometer.engine_spans.dropped", "{span}") { extra: &[Key::Reason] },
    /// Engine spans of requests that matched no observed request
    EngineSpansUnjoined = Counter(Scope::Process, "tokometer.engine_spans.unjoined", "{span}")
        { extra: &[Key::Reason] },
    /// Export requests rejected with an error; an engine that receives `busy` retries them
    EngineMessagesRefused = Counter(Scope::Process, "tokometer.engine_spans.messages.refused", "{message}")
        { extra: &[Key::Reason] },
    /// Bytes of export requests being read or waiting to be forwarded
    EngineMessagesWaiting = Gauge(Scope::Process, "tokometer.engine_spans.messages.waiting", "By"),
    /// Requests by result of the search for their engine span; counted only while spans arrive
    SpanJoins = Counter(Scope::Process, "tokometer.span_joins", "{request}") { extra: &[Key::Result] },
    /// Requests waiting for their engine span
    SpanJoinsHeld = Gauge(Scope::Process, "tokometer.span_joins.held", "{request}"),

    // The process.

    /// User and system CPU time of this process
    Cpu = Counter(Scope::Process, "process.cpu", "s"),
    /// Resident memory of this process
    ResidentMemory = Gauge(Scope::Process, "process.resident_memory", "By"),
    /// Virtual memory of this process
    VirtualMemory = Gauge(Scope::Process, "process.virtual_memory", "By"),
    /// Open file descriptors of this process
    OpenFds = Gauge(Scope::Process, "process.open_fds", "{file_descriptor}"),
    /// Maximum number of open file descriptors of this process
    MaxFds = Gauge(Scope::Process, "process.max_fds", "{file_descriptor}"),
    /// Threads of this process
    Threads = Gauge(Scope::Process, "process.threads", "{thread}"),
    /// Start time of this process, in seconds since 1970
    StartTime = Gauge(Scope::Process, "process.start_time", "s"),
    /// Always 1, with the version as an attribute
    BuildInfo = Gauge(Scope::Process, "tokometer.build_info", "") { extra: &[Key::Version] },
}
