//! The attributes that distinguish series.

use std::sync::LazyLock;

tokometer_observe::closed_enum! {
    /// An attribute of a series: a label in Prometheus, an attribute in OTLP. Its `as_str` is the OpenTelemetry name, its
    /// `meaning` the description in the documentation.
    pub enum Key {
        /// `chat`, `text_completion`, or another operation: `embeddings`, `rerank`, `pooling`, ...; `other` for paths
        /// that are not parsed.
        Operation = "gen_ai.operation.name",
        /// The engine: `vllm`, `sglang`, `llama_cpp`, ... Absent until it is recognised.
        Provider = "gen_ai.provider.name",
        /// `model` of the request; `other` over the cap, and until a response with status 200-299 and tokens has proved
        /// that the model exists.
        RequestModel = "gen_ai.request.model",
        /// `model` of the response; `other` over the cap, and until a response with status 200-299 and tokens has
        /// proved that the model exists.
        ResponseModel = "gen_ai.response.model",
        /// Upstream address of the listener.
        ServerAddress = "server.address",
        /// Upstream port of the listener; absent for a Unix socket.
        ServerPort = "server.port",
        /// Name of the listener; its listen address if the configuration has none.
        Listener = "listener",
        /// Data-parallel rank of the engine, where its metrics have one (vLLM, LMDeploy, SGLang); vLLM without data
        /// parallelism has the rank 0.
        DataParallelRank = "data_parallel_rank",
        /// `true` when the response is a stream of events.
        Streaming = "streaming",
        /// Only on failures: the status (`429`, `500`) or the outcome.
        ErrorType = "error.type",
        /// `input` or `output`.
        TokenType = "gen_ai.token.type",
        /// `audio` and `image` where the engine reports them separately, the rest `text`; `unknown` when it reported no
        /// usage, or parts that it does not separate.
        TokenModality = "gen_ai.token.modality",
        /// Outcome of the request: exactly one of those in the table above.
        Outcome = "outcome",
        /// `success`, `client_abort`, `failure` or `unobserved`.
        OutcomeClass = "outcome_class",
        /// `2xx`, `4xx`, `5xx`, ...; absent without response headers.
        StatusClass = "status_class",
        /// Prompt tokens: `up_to_1024`, `up_to_8192`, `up_to_32768`, `up_to_131072`, `over_131072`, `unknown` where the
        /// engine does not report them, `other` over the cap.
        InputLengthClass = "input_length_class",
        /// Share of the prompt found in the engine's cache: `none`, `partial` (up to a half), `most`, `unknown` where
        /// the engine does not report it, `other` over the cap.
        CacheHitClass = "cache_hit_class",
        /// `stop`, `length`, `tool_calls`, ...
        FinishReason = "finish_reason",
        /// Source of the value; values from different sources are never in one series.
        Source = "source",
        /// Of open requests: `waiting_first_token`, `streaming`, or `unstreamed` (the response comes in one piece). Of
        /// ended requests, the phase of their time (docs/concepts/traces.md): `request`, `load`, `preprocessing`, `queue`,
        /// `prefill`, `waiting`, `processing`, `decode`, `finish`, `delivery_blocked`.
        Phase = "phase",
        /// The reason.
        Reason = "reason",
        /// `request` (towards the server) or `response`.
        Direction = "direction",
        /// `metrics` or `traces`.
        Signal = "signal",
        /// `model`, `label_set`, `prompt_class`, `tenant` or `priority_class`. Of captured segments and connections: see
        /// their metrics.
        Kind = "kind",
        /// Name of an objective.
        Slo = "slo",
        /// Model that responded; for a request whose response proves no model (an error, or no response), the model
        /// that its `model` resolved to before. `other` over the cap, absent while none is known.
        Model = "model",
        /// `good` or `bad`.
        Verdict = "verdict",
        /// `ttft_seconds`, `ttft_seconds_per_1k_uncached_tokens`, `decode_tokens_per_second` or `gap_seconds`.
        Threshold = "threshold",
        /// The result. Of joins: see `docs/how-to/engine-spans.md`. Of `tokometer.interception`: `closed`, `open` or `unknown`. Of
        /// rewrites: see `docs/how-to/rewrite.md`.
        Result = "result",
        /// Tenant of the request, from what the client sends: a hash, a configured name, or the client's own value
        /// where the settings allow it; `other` over the cap, absent where the request names no tenant
        /// (docs/how-to/tenants.md).
        Tenant = "tenant",
        /// Priority class of the request: the header `x-llm-d-inference-objective`, or its old name
        /// `x-gateway-inference-objective`; `other` over the cap, absent without these headers.
        PriorityClass = "priority_class",
        /// The currency of the prices.
        Currency = "currency",
        /// Name of a budget.
        Budget = "budget",
        /// Unit of a budget: `tokens`, or the currency.
        Unit = "unit",
        /// `address_split`, `shadow_bind`, `other_port`, `uds`, `redirect` or `remote` (`docs/how-to/attach.md`).
        Mode = "mode",
        /// `open`, `waiting` (the server accepts no connections), `address_in_use` (another program holds the address:
        /// clients bypass tokometer) or `address_unusable`.
        State = "state",
        /// `include_usage`, `traceparent`, `request_id`, or `framing` for requests with ambiguous framing.
        Rewrite = "rewrite",
        /// Name of the thread.
        Thread = "thread",
        /// Version of tokometer or of the engine.
        Version = "version",
    }
}

impl Key {
    /// The Prometheus label: the name with every `.` as `_`.
    pub fn label(self) -> &'static str {
        static LABELS: LazyLock<Vec<String>> =
            LazyLock::new(|| Key::ALL.iter().map(|key| key.as_str().replace('.', "_")).collect());
        LABELS.get(self as usize).map_or("", String::as_str)
    }

    /// Upper bound of the different values that this attribute has for one set of the request's own attributes.
    pub(crate) fn values(self) -> usize {
        match self {
            Key::Outcome => 16,
            Key::ErrorType => 32,
            Key::FinishReason => 12,
            Key::Reason | Key::Phase | Key::Result => 10,
            Key::Source => 7,
            Key::StatusClass => 6,
            Key::OutcomeClass | Key::TokenModality | Key::Kind | Key::Rewrite => 4,
            Key::TokenType | Key::Direction | Key::Signal => 2,
            _ => 1,
        }
    }
}
