//! The attributes that distinguish series.

use std::sync::LazyLock;

crate::closed_enum! {
    /// An attribute of a series: a label in Prometheus, an attribute in OTLP. `as_str` is the OpenTelemetry name,
    /// `meaning` the description in the documentation.
    pub enum Key {
        /// `chat`, `text_completion`, or another operation: `embeddings`, `rerank`, `pooling`, ...; `other` for paths
        /// whose requests are not parsed.
        Operation = "gen_ai.operation.name",
        /// The engine: `vllm`, `sglang`, `llama_cpp`, ... Absent until the engine is recognized.
        Provider = "gen_ai.provider.name",
        /// `model` of the request. It is `other` until a 2xx response with tokens confirms that the model exists. Models
        /// beyond `telemetry.max_models` are `other`, too.
        RequestModel = "gen_ai.request.model",
        /// `model` of the response. It is `other` until a 2xx response with tokens confirms that the model exists. Models
        /// beyond `telemetry.max_models` are `other`, too.
        ResponseModel = "gen_ai.response.model",
        /// Upstream address of the listener.
        ServerAddress = "server.address",
        /// Upstream port of the listener; absent for a Unix socket.
        ServerPort = "server.port",
        /// Name of the listener, or its listen address if no name is configured.
        Listener = "listener",
        /// Data-parallel rank of the engine, if the engine's metrics report ranks (vLLM, LMDeploy, SGLang); rank 0 for
        /// vLLM without data parallelism.
        DataParallelRank = "data_parallel_rank",
        /// `true` when the response is a stream of events.
        Streaming = "streaming",
        /// Set only for failures: the HTTP status (`429`, `500`) or the outcome.
        ErrorType = "error.type",
        /// `input` or `output`.
        TokenType = "gen_ai.token.type",
        /// `audio` and `image` if the engine reports them separately, `text` for the rest; `unknown` for
        /// videos, and if the engine reported no usage or did not separate the modalities.
        TokenModality = "gen_ai.token.modality",
        /// Outcome of the request, as listed under "Outcomes" above.
        Outcome = "outcome",
        /// `success`, `client_abort`, `failure` or `unobserved`.
        OutcomeClass = "outcome_class",
        /// `2xx`, `4xx`, `5xx`, ...; absent if no response headers arrived.
        StatusClass = "status_class",
        /// Prompt tokens: `up_to_1024`, `up_to_8192`, `up_to_32768`, `up_to_131072`, `over_131072`; `unknown` if the
        /// engine does not report the number, `other` above `telemetry.max_label_sets` combinations of label set and
        /// class.
        InputLengthClass = "input_length_class",
        /// Share of the prompt found in the engine's cache: `none`, `partial` (up to half), `most`; `unknown` if the
        /// engine does not report the share, `other` above `telemetry.max_label_sets` combinations of label set and
        /// class.
        CacheHitClass = "cache_hit_class",
        /// `stop`, `length`, `tool_calls`, ...
        FinishReason = "finish_reason",
        /// Source of the value. A series never mixes values from different sources.
        Source = "source",
        /// For requests in flight: `waiting_first_token`, `streaming`, or `unstreamed` (non-streamed response). For
        /// ended requests, a phase (docs/concepts/traces.md): `request`, `load`, `preprocessing`, `queue`, `prefill`,
        /// `waiting`, `processing`, `decode`, `finish`, `delivery_blocked`.
        Phase = "phase",
        /// Reason for the counted event. The values depend on the metric.
        Reason = "reason",
        /// `request` (to the server) or `response` (to the client).
        Direction = "direction",
        /// `metrics` or `traces`.
        Signal = "signal",
        /// For `tokometer.labels.folded`: `model`, `label_set`, `prompt_class`, `tenant` or `priority_class`. The
        /// values for captured segments and connections are listed with their metrics.
        Kind = "kind",
        /// Name of an objective.
        Slo = "slo",
        /// Model that generated the response. If the response does not confirm the model (an error, or no response),
        /// this is the model that served earlier requests with the same `model` field. `other` above
        /// `telemetry.max_models`; absent if no model is known.
        Model = "model",
        /// `good` or `bad`.
        Verdict = "verdict",
        /// `ttft_seconds`, `ttft_seconds_per_1k_uncached_tokens`, `decode_tokens_per_second` or `gap_seconds`.
        Threshold = "threshold",
        /// For span joins, see `docs/how-to/engine-spans.md`; for rewrites, see `docs/how-to/rewrite.md`. For
        /// `tokometer.interception`: whether clients can reach the server directly (`open`, `bypassed`,
        /// `closed`, or `unknown`).
        Result = "result",
        /// Tenant named by the request: a configured name, a hash of the client's value, or, with
        /// `tenants.label: plain`, the value itself. `other` above `tenants.max`; absent if the request names no tenant
        /// (docs/how-to/tenants.md).
        Tenant = "tenant",
        /// Priority class of the request, from the header `x-llm-d-inference-objective` or its old name
        /// `x-gateway-inference-objective`; `other` above `tenants.max` combinations of tenant and class, absent
        /// without these headers.
        PriorityClass = "priority_class",
        /// Currency of the prices.
        Currency = "currency",
        /// Name of a budget.
        Budget = "budget",
        /// Unit of a budget: `tokens`, or the currency.
        Unit = "unit",
        /// `address_split`, `shadow_bind`, `other_port`, `uds`, `redirect` or `remote` (`docs/how-to/attach.md`).
        Mode = "mode",
        /// `open`, `waiting` (the server accepts no connections), `address_in_use` (another program listens on the
        /// address, so clients bypass tokometer) or `address_unusable` (another error, which is logged).
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
    /// The Prometheus label: the name with every `.` replaced by `_`.
    pub fn label(self) -> &'static str {
        static LABELS: LazyLock<Vec<String>> =
            LazyLock::new(|| Key::ALL.iter().map(|key| key.as_str().replace('.', "_")).collect());
        LABELS.get(self as usize).map_or("", String::as_str)
    }
}
