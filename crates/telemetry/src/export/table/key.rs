//! The attributes that distinguish series.

/// An attribute of a series: a label in Prometheus, an attribute in OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// `gen_ai.operation.name`.
    Operation,
    /// `gen_ai.provider.name`.
    Provider,
    /// `gen_ai.request.model`.
    RequestModel,
    /// `gen_ai.response.model`.
    ResponseModel,
    /// `server.address`.
    ServerAddress,
    /// `server.port`.
    ServerPort,
    /// `streaming`.
    Streaming,
    /// `error.type`.
    ErrorType,
    /// `gen_ai.token.type`.
    TokenType,
    /// `gen_ai.token.modality`.
    TokenModality,
    /// `outcome`.
    Outcome,
    /// `outcome_class`.
    OutcomeClass,
    /// `status_class`.
    StatusClass,
    /// `input_length_class`.
    InputLengthClass,
    /// `cache_hit_class`.
    CacheHitClass,
    /// `finish_reason`.
    FinishReason,
    /// `source`.
    Source,
    /// `phase`.
    Phase,
    /// `reason`.
    Reason,
    /// `direction`.
    Direction,
    /// `signal`.
    Signal,
    /// `kind`.
    Kind,
    /// `slo`.
    Slo,
    /// `model`.
    Model,
    /// `verdict`.
    Verdict,
    /// `threshold`.
    Threshold,
    /// `result`.
    Result,
    /// `tenant`.
    Tenant,
    /// `currency`.
    Currency,
    /// `budget`.
    Budget,
    /// `unit`.
    Unit,
    /// `mode`.
    Mode,
    /// `version`.
    Version,
}

impl Key {
    /// Every attribute, in the order of the documentation.
    pub const ALL: [Key; 33] = [
        Key::Operation,
        Key::Provider,
        Key::RequestModel,
        Key::ResponseModel,
        Key::ServerAddress,
        Key::ServerPort,
        Key::Streaming,
        Key::ErrorType,
        Key::TokenType,
        Key::TokenModality,
        Key::Outcome,
        Key::OutcomeClass,
        Key::StatusClass,
        Key::InputLengthClass,
        Key::CacheHitClass,
        Key::FinishReason,
        Key::Source,
        Key::Phase,
        Key::Reason,
        Key::Direction,
        Key::Signal,
        Key::Kind,
        Key::Slo,
        Key::Model,
        Key::Verdict,
        Key::Threshold,
        Key::Result,
        Key::Tenant,
        Key::Currency,
        Key::Budget,
        Key::Unit,
        Key::Mode,
        Key::Version,
    ];

    /// The OpenTelemetry name.
    pub fn name(self) -> &'static str {
        match self {
            Key::Operation => "gen_ai.operation.name",
            Key::Provider => "gen_ai.provider.name",
            Key::RequestModel => "gen_ai.request.model",
            Key::ResponseModel => "gen_ai.response.model",
            Key::ServerAddress => "server.address",
            Key::ServerPort => "server.port",
            Key::Streaming => "streaming",
            Key::ErrorType => "error.type",
            Key::TokenType => "gen_ai.token.type",
            Key::TokenModality => "gen_ai.token.modality",
            Key::Outcome => "outcome",
            Key::OutcomeClass => "outcome_class",
            Key::StatusClass => "status_class",
            Key::InputLengthClass => "input_length_class",
            Key::CacheHitClass => "cache_hit_class",
            Key::FinishReason => "finish_reason",
            Key::Source => "source",
            Key::Phase => "phase",
            Key::Reason => "reason",
            Key::Direction => "direction",
            Key::Signal => "signal",
            Key::Kind => "kind",
            Key::Slo => "slo",
            Key::Model => "model",
            Key::Verdict => "verdict",
            Key::Threshold => "threshold",
            Key::Result => "result",
            Key::Tenant => "tenant",
            Key::Currency => "currency",
            Key::Budget => "budget",
            Key::Unit => "unit",
            Key::Mode => "mode",
            Key::Version => "version",
        }
    }

    /// The Prometheus label: the name with every `.` as `_`.
    pub fn label(self) -> &'static str {
        match self {
            Key::Operation => "gen_ai_operation_name",
            Key::Provider => "gen_ai_provider_name",
            Key::RequestModel => "gen_ai_request_model",
            Key::ResponseModel => "gen_ai_response_model",
            Key::ServerAddress => "server_address",
            Key::ServerPort => "server_port",
            Key::ErrorType => "error_type",
            Key::TokenType => "gen_ai_token_type",
            Key::TokenModality => "gen_ai_token_modality",
            other => other.name(),
        }
    }

    /// The attribute's description, for the documentation.
    pub fn meaning(self) -> &'static str {
        match self {
            Key::Operation => {
                "`chat`, `text_completion`, or another operation: `embeddings`, `rerank`, `pooling`, ...; `other` for paths that are not parsed."
            }
            Key::Provider => "The engine: `vllm`, `sglang`, `llama_cpp`, ... Absent until it is recognised.",
            Key::RequestModel => {
                "`model` of the request; `other` over the cap, and until a response with status 200-299 and tokens has proved that the model exists."
            }
            Key::ResponseModel => {
                "`model` of the response; `other` over the cap, and until a response with status 200-299 and tokens has proved that the model exists."
            }
            Key::ServerAddress => "Upstream address of the listener.",
            Key::ServerPort => "Upstream port of the listener; absent for a Unix socket.",
            Key::Streaming => "`true` when the response is a stream of events.",
            Key::ErrorType => "Only on failures: the status (`429`, `500`) or the outcome.",
            Key::TokenType => "`input` or `output`.",
            Key::TokenModality => {
                "`audio` and `image` where the engine reports them separately, the rest `text`; `unknown` when it reported no usage, or parts that it does not separate."
            }
            Key::Outcome => "Outcome of the request: exactly one of those in the table above.",
            Key::OutcomeClass => "`success`, `client_abort`, `failure` or `unobserved`.",
            Key::StatusClass => "`2xx`, `4xx`, `5xx`, ...; absent without response headers.",
            Key::InputLengthClass => {
                "Prompt tokens: `up_to_1024`, ... `over_131072` by the configured bounds, `unknown` where the engine does not report them, `other` over the cap."
            }
            Key::CacheHitClass => {
                "Share of the prompt found in the engine's cache: `none`, `partial` (up to a half), `most`, `unknown` where the engine does not report it, `other` over the cap."
            }
            Key::FinishReason => "`stop`, `length`, `tool_calls`, ...",
            Key::Source => "Source of the value; values from different sources are never in one series.",
            Key::Phase => {
                "Of open requests: `waiting_first_token` or `streaming`. Of ended requests, the phase of their time (docs/TRACES.md): `request`, `load`, `preprocessing`, `queue`, `prefill`, `waiting`, `processing`, `decode`, `finish`, `delivery_blocked`."
            }
            Key::Reason => "The reason.",
            Key::Direction => "`request` (towards the server) or `response`.",
            Key::Signal => "`metrics` or `traces`.",
            Key::Kind => "`model`, `label_set`, `prompt_class` or `tenant`.",
            Key::Slo => "Name of an objective.",
            Key::Model => {
                "Model that responded; for a request whose response proves no model (an error, or no response), the model that its `model` resolved to before. `other` over the cap, absent while none is known."
            }
            Key::Verdict => "`good` or `bad`.",
            Key::Threshold => {
                "`ttft_seconds`, `ttft_seconds_per_1k_uncached_tokens`, `decode_tokens_per_second` or `gap_seconds`."
            }
            Key::Tenant => {
                "Tenant of the request, from what the client sends: a hash, a configured name, or the client's own value where the settings allow it; `other` over the cap, absent where the request names no tenant (docs/TENANTS.md)."
            }
            Key::Currency => "The currency of the prices.",
            Key::Budget => "Name of a budget.",
            Key::Unit => "Unit of a budget: `tokens`, or the currency.",
            Key::Result => {
                "The result. Of joins: see `docs/QUEUE.md`. Of `tokometer.interception`: `closed`, `open` or `unknown`."
            }
            Key::Mode => {
                "`address_split`, `shadow_bind`, `other_port`, `uds`, `redirect` or `remote` (`docs/ATTACHING.md`)."
            }
            Key::Version => "Version of tokometer.",
        }
    }

    /// Upper bound of the different values that this attribute has for one set of the request's own attributes.
    pub(crate) fn values(self) -> usize {
        match self {
            Key::Outcome => 16,
            Key::ErrorType => 24,
            Key::FinishReason | Key::Reason | Key::Phase | Key::Result => 10,
            Key::Source => 7,
            Key::StatusClass => 6,
            Key::TokenModality | Key::Kind => 4,
            Key::OutcomeClass => 3,
            Key::TokenType | Key::Direction | Key::Signal => 2,
            _ => 1,
        }
    }
}
