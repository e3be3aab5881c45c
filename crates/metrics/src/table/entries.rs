//! The catalog: every metric, in the order of the documentation.
//!
//! To add a metric, add one entry here and one line where its value is known: in the recorder, or in its owner's
//! [`Collect`](crate::Collect).

use crate::table::{Generation, Key, Kind, Metric, Scope};

/// Declares each metric once: the doc comment of its identifier is its help text.
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
            // Each line of a doc comment begins with a space.
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

/// Prompt attributes, added only if the settings enable them.
const PROMPT_CLASSES: &[Key] = &[Key::InputLengthClass, Key::CacheHitClass];

/// Attribute of values that engines report per data-parallel rank.
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

/// Timer delays. The data path counts delays in the same buckets, so the exported bucket counts are exact.
const DELAY: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];

/// Waits of requests: finer than the conventions between 100 ms and 10 s, where typical objectives are, and with a
/// higher maximum.
const WAIT: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0,
    20.0, 30.0, 60.0, 120.0, 300.0,
];

/// Waits of a tenant's requests: coarser than [`WAIT`], because there may be many tenants.
const TENANT_WAIT: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

/// Phases of a request: coarser than [`WAIT`], because every label set has one series per phase.
const PHASE: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

/// Round-trip times to clients, from the same pod (under 0.1 ms) to a satellite link.
const ROUND_TRIP: &[f64] = &[0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8];

/// Gaps between tokens, from speculative decoding (under 1 ms) to stalls.
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

    /// Time from the last byte of the request to the end of the response. If the request is incomplete, the time starts
    /// at its first byte
    RequestDuration = Histogram(Scope::GenAi, "gen_ai.server.request.duration", "s")
        { buckets: DURATION, extra: &[Key::ErrorType], exemplar: true },
    /// Time from the last byte of the request to the first token of a successful streamed response.
    /// tokometer.time_to_first_token covers all outcomes
    TimeToFirstToken = Histogram(Scope::GenAi, "gen_ai.server.time_to_first_token", "s")
        { buckets: TIME_TO_FIRST_TOKEN, optional: PROMPT_CLASSES, exemplar: true },
    /// Time from the first token to the end of the response, divided by the number of tokens after the first event.
    /// Recorded only for successful streamed responses with one choice, an exact token count, and no significant client
    /// backpressure
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
    /// Prompt tokens of one request, if the engine reported them
    OperationInput = Histogram(Scope::GenAi, "gen_ai.client.inference.operation.input_tokens", "{token}")
        { buckets: TOKENS, extra: &[Key::ErrorType], generation: Generation::Latest },
    /// Output tokens of one request, if the engine reported them
    OperationOutput = Histogram(Scope::GenAi, "gen_ai.client.inference.operation.output_tokens", "{token}")
        { buckets: TOKENS, extra: &[Key::ErrorType], generation: Generation::Latest },

    // Requests.

    /// Ended requests, each with exactly one outcome
    Requests = Counter(Scope::Request, "tokometer.requests", "{request}") { extra: &[Key::Outcome, Key::StatusClass] },
    /// Choices that ended with a finish reason. A request with `n` above 1 has several choices
    Finishes = Counter(Scope::Request, "tokometer.finishes", "{choice}") { extra: &[Key::FinishReason] },
    /// Time from the last byte of the request to the end of the response headers
    OwnTimeToHeaders = Histogram(Scope::Request, "tokometer.time_to_headers", "s")
        { buckets: WAIT, extra: &[Key::OutcomeClass], exemplar: true },
    /// Time from the last byte of the request to the first event of a streamed response
    OwnTimeToFirstEvent = Histogram(Scope::Request, "tokometer.time_to_first_event", "s")
        { buckets: WAIT, extra: &[Key::OutcomeClass], exemplar: true },
    /// Time from the last byte of the request to the first token of any kind in a streamed response, for all outcomes
    OwnTimeToFirstToken = Histogram(Scope::Request, "tokometer.time_to_first_token", "s")
        { buckets: WAIT, extra: &[Key::OutcomeClass], optional: PROMPT_CLASSES, exemplar: true },
    /// Time from the last byte of the request to the first visible content of a streamed response (not reasoning or
    /// tool calls)
    OwnTimeToFirstVisible = Histogram(Scope::Request, "tokometer.time_to_first_visible", "s")
        { buckets: WAIT, extra: &[Key::OutcomeClass], optional: PROMPT_CLASSES, exemplar: true },
    /// Duration of requests without an observed first token: they ended before their first token, or their response was
    /// not streamed
    WaitWithoutFirstToken = Histogram(Scope::Request, "tokometer.wait_without_first_token", "s")
        { buckets: WAIT, extra: &[Key::Outcome], exemplar: true },
    /// Tokens per second between the first and the last token-bearing event of a stream. `source` marks lower bounds
    /// and estimates. Streams with several choices or significant client backpressure are excluded
    DecodeRate = Histogram(Scope::Request, "tokometer.decode.tokens", "{token}/s")
        { buckets: RATE, extra: &[Key::Source], exemplar: true },
    /// Time between tokens. The gap before an event with k tokens is recorded as k observations of gap/k
    InterTokenLatency = Histogram(Scope::Request, "tokometer.inter_token_latency", "s")
        { buckets: GAP, exemplar: true },
    /// Time between consecutive token-bearing events of a stream
    ChunkGap = Histogram(Scope::Request, "tokometer.chunk_gap", "s") { buckets: GAP, exemplar: true },
    /// Tokens per event, excluding the first event of a stream. Recorded only if the engine reports token counts per
    /// event
    ChunkTokens = Histogram(Scope::Request, "tokometer.chunk.tokens", "{token}") { buckets: CHUNK_TOKENS },
    /// Gaps between tokens that are longer than the stall threshold and not explained by the stream's own cadence
    /// (docs/concepts/stalls.md). Gaps caused by the client are excluded
    Stalls = Counter(Scope::Request, "tokometer.stalls", "{stall}"),
    /// Uncached prompt tokens per second of prefill (time to first token minus queue time). Recorded only if cached
    /// tokens and queue time are known
    PrefillRate = Histogram(Scope::Request, "tokometer.prefill.tokens", "{token}/s")
        { buckets: PREFILL_RATE, extra: &[Key::Source], optional: PROMPT_CLASSES, exemplar: true },
    /// Time in the server's queue. With the source `remainder` (Ollama), it includes a few milliseconds of templating
    /// and tokenizing
    QueueTime = Histogram(Scope::Request, "tokometer.queue.time", "s")
        { buckets: WAIT, extra: &[Key::Source], exemplar: true },
    /// Duration of each request phase. The phases of a request add up to its total duration, from its first byte to its
    /// end
    PhaseDuration = Histogram(Scope::Request, "tokometer.phase.duration", "s")
        { buckets: PHASE, extra: &[Key::Phase], exemplar: true },
    /// Time that a response was blocked on a slow client (backpressure)
    DeliveryBlocked = Histogram(Scope::Request, "tokometer.delivery.blocked", "s") { buckets: WAIT, exemplar: true },
    /// Minimum round-trip time to the client in the 5 minutes (sysctl `tcp_min_rtt_wlen`) before the request ended. Not
    /// recorded if it cannot be measured, as on Unix sockets
    NetworkRtt = Histogram(Scope::Request, "tokometer.network.rtt", "s") { buckets: ROUND_TRIP, exemplar: true },
    /// TCP segments retransmitted to the client during requests
    NetworkRetransmits = Counter(Scope::Request, "tokometer.network.retransmits", "{segment}"),
    /// Time during which the client's TCP receive window was full. Recorded only for requests in which this occurred
    NetworkZeroWindow = Histogram(Scope::Request, "tokometer.network.zero_window", "s")
        { buckets: PHASE, exemplar: true },
    /// Prompt tokens, including cached ones
    InputTokens = Counter(Scope::Request, "tokometer.input.tokens", "{token}") { extra: &[Key::Source] },
    /// Output tokens of ended requests, including partial output of aborted requests
    OutputTokens = Counter(Scope::Request, "tokometer.output.tokens", "{token}") { extra: &[Key::Source] },
    /// Prompt tokens read from the engine's cache, if the engine reports them
    CachedTokens = Counter(Scope::Request, "tokometer.cached.tokens", "{token}"),
    /// Prompt tokens written to the engine's cache, if the engine reports them
    CacheCreationTokens = Counter(Scope::Request, "tokometer.cache_creation.tokens", "{token}"),
    /// Audio tokens in prompts, if the engine reports them
    InputAudioTokens = Counter(Scope::Request, "tokometer.input.audio.tokens", "{token}"),
    /// Image tokens in prompts, if the engine reports them
    InputImageTokens = Counter(Scope::Request, "tokometer.input.image.tokens", "{token}"),
    /// Video tokens in prompts, if the engine reports them
    InputVideoTokens = Counter(Scope::Request, "tokometer.input.video.tokens", "{token}"),
    /// Reasoning tokens in the output, if the engine reports them
    ReasoningTokens = Counter(Scope::Request, "tokometer.reasoning.tokens", "{token}"),
    /// Audio tokens in the output, if the engine reports them
    OutputAudioTokens = Counter(Scope::Request, "tokometer.output.audio.tokens", "{token}"),
    /// Output tokens, counted while they are streamed. During a stream, the count is a lower bound. At the end of the
    /// stream, it is corrected upward
    LiveTokens = Counter(Scope::Request, "tokometer.live.tokens", "{token}"),
    /// Bytes of request bodies
    RequestBody = Counter(Scope::Request, "tokometer.request.body", "By"),
    /// Bytes of response bodies
    ResponseBody = Counter(Scope::Request, "tokometer.response.body", "By"),

    // Requests in flight and recently ended requests.

    /// Requests in flight
    InFlight = UpDownCounter(Scope::Listener, "tokometer.in_flight", "{request}") { extra: &[Key::Phase] },
    /// Mean age of the requests in flight, from their first byte; absent if no requests are in flight
    InFlightMeanAge = Gauge(Scope::Listener, "tokometer.in_flight.age.mean", "s") { extra: &[Key::Phase] },
    /// Age of the oldest request in flight; absent if no requests are in flight
    InFlightOldest = Gauge(Scope::Listener, "tokometer.in_flight.age.max", "s") { extra: &[Key::Phase] },
    /// Longest current wait of any request in flight for its first or next token; absent if no requests are in flight
    InFlightWaited = Gauge(Scope::Listener, "tokometer.in_flight.wait.max", "s") { extra: &[Key::Phase] },
    /// Streams whose current wait for the next token is longer than the stall threshold and not explained by their own
    /// cadence (docs/concepts/stalls.md). Streams blocked on a slow client are excluded
    InFlightStalled = Gauge(Scope::Listener, "tokometer.in_flight.stalled", "{request}"),
    /// Requests in flight that are blocked on a slow client (backpressure)
    InFlightBlocked = Gauge(Scope::Listener, "tokometer.in_flight.blocked", "{request}"),
    /// Requests not tracked while in flight, because 65,536 requests were already tracked or, rarely, because all
    /// internal locks were held. They are still recorded when they end
    InFlightUntracked = Counter(Scope::Process, "tokometer.in_flight.untracked", "{request}"),
    /// While requests are pending: time for which the engine has sent no token to any client, on any listener with this
    /// upstream. Otherwise 0
    EngineSilence = Gauge(Scope::Server, "tokometer.engine.silence", "s"),
    /// Maximum silence allowed for the pending requests; absent if no requests are pending
    EngineSilenceBound = Gauge(Scope::Server, "tokometer.engine.silence.bound", "s"),
    /// 1 while the engine or one of its data-parallel ranks has been silent for longer than its bound (/engine/healthz
    /// then returns 503), else 0
    EngineWedged = Gauge(Scope::Server, "tokometer.engine.wedged", ""),
    /// 0 while the server accepts no connections and no request makes progress (/engine/healthz then returns 503), else
    /// 1. Absent until known, and always absent for the upstream `original`
    EngineReachable = Gauge(Scope::Server, "tokometer.engine.reachable", ""),
    /// Ended requests kept for /requests
    RecentRequests = Gauge(Scope::Process, "tokometer.recent.requests", "{request}"),
    /// Memory used by the ended requests kept for /requests
    RecentMemory = Gauge(Scope::Process, "tokometer.recent.memory", "By"),
    /// Ended requests not kept for /requests because they ended faster than they could be stored
    RecentDropped = Counter(Scope::Process, "tokometer.recent.dropped", "{request}"),
    /// Requests whose records were dropped because too many were waiting to be processed. They are missing from all
    /// request metrics except tokometer.requests, which counts them by operation, server and outcome
    RecordsDropped = Counter(Scope::Process, "tokometer.records.dropped", "{request}"),
    /// Access log lines lost; absent if the access log is disabled
    AccessLogDropped = Counter(Scope::Process, "tokometer.access_log.dropped", "{line}") { extra: &[Key::Reason] },

    // Connections and observers.

    /// Connections of which a part could not be parsed, once per part; the affected requests are recorded with the outcome
    /// `unobserved`
    ObserverDetached = Counter(Scope::Listener, "tokometer.observer.detached", "{connection}") { extra: &[Key::Reason] },
    /// Bytes relayed on connections in which requests cannot be recognised (TLS, another protocol)
    ObserverUnparsed = Counter(Scope::Listener, "tokometer.observer.unparsed.io", "By") { extra: &[Key::Direction] },
    /// Bodies relayed but not fully parsed because of their compression
    BodiesUnread = Counter(Scope::Listener, "tokometer.observer.bodies.unread", "{body}")
        { extra: &[Key::Direction, Key::Reason] },
    /// Connections accepted
    ConnectionsOpened = Counter(Scope::Listener, "tokometer.connections.opened", "{connection}"),
    /// Open connections
    ConnectionsOpen = UpDownCounter(Scope::Listener, "tokometer.connections.open", "{connection}"),
    /// Connections refused because a maximum was reached: of open files (reason `descriptors`), the container's memory
    /// limit (`memory`), or `relay.max_connections` (`max_connections`)
    ConnectionsRefused = Counter(Scope::Listener, "tokometer.connections.refused", "{connection}")
        { extra: &[Key::Reason] },
    /// Connections closed near the maximum to make room for new ones. They waited for the rest of a request, also after
    /// bytes that are no request (reason `incomplete`), or for the next request (`idle`)
    ConnectionsEvicted = Counter(Scope::Listener, "tokometer.connections.evicted", "{connection}")
        { extra: &[Key::Reason] },
    /// Client connections whose TLS handshake failed or timed out; 0 on listeners without TLS
    HandshakeFailures = Counter(Scope::Listener, "tokometer.connections.handshake_failures", "{connection}"),
    /// Client connections for which tokometer could not connect to the server. Reasons: `refused`, `timeout`,
    /// `name_resolution`, `unreachable` (no route), `tls` (handshake failed), `other`
    ConnectFailures = Counter(Scope::Listener, "tokometer.connect.failures", "{connection}") { extra: &[Key::Reason] },
    /// Requests in rewrite mode, by rewrite and result
    RewriteRequests = Counter(Scope::Listener, "tokometer.rewrite.requests", "{request}")
        { extra: &[Key::Rewrite, Key::Result] },
    /// Bytes relayed, including headers and framing
    RelayIo = Counter(Scope::Listener, "tokometer.relay.io", "By") { extra: &[Key::Direction] },
    /// Always 1. The attributes report how traffic to the server is intercepted and whether clients can bypass tokometer
    /// (`open`), or another process on the machine did in the last 15 minutes (`bypassed`). Absent while the server does
    /// not respond
    Interception = Gauge(Scope::Listener, "tokometer.interception", "") { extra: &[Key::Mode, Key::Result] },
    /// Always 1; `state` reports whether the listener accepts clients
    Listening = Gauge(Scope::Listener, "tokometer.listening", "") { extra: &[Key::State] },
    /// Connections currently observed
    ObserverConnections = Gauge(Scope::Process, "tokometer.observer.connections", "{connection}"),
    /// Time spent observing relayed bytes: tokometer's own overhead on the data path's threads
    ObserverTime = Counter(Scope::Process, "tokometer.observer.time", "s"),
    /// Bytes produced by decompressing bodies and messages. If several codings are nested (gzip inside br), the output
    /// of each one counts
    ObserverDecoded = Counter(Scope::Process, "tokometer.observer.decoded", "By"),
    /// Memory charged to the budget (`observe.memory`): observer data whose size depends on clients
    ObserverMemory = Gauge(Scope::Process, "tokometer.observer.memory", "By"),
    /// Memory budget (`observe.memory`)
    ObserverMemoryLimit = Gauge(Scope::Process, "tokometer.observer.memory.limit", "By"),
    /// Memory reservations refused because the budget was exhausted
    ObserverMemoryRefused = Counter(Scope::Process, "tokometer.observer.memory.refused", "{request}"),
    /// Largest current timer delay of all data path threads. For each thread, this is the delay of the last timer, or
    /// of the timer that is overdue now. The resolution is 1 ms
    EventLoopLag = Gauge(Scope::Process, "tokometer.event_loop.lag", "s"),
    /// Timer delays on the data path's threads, from ten timers per second on each thread. Other work on a thread is
    /// delayed as much as its timers (docs/concepts/stalls.md)
    EventLoopDelay = Histogram(Scope::Process, "tokometer.event_loop.delay", "s")
        { buckets: DELAY, extra: &[Key::Thread] },
    /// Responses whose tokens neither the engine nor the tokenizer counted; recorded only with `observe.tokenizer`
    TokenizerUncounted = Counter(Scope::Process, "tokometer.tokenizer.uncounted", "{response}")
        { extra: &[Key::Reason] },

    // Captured packets; only in `tokometer tap`.

    /// Packets captured. All capture metrics exist only in `tokometer tap`
    CapturePackets = Counter(Scope::Process, "tokometer.capture.packets", "{packet}"),
    /// Packets dropped by the kernel because the capture was too slow. Requests that are open at that time are marked
    /// with `capture_loss`. An HTTP/1 connection with missing bytes is observed again from its next request; HTTP/2 and
    /// WebSocket clients are observed again after they reconnect
    CaptureLost = Counter(Scope::Process, "tokometer.capture.packets.lost", "{packet}"),
    /// Captured packets that could not be fully parsed: invalid headers (`malformed`), IP fragments (`fragment`), or
    /// packets longer than the capture allows (`truncated`)
    CaptureUnread = Counter(Scope::Process, "tokometer.capture.packets.unread", "{packet}") { extra: &[Key::Reason] },
    /// TCP segments from and to the captured ports, without duplicates
    CaptureSegments = Counter(Scope::Process, "tokometer.capture.segments", "{segment}"),
    /// Segments captured twice (`duplicate`), captured before an earlier segment (`out_of_order`), or retransmitted
    /// (`retransmitted`), segments that their receiver ignores, such as resets with a wrong sequence number (`ignored`),
    /// and segments of connections that were not followed because too many were open (`shed`)
    CaptureIrregular = Counter(Scope::Process, "tokometer.capture.segments.irregular", "{segment}")
        { extra: &[Key::Kind] },
    /// Captured connections: captured from their beginning (`opened`), already open when first captured (`attached`),
    /// observed from a later request on (`synchronised`), and not observable because of TLS (`tls`)
    CaptureConnections = Counter(Scope::Process, "tokometer.capture.connections", "{connection}")
        { extra: &[Key::Kind] },
    /// Captured connections that are open
    CaptureOpen = UpDownCounter(Scope::Process, "tokometer.capture.connections.open", "{connection}"),
    /// Open connections that are not observed until their next request
    CaptureUnsynchronised = UpDownCounter(Scope::Process, "tokometer.capture.connections.unsynchronised", "{connection}"),
    /// Gaps in captured connections that could not be filled; the open requests of these connections are recorded with
    /// the outcome `unobserved`
    CaptureGaps = Counter(Scope::Process, "tokometer.capture.gaps", "{gap}"),
    /// Captured bytes that were observed, including headers and framing
    CaptureIo = Counter(Scope::Process, "tokometer.capture.io", "By") { extra: &[Key::Direction] },
    /// Bytes captured while their connection was not observable
    CaptureUnobserved = Counter(Scope::Process, "tokometer.capture.unobserved", "By"),
    /// Captured bytes held until a missing earlier segment arrives
    CaptureReassembly = Gauge(Scope::Process, "tokometer.capture.reassembly.memory", "By"),
    /// Number of times that the capture buffer (`tap.buffer`) became full
    CaptureRingFull = Counter(Scope::Process, "tokometer.capture.ring.full", ""),
    /// Maximum share of the capture buffer in use in the last 30 to 60 s
    CaptureRingUsed = Gauge(Scope::Process, "tokometer.capture.ring.used", "1"),

    // The engine's own metrics.

    /// Requests being processed by the engine, from the engine's own metrics
    EngineRunning = Gauge(Scope::Server, "tokometer.engine.requests.running", "{request}") { extra: RANK },
    /// Requests waiting in the engine's queue, from the engine's own metrics
    EngineWaiting = Gauge(Scope::Server, "tokometer.engine.requests.waiting", "{request}") { extra: RANK },
    /// Share of the engine's KV cache in use, from the engine's own metrics
    EngineKvUsage = Gauge(Scope::Server, "tokometer.engine.kv_cache.usage", "1") { extra: RANK },
    /// Lookups in the engine's prefix cache, in the engine's unit (tokens or blocks)
    EngineCacheQueries = Counter(Scope::Server, "tokometer.engine.prefix_cache.queries", "") { extra: RANK },
    /// Hits in the engine's prefix cache, in the engine's unit (tokens or blocks)
    EngineCacheHits = Counter(Scope::Server, "tokometer.engine.prefix_cache.hits", "") { extra: RANK },
    /// Recent hit ratio of the engine's prefix cache
    EngineCacheRatio = Gauge(Scope::Server, "tokometer.engine.prefix_cache.hit_ratio", "1") { extra: &[Key::DataParallelRank, Key::Source] },
    /// Iterations (forward passes with output) of the engine, from the engine's own metrics
    EngineIterations = Counter(Scope::Server, "tokometer.engine.iterations", "{iteration}") { extra: RANK },
    /// Time for which the engine, or this data-parallel rank, has completed no iteration although its own metrics
    /// report running requests. 0 while iterations continue or no requests are running
    EngineIterationsStopped = Gauge(Scope::Server, "tokometer.engine.iterations.stopped", "s") { extra: RANK },
    /// Output tokens generated by the engine, from the engine's own metrics, including tokens for disconnected clients
    EngineGenerated = Counter(Scope::Server, "tokometer.engine.tokens.generated", "{token}") { extra: RANK },
    /// Preemptions by the engine: a request was interrupted in favor of other requests, and restarted later
    EnginePreemptions = Counter(Scope::Server, "tokometer.engine.preemptions", "{preemption}") { extra: RANK },
    /// Tokens proposed by the engine's speculative decoding
    EngineDrafted = Counter(Scope::Server, "tokometer.engine.speculative.drafted", "{token}") { extra: RANK },
    /// Proposed tokens accepted by the engine's model
    EngineAccepted = Counter(Scope::Server, "tokometer.engine.speculative.accepted", "{token}") { extra: RANK },
    /// Recent share of proposed tokens accepted by the engine's model
    EngineAcceptanceRatio = Gauge(Scope::Server, "tokometer.engine.speculative.acceptance_ratio", "1")
        { extra: &[Key::DataParallelRank, Key::Source] },
    /// Total time that requests waited in the engine's queue, from the engine's own metrics; most engines count a wait
    /// when the request ends
    EngineQueueTime = Counter(Scope::Server, "tokometer.engine.queue.time", "s") { extra: RANK },
    /// Requests whose waits are included in tokometer.engine.queue.time
    EngineQueueRequests = Counter(Scope::Server, "tokometer.engine.queue.requests", "{request}") { extra: RANK },
    /// Total time of KV cache transfers from other engines (disaggregated prefill), from the engine's own metrics
    EngineKvTransferTime = Counter(Scope::Server, "tokometer.engine.kv_transfer.time", "s") { extra: RANK },
    /// Transfers included in tokometer.engine.kv_transfer.time
    EngineKvTransfers = Counter(Scope::Server, "tokometer.engine.kv_transfers", "{transfer}") { extra: RANK },
    /// Mean queue wait of the requests that the engine added to its queue metrics between the last two scrapes. This is
    /// an estimate for the whole engine, not the wait of an individual request
    QueueTimeEstimate = Gauge(Scope::Server, "tokometer.queue.time.estimate", "s") { extra: &[Key::DataParallelRank, Key::Source] },
    /// Always 1, with the engine's name and version as attributes. Only for engines that report their version (vLLM),
    /// and absent while the engine's metrics are not scraped
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
    /// Traces that the sampler would have dropped, kept because the request failed, missed an objective, stalled or was
    /// slow
    TracesKept = Counter(Scope::Process, "tokometer.telemetry.traces.kept", "{trace}") { extra: &[Key::Reason] },
    /// Traces that qualified to be kept regardless of the sampler, but were dropped because
    /// `otlp.traces.keep_per_second` was reached
    TracesCapped = Counter(Scope::Process, "tokometer.telemetry.traces.capped", "{trace}"),
    /// OTLP exports attempted
    Exports = Counter(Scope::Process, "tokometer.telemetry.exports", "{export}") { extra: &[Key::Signal] },
    /// OTLP exports that failed after their retries
    ExportsFailed = Counter(Scope::Process, "tokometer.telemetry.exports.failed", "{export}") { extra: &[Key::Signal] },
    /// Requests with an attribute value replaced by `other` because a maximum was reached
    LabelsFolded = Counter(Scope::Process, "tokometer.labels.folded", "{request}") { extra: &[Key::Kind] },

    /// 1 if the last load of the configuration succeeded; 0 if the configuration file has errors and the previous
    /// configuration stays in effect
    ConfigReload = Gauge(Scope::Process, "tokometer.config.last_reload.successful", ""),

    // Objectives.

    /// Requests evaluated against an objective; bad requests have a reason
    SloEvents = Counter(Scope::Process, "tokometer.slo.events", "{request}")
        { extra: &[Key::Slo, Key::Model, Key::Verdict, Key::Reason] },
    /// Estimated requests that a server with recent traffic did not receive while it was unreachable or wedged: the request
    /// rate before the outage multiplied by its duration, without requests that were measured meanwhile. The rules
    /// count them as bad while no server of the model is healthy (docs/concepts/objectives.md)
    SloLost = Counter(Scope::Process, "tokometer.slo.lost.events", "{request}") { extra: &[Key::Slo, Key::Model] },
    /// Requests in an objective's scope that were not evaluated, because the server was not the cause or too little is
    /// known about the request
    SloExcluded = Counter(Scope::Process, "tokometer.slo.excluded", "{request}")
        { extra: &[Key::Slo, Key::Model, Key::Reason] },
    /// Output tokens of requests that met a goodput objective
    SloGoodTokens = Counter(Scope::Process, "tokometer.slo.good_output.tokens", "{token}")
        { extra: &[Key::Slo, Key::Model, Key::Source] },
    /// Target share of good requests for an objective
    SloObjective = Gauge(Scope::Process, "tokometer.slo.objective", "1") { extra: &[Key::Slo] },
    /// Threshold of an objective, in the unit given by the label `threshold`
    SloThreshold = Gauge(Scope::Process, "tokometer.slo.threshold", "") { extra: &[Key::Slo, Key::Threshold] },

    // Tenants, cost and budgets.

    /// Requests by tenant; only with `tenants.enabled`
    TenantRequests = Counter(Scope::Process, "tokometer.tenant.requests", "{request}")
        { extra: &[Key::Tenant, Key::OutcomeClass] },
    /// Prompt tokens by tenant, including cached ones; only with `tenants.enabled`
    TenantInputTokens = Counter(Scope::Process, "tokometer.tenant.input.tokens", "{token}")
        { extra: &[Key::Tenant, Key::Source] },
    /// Prompt tokens by tenant that were read from the engine's cache, if the engine reports them; only with
    /// `tenants.enabled`
    TenantCachedTokens = Counter(Scope::Process, "tokometer.tenant.cached.tokens", "{token}") { extra: &[Key::Tenant] },
    /// Output tokens by tenant, including partial output of aborted requests; only with `tenants.enabled`
    TenantOutputTokens = Counter(Scope::Process, "tokometer.tenant.output.tokens", "{token}")
        { extra: &[Key::Tenant, Key::Source] },
    /// By tenant and priority class: time from the last byte of the request to the first token of a streamed response,
    /// for all outcomes. Only with `tenants.enabled`
    TenantTimeToFirstToken = Histogram(Scope::Tenant, "tokometer.tenant.time_to_first_token", "s")
        { buckets: TENANT_WAIT },
    /// By tenant and priority class: time from the first token to the end of the response, divided by the number of
    /// tokens after the first event. Recorded only for successful streamed responses with one choice, an exact token
    /// count, and no significant client backpressure. Only with `tenants.enabled`
    TenantTimePerOutputToken = Histogram(Scope::Tenant, "tokometer.tenant.time_per_output_token", "s")
        { buckets: TIME_PER_OUTPUT_TOKEN },
    /// By tenant and priority class: time from the last byte of the request to the end of a successful response.
    /// Recorded only on routes that generate tokens, and only with `tenants.enabled`
    TenantRequestDuration = Histogram(Scope::Tenant, "tokometer.tenant.request.duration", "s")
        { buckets: TENANT_WAIT },
    /// Cost of responses at the configured prices; only with `prices`. `source` marks exact costs, estimates and lower
    /// bounds
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

    /// Engine spans received. All engine span metrics exist only with `engine_spans.listen`
    EngineSpansReceived = Counter(Scope::Process, "tokometer.engine_spans.received", "{span}"),
    /// Engine spans accepted by the collector
    EngineSpansForwarded = Counter(Scope::Process, "tokometer.engine_spans.forwarded", "{span}"),
    /// Received engine spans that did not reach the collector
    EngineSpansDropped = Counter(Scope::Process, "tokometer.engine_spans.dropped", "{span}") { extra: &[Key::Reason] },
    /// Engine spans that matched no observed request
    EngineSpansUnjoined = Counter(Scope::Process, "tokometer.engine_spans.unjoined", "{span}")
        { extra: &[Key::Reason] },
    /// OTLP export requests rejected with an error. The engine retries requests rejected as `busy`
    EngineMessagesRefused = Counter(Scope::Process, "tokometer.engine_spans.messages.refused", "{message}")
        { extra: &[Key::Reason] },
    /// Bytes of OTLP export requests that are being read or waiting to be forwarded
    EngineMessagesWaiting = Gauge(Scope::Process, "tokometer.engine_spans.messages.waiting", "By"),
    /// Requests, by the result of matching them with engine spans. Counted only while engine spans arrive
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
    /// Always 1, with tokometer's version as an attribute
    BuildInfo = Gauge(Scope::Process, "tokometer.build_info", "") { extra: &[Key::Version] },
}
