//! The attributes that series are told apart by.

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

    /// What it says, for the documentation.
    pub fn meaning(self) -> &'static str {
        match self {
            Key::Operation => {
                "`chat`, `text_completion`, or what else is asked: `embeddings`, `rerank`, `pooling`, ...; `other` for paths that are not read."
            }
            Key::Provider => "The engine: `vllm`, `sglang`, `llama_cpp`, ... Absent while it is not recognised.",
            Key::RequestModel => {
                "`model` of the request; `other` over the cap, and until a response with a status of 200-299 and tokens has proved that the model exists."
            }
            Key::ResponseModel => {
                "`model` of the response; `other` over the cap, and until a response with a status of 200-299 and tokens has proved that the model exists."
            }
            Key::ServerAddress => "Upstream address of the listen -> upstream pair.",
            Key::ServerPort => "Upstream port of the pair; absent for a Unix socket.",
            Key::Streaming => "`true` when the answer is a stream of events.",
            Key::ErrorType => "Only on failures: the status (`429`, `500`) or the outcome.",
            Key::TokenType => "`input` or `output`.",
            Key::TokenModality => {
                "`audio` and `image` where the engine tells them apart, the rest `text`; `unknown` when it told no usage, or parts that are not told apart."
            }
            Key::Outcome => "How the exchange ended: exactly one of those in the table above.",
            Key::OutcomeClass => "`success`, `client_abort`, `failure` or `unobserved`.",
            Key::StatusClass => "`2xx`, `4xx`, `5xx`, ...; absent when no response head came.",
            Key::InputLengthClass => {
                "Prompt tokens: `up_to_1024`, ... `over_131072` by the bounds of the settings, `unknown` where the engine does not tell them, `other` over the cap."
            }
            Key::CacheHitClass => {
                "How much of the prompt the engine had in its cache: `none`, `partial` (up to a half), `most`, `unknown` where it does not tell, `other` over the cap."
            }
            Key::FinishReason => "`stop`, `length`, `tool_calls`, ...",
            Key::Source => "Where the figure comes from; figures of different sources are never in one series.",
            Key::Phase => {
                "Of open exchanges `waiting_first_token` or `streaming`; of those that ended what a part of their time was (docs/TRACES.md): `request`, `load`, `preprocessing`, `queue`, `prefill`, `waiting`, `processing`, `decode`, `finish`, `delivery_blocked`."
            }
            Key::Reason => "Why.",
            Key::Direction => "`request` (towards the server) or `response`.",
            Key::Signal => "`metrics` or `traces`.",
            Key::Kind => "`model`, `label_set`, `prompt_class` or `tenant`.",
            Key::Slo => "Name of an objective.",
            Key::Model => {
                "The model that answered; of a request whose response proves no model (an error, or none), the one that its `model` led to before. `other` over the cap, absent while none is known."
            }
            Key::Verdict => "`good` or `bad`.",
            Key::Threshold => {
                "`ttft_seconds`, `ttft_seconds_per_1k_uncached_tokens`, `decode_tokens_per_second` or `gap_seconds`."
            }
            Key::Tenant => {
                "Whose it is, as the client says: a hash, a name of the settings, or its own word where these allow it; `other` over the cap, absent where the request names nobody (docs/TENANTS.md)."
            }
            Key::Currency => "The currency of the prices.",
            Key::Budget => "Name of a budget.",
            Key::Unit => "What a budget is counted in: `tokens`, or the currency.",
            Key::Result => {
                "What came of it. Of joins: `docs/QUEUE.md` has the list. Of `tokometer.interception`: `closed`, `open` or `unknown`."
            }
            Key::Mode => {
                "`address_split`, `shadow_bind`, `other_port`, `uds`, `redirect` or `remote` (`docs/ATTACHING.md`)."
            }
            Key::Version => "Version of tokometer.",
        }
    }

    /// Upper bound of the different values this attribute gives beside one set of the exchange's own attributes.
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
