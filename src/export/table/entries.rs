//! The entries, in the order of the documentation.

use crate::export::table::Generation;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Kind;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::Stability;
use crate::export::table::buckets;

const fn entry(id: Id, name: &'static str, unit: &'static str, kind: Kind, scope: Scope, help: &'static str) -> Metric {
    Metric {
        id,
        name,
        unit,
        kind,
        help,
        buckets: &[],
        scope,
        extra: &[],
        optional: &[],
        stability: Stability::Stable,
        generation: Generation::Every,
        exemplar: false,
    }
}

/// A metric of the GenAI conventions.
const fn gen_ai(mut metric: Metric, generation: Generation) -> Metric {
    metric.stability = Stability::Development;
    metric.generation = generation;
    metric
}

const fn counter(id: Id, name: &'static str, unit: &'static str, scope: Scope, help: &'static str) -> Metric {
    entry(id, name, unit, Kind::Counter, scope, help)
}

const fn gauge(id: Id, name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    entry(id, name, unit, Kind::Gauge, Scope::Process, help)
}

const fn histogram(
    id: Id,
    name: &'static str,
    unit: &'static str,
    scope: Scope,
    bounds: &'static [f64],
    help: &'static str,
) -> Metric {
    let mut metric = entry(id, name, unit, Kind::Histogram, scope, help);
    metric.buckets = bounds;
    metric
}

const fn by(mut metric: Metric, extra: &'static [Key]) -> Metric {
    metric.extra = extra;
    metric
}

/// A wait for the first token: it may be told apart by the prompt.
const fn by_prompt(mut metric: Metric) -> Metric {
    metric.optional = &[Key::InputLengthClass, Key::CacheHitClass];
    metric
}

/// Recorded once per exchange: its buckets can point to the exchange's span.
const fn traced(mut metric: Metric) -> Metric {
    metric.exemplar = true;
    metric
}

/// Every metric that is recorded or observed. `target_info` stands beside it: it is made from the resource.
pub static TABLE: [Metric; 60] = [
    gen_ai(
        traced(by(
            histogram(
                Id::RequestDuration,
                "gen_ai.server.request.duration",
                "s",
                Scope::GenAi,
                buckets::DURATION,
                "From the last byte of the request (from its first where it never ended) to the end of the exchange",
            ),
            &[Key::ErrorType],
        )),
        Generation::Every,
    ),
    gen_ai(
        traced(by_prompt(histogram(
            Id::TimeToFirstToken,
            "gen_ai.server.time_to_first_token",
            "s",
            Scope::GenAi,
            buckets::TIME_TO_FIRST_TOKEN,
            "Time to the first token of streamed answers that ended well; see tokometer.time_to_first_token for all",
        ))),
        Generation::Every,
    ),
    gen_ai(
        traced(histogram(
            Id::TimePerOutputToken,
            "gen_ai.server.time_per_output_token",
            "s",
            Scope::GenAi,
            buckets::TIME_PER_OUTPUT_TOKEN,
            "From the first token to the end, by the tokens after the first event; streamed answers that ended well and whose count is exact",
        )),
        Generation::Every,
    ),
    gen_ai(
        by(
            histogram(
                Id::TokenUsage,
                "gen_ai.client.token.usage",
                "{token}",
                Scope::GenAi,
                buckets::TOKENS,
                "Tokens of one exchange, by the engine's own count",
            ),
            &[Key::TokenType],
        ),
        Generation::V1_41,
    ),
    gen_ai(
        by(
            counter(
                Id::UsageInput,
                "gen_ai.client.inference.usage.input_tokens",
                "{token}",
                Scope::GenAi,
                "Prompt tokens, cached ones included",
            ),
            &[Key::TokenModality],
        ),
        Generation::Latest,
    ),
    gen_ai(
        by(
            counter(
                Id::UsageOutput,
                "gen_ai.client.inference.usage.output_tokens",
                "{token}",
                Scope::GenAi,
                "Output tokens, reasoning included",
            ),
            &[Key::TokenModality],
        ),
        Generation::Latest,
    ),
    gen_ai(
        by(
            counter(
                Id::UsageCacheRead,
                "gen_ai.client.inference.usage.cache_read.input_tokens",
                "{token}",
                Scope::GenAi,
                "Prompt tokens that came from the engine's cache",
            ),
            &[Key::TokenModality],
        ),
        Generation::Latest,
    ),
    gen_ai(
        by(
            counter(
                Id::UsageCacheWrite,
                "gen_ai.client.inference.usage.cache_write.input_tokens",
                "{token}",
                Scope::GenAi,
                "Prompt tokens that were written to the engine's cache",
            ),
            &[Key::TokenModality],
        ),
        Generation::Latest,
    ),
    gen_ai(
        by(
            counter(
                Id::UsageReasoning,
                "gen_ai.client.inference.usage.reasoning.output_tokens",
                "{token}",
                Scope::GenAi,
                "Output tokens that were reasoning",
            ),
            &[Key::TokenModality],
        ),
        Generation::Latest,
    ),
    gen_ai(
        by(
            histogram(
                Id::OperationInput,
                "gen_ai.client.inference.operation.input_tokens",
                "{token}",
                Scope::GenAi,
                buckets::TOKENS,
                "Prompt tokens of one exchange, where the engine told them",
            ),
            &[Key::ErrorType],
        ),
        Generation::Latest,
    ),
    gen_ai(
        by(
            histogram(
                Id::OperationOutput,
                "gen_ai.client.inference.operation.output_tokens",
                "{token}",
                Scope::GenAi,
                buckets::TOKENS,
                "Output tokens of one exchange, where the engine told them",
            ),
            &[Key::ErrorType],
        ),
        Generation::Latest,
    ),
    by(
        counter(
            Id::Exchanges,
            "tokometer.exchanges",
            "{exchange}",
            Scope::Exchange,
            "Exchanges that ended, each in exactly one outcome",
        ),
        &[Key::Outcome, Key::StatusClass],
    ),
    by(
        counter(
            Id::Finishes,
            "tokometer.finishes",
            "{choice}",
            Scope::Exchange,
            "Choices that gave a finish reason (an exchange may have several)",
        ),
        &[Key::FinishReason],
    ),
    traced(by(
        histogram(
            Id::OwnTimeToHeaders,
            "tokometer.time_to_headers",
            "s",
            Scope::Exchange,
            buckets::WAIT,
            "From the last byte of the request to the end of the response head",
        ),
        &[Key::OutcomeClass],
    )),
    traced(by(
        histogram(
            Id::OwnTimeToFirstEvent,
            "tokometer.time_to_first_event",
            "s",
            Scope::Exchange,
            buckets::WAIT,
            "From the last byte of the request to the first event of a streamed answer",
        ),
        &[Key::OutcomeClass],
    )),
    traced(by_prompt(by(
        histogram(
            Id::OwnTimeToFirstToken,
            "tokometer.time_to_first_token",
            "s",
            Scope::Exchange,
            buckets::WAIT,
            "From the last byte of the request to the first token on any channel of a streamed answer, however it ended",
        ),
        &[Key::OutcomeClass],
    ))),
    traced(by_prompt(by(
        histogram(
            Id::OwnTimeToFirstVisible,
            "tokometer.time_to_first_visible",
            "s",
            Scope::Exchange,
            buckets::WAIT,
            "From the last byte of the request to the first visible content of a streamed answer",
        ),
        &[Key::OutcomeClass],
    ))),
    traced(by(
        histogram(
            Id::WaitWithoutFirstToken,
            "tokometer.wait_without_first_token",
            "s",
            Scope::Exchange,
            buckets::WAIT,
            "How long exchanges waited that ended without a token",
        ),
        &[Key::Outcome],
    )),
    traced(by(
        histogram(
            Id::DecodeRate,
            "tokometer.decode.tokens",
            "{token}/s",
            Scope::Exchange,
            buckets::RATE,
            "Tokens per second between the first and the last token-bearing event of one stream; a lower bound where `source` says so",
        ),
        &[Key::Source],
    )),
    histogram(
        Id::InterTokenLatency,
        "tokometer.inter_token_latency",
        "s",
        Scope::Exchange,
        buckets::GAP,
        "Gap between token-bearing events by the tokens in the event: k observations of gap/k",
    ),
    histogram(
        Id::ChunkGap,
        "tokometer.chunk_gap",
        "s",
        Scope::Exchange,
        buckets::GAP,
        "Gap between token-bearing events",
    ),
    histogram(
        Id::ChunkTokens,
        "tokometer.chunk.tokens",
        "{token}",
        Scope::Exchange,
        buckets::CHUNK_TOKENS,
        "Tokens in one event after the first, where the engine tells them",
    ),
    counter(
        Id::Stalls,
        "tokometer.stalls",
        "{stall}",
        Scope::Exchange,
        "Gaps over the stall threshold that the client did not cause",
    ),
    traced(by_prompt(by(
        histogram(
            Id::PrefillRate,
            "tokometer.prefill.tokens",
            "{token}/s",
            Scope::Exchange,
            buckets::PREFILL_RATE,
            "Uncached prompt tokens by the time to the first token without the queue; only where cache and queue are known",
        ),
        &[Key::Source],
    ))),
    traced(by(
        histogram(
            Id::QueueTime,
            "tokometer.queue.time",
            "s",
            Scope::Exchange,
            buckets::WAIT,
            "Time in the server's queue; `remainder` (Ollama) has some milliseconds of templating and tokenizing with it",
        ),
        &[Key::Source],
    )),
    traced(histogram(
        Id::DeliveryBlocked,
        "tokometer.delivery.blocked",
        "s",
        Scope::Exchange,
        buckets::WAIT,
        "Time during which the client did not take bytes of the answer",
    )),
    by(
        counter(
            Id::InputTokens,
            "tokometer.input.tokens",
            "{token}",
            Scope::Exchange,
            "Prompt tokens, cached ones included",
        ),
        &[Key::Source],
    ),
    by(
        counter(
            Id::OutputTokens,
            "tokometer.output.tokens",
            "{token}",
            Scope::Exchange,
            "Output tokens of exchanges that ended, partial ones of aborted exchanges included",
        ),
        &[Key::Source],
    ),
    counter(
        Id::CachedTokens,
        "tokometer.cached.tokens",
        "{token}",
        Scope::Exchange,
        "Prompt tokens that came from the engine's cache, where it tells them",
    ),
    counter(
        Id::CacheCreationTokens,
        "tokometer.cache_creation.tokens",
        "{token}",
        Scope::Exchange,
        "Prompt tokens that were written to the engine's cache, where it tells them",
    ),
    counter(
        Id::InputAudioTokens,
        "tokometer.input.audio.tokens",
        "{token}",
        Scope::Exchange,
        "Prompt tokens that were audio, where the engine tells them",
    ),
    counter(
        Id::InputImageTokens,
        "tokometer.input.image.tokens",
        "{token}",
        Scope::Exchange,
        "Prompt tokens that were images, where the engine tells them",
    ),
    counter(
        Id::ReasoningTokens,
        "tokometer.reasoning.tokens",
        "{token}",
        Scope::Exchange,
        "Output tokens that were reasoning, where the engine tells them",
    ),
    counter(
        Id::OutputAudioTokens,
        "tokometer.output.audio.tokens",
        "{token}",
        Scope::Exchange,
        "Output tokens that were audio, where the engine tells them",
    ),
    counter(
        Id::LiveTokens,
        "tokometer.live.tokens",
        "{token}",
        Scope::Exchange,
        "Output tokens as they pass: a lower bound that is reconciled upward at the end of each stream",
    ),
    counter(Id::RequestBody, "tokometer.request.body", "By", Scope::Exchange, "Bytes of request bodies"),
    counter(Id::ResponseBody, "tokometer.response.body", "By", Scope::Exchange, "Bytes of response bodies"),
    by(
        entry(
            Id::InFlight,
            "tokometer.in_flight",
            "{exchange}",
            Kind::UpDownCounter,
            Scope::Server,
            "Exchanges that are open",
        ),
        &[Key::Phase],
    ),
    by(
        counter(
            Id::ObserverDetached,
            "tokometer.observer.detached",
            "{connection}",
            Scope::Server,
            "Connections that are relayed without being read any more",
        ),
        &[Key::Reason],
    ),
    by(
        counter(
            Id::BodiesUnread,
            "tokometer.observer.bodies.unread",
            "{body}",
            Scope::Server,
            "Bodies that are relayed without being read, or not to their end, because of their compression",
        ),
        &[Key::Direction, Key::Reason],
    ),
    counter(
        Id::ConnectionsOpened,
        "tokometer.connections.opened",
        "{connection}",
        Scope::Server,
        "Connections accepted",
    ),
    entry(
        Id::ConnectionsOpen,
        "tokometer.connections.open",
        "{connection}",
        Kind::UpDownCounter,
        Scope::Server,
        "Connections that are open",
    ),
    by(
        counter(
            Id::ConnectFailures,
            "tokometer.connect.failures",
            "{connection}",
            Scope::Server,
            "Connections for which the server could not be reached",
        ),
        &[Key::Reason],
    ),
    by(
        counter(Id::RelayIo, "tokometer.relay.io", "By", Scope::Server, "Bytes relayed, heads and framing included"),
        &[Key::Direction],
    ),
    gauge(Id::ObserverConnections, "tokometer.observer.connections", "{connection}", "Connections that are being read"),
    counter(
        Id::ObserverTime,
        "tokometer.observer.time",
        "s",
        Scope::Process,
        "Time spent reading what passed: our own overhead on the data path's threads",
    ),
    gauge(Id::EventLoopLag, "tokometer.event_loop.lag", "s", "How late the data path's timers fired last"),
    counter(Id::SpansSent, "tokometer.telemetry.spans.sent", "{span}", Scope::Process, "Spans a collector took"),
    counter(
        Id::SpansDropped,
        "tokometer.telemetry.spans.dropped",
        "{span}",
        Scope::Process,
        "Spans lost: the queue was full, or their export failed",
    ),
    by(
        counter(Id::Exports, "tokometer.telemetry.exports", "{export}", Scope::Process, "OTLP exports tried"),
        &[Key::Signal],
    ),
    by(
        counter(
            Id::ExportsFailed,
            "tokometer.telemetry.exports.failed",
            "{export}",
            Scope::Process,
            "OTLP exports that failed after their retries",
        ),
        &[Key::Signal],
    ),
    by(
        counter(
            Id::LabelsFolded,
            "tokometer.labels.folded",
            "{exchange}",
            Scope::Process,
            "Exchanges whose attributes were folded into `other` because a cap was reached",
        ),
        &[Key::Kind],
    ),
    counter(Id::Cpu, "process.cpu", "s", Scope::Process, "User and system CPU time of this process"),
    gauge(Id::ResidentMemory, "process.resident_memory", "By", "Resident memory of this process"),
    gauge(Id::VirtualMemory, "process.virtual_memory", "By", "Virtual memory of this process"),
    gauge(Id::OpenFds, "process.open_fds", "{file_descriptor}", "File descriptors that this process has open"),
    gauge(Id::MaxFds, "process.max_fds", "{file_descriptor}", "File descriptors that this process may have open"),
    gauge(Id::Threads, "process.threads", "{thread}", "Threads of this process"),
    gauge(Id::StartTime, "process.start_time", "s", "When this process started, seconds since 1970"),
    by(gauge(Id::BuildInfo, "tokometer.build_info", "", "1, with the version as attribute"), &[Key::Version]),
];
