//! The block `slo`: objectives, and the rules generated from them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use tokometer_telemetry::slo::RuleSettings;

/// Service level objectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// True evaluates every request when it ends, and counts it in `tokometer.slo.events`.
    pub enabled: bool,
    /// Objectives for requests that get a complete response without an error. Empty list: no such objective (also for
    /// the lists below).
    pub availability: Vec<Availability>,
    /// Objectives for streamed requests whose first token arrives in time. A request that ends without a first token is
    /// bad if it waited longer than the limit.
    pub ttft: Vec<Ttft>,
    /// Objectives for streamed requests with at least a minimum decode rate.
    pub decode_rate: Vec<DecodeRate>,
    /// Objectives for streamed requests without long gaps between tokens.
    pub stall: Vec<Stall>,
    /// Objectives for requests that are available and not bad under any other objective that applies to them. Their
    /// output tokens are counted in `tokometer.slo.good_output.tokens`.
    pub goodput: Vec<Goodput>,
    /// Models whose counters are exported as zero from the start, so that a rate includes their first bad request.
    /// Counters of other models start when the server first names the model.
    pub models: Vec<String>,
    /// True counts responses with status 429, 503 or 529 as bad; false excludes such requests.
    pub busy_is_bad: bool,
    /// Minimum output tokens for a decode rate to be evaluated.
    #[schemars(range(min = 2, max = 1000000))]
    pub min_tokens: u64,
    /// Minimum milliseconds between first and last token for a decode rate to be evaluated.
    #[schemars(range(min = 1, max = 3600000))]
    pub min_decode_ms: u64,
    /// Maximum percentage of the decode time blocked on a slow client; above it, the decode rate is not evaluated.
    #[schemars(range(min = 0, max = 100))]
    pub client_limited_percent: f64,
    /// Targets set by a single request in the headers `x-slo-ttft-ms` and `x-slo-tpot-ms`.
    pub request_targets: RequestTargets,
    /// Request header that names the tenant, for `applies_to.tenants`. It is never used as a label. Leave it null with
    /// `tenants.enabled`: the block `tenants` then defines how the tenant is found. null: no header is read.
    pub tenant_header: Option<String>,
    /// How `tokometer rules` generates rules from the objectives.
    pub rules: Rules,
}

impl Default for Slo {
    fn default() -> Slo {
        Slo {
            enabled: true,
            availability: vec![Availability::default()],
            ttft: vec![Ttft::default()],
            decode_rate: vec![DecodeRate::default()],
            stall: vec![Stall::default()],
            goodput: vec![Goodput::default()],
            models: Vec::new(),
            busy_is_bad: true,
            min_tokens: 16,
            min_decode_ms: 200,
            client_limited_percent: 10.0,
            request_targets: RequestTargets::default(),
            tenant_header: None,
            rules: Rules::default(),
        }
    }
}

/// Requests that an objective applies to; an empty list does not restrict them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AppliesTo {
    /// Model names; a trailing `*` matches any suffix.
    pub models: Vec<String>,
    /// Route names, as in `observe.routes`. Empty: routes that generate tokens.
    pub routes: Vec<String>,
    /// Tenants, as named by the clients.
    pub tenants: Vec<String>,
}

/// Availability objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Availability {
    /// Name of the objective, used as the label `slo`: lowercase letters, digits, `-` and `_`.
    pub name: String,
    /// Percentage of requests that must be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Requests that the objective applies to.
    pub applies_to: AppliesTo,
}

impl Default for Availability {
    fn default() -> Availability {
        Availability { name: "availability".to_owned(), target_percent: 99.5, applies_to: AppliesTo::default() }
    }
}

/// Objective for the time to first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ttft {
    /// Name of the objective, used as the label `slo`.
    pub name: String,
    /// Percentage of requests that must be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Maximum milliseconds from the last byte of the request to the first token.
    #[schemars(range(min = 1, max = 86400000))]
    pub max_ms: u64,
    /// Additional milliseconds per 1000 prompt tokens that were not in the engine's cache. 0: the same limit for all
    /// prompts. If the engine does not report the prompt length, one token per four bytes of the request is assumed.
    #[schemars(range(min = 0, max = 86400000))]
    pub per_1k_uncached_tokens_ms: u64,
    /// Requests that the objective applies to.
    pub applies_to: AppliesTo,
}

impl Default for Ttft {
    fn default() -> Ttft {
        Ttft {
            name: "ttft".to_owned(),
            target_percent: 99.0,
            max_ms: 2000,
            per_1k_uncached_tokens_ms: 500,
            applies_to: AppliesTo::default(),
        }
    }
}

/// Objective for the decode rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeRate {
    /// Name of the objective, used as the label `slo`.
    pub name: String,
    /// Percentage of requests that must be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Minimum tokens per second between the first and the last token of a stream.
    #[schemars(range(min = 0.001, max = 1000000))]
    pub min_tokens_per_second: f64,
    /// Requests that the objective applies to.
    pub applies_to: AppliesTo,
}

impl Default for DecodeRate {
    fn default() -> DecodeRate {
        DecodeRate {
            name: "decode_rate".to_owned(),
            target_percent: 95.0,
            min_tokens_per_second: 20.0,
            applies_to: AppliesTo::default(),
        }
    }
}

/// Objective for gaps between tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stall {
    /// Name of the objective, used as the label `slo`.
    pub name: String,
    /// Percentage of requests that must be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Maximum milliseconds between two tokens, and between the last token and the end of an aborted stream.
    #[schemars(range(min = 1, max = 86400000))]
    pub max_gap_ms: u64,
    /// Requests that the objective applies to.
    pub applies_to: AppliesTo,
}

impl Default for Stall {
    fn default() -> Stall {
        Stall { name: "stall".to_owned(), target_percent: 99.0, max_gap_ms: 5000, applies_to: AppliesTo::default() }
    }
}

/// Objective that combines all other objectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Goodput {
    /// Name of the objective, used as the label `slo`.
    pub name: String,
    /// Percentage of requests that must be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Requests that the objective applies to.
    pub applies_to: AppliesTo,
}

impl Default for Goodput {
    fn default() -> Goodput {
        Goodput { name: "goodput".to_owned(), target_percent: 95.0, applies_to: AppliesTo::default() }
    }
}

/// Targets of single requests. Clients choose them, so they are bounded, used for evaluation only, and never a label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RequestTargets {
    /// True evaluates a request against the targets in its headers, if it has any; false uses only the configured
    /// objectives.
    pub enabled: bool,
    /// Minimum `x-slo-ttft-ms`; smaller values are raised to it, because clients could trigger pages with tiny values.
    #[schemars(range(min = 1, max = 86400000))]
    pub ttft_min_ms: u64,
    /// Maximum `x-slo-ttft-ms`; larger values are lowered to it.
    #[schemars(range(min = 1, max = 86400000))]
    pub ttft_max_ms: u64,
    /// Minimum `x-slo-tpot-ms`; smaller values are raised to it.
    #[schemars(range(min = 1, max = 3600000))]
    pub tpot_min_ms: u64,
    /// Maximum `x-slo-tpot-ms`; larger values are lowered to it.
    #[schemars(range(min = 1, max = 3600000))]
    pub tpot_max_ms: u64,
}

impl Default for RequestTargets {
    fn default() -> RequestTargets {
        RequestTargets { enabled: true, ttft_min_ms: 100, ttft_max_ms: 600_000, tpot_min_ms: 5, tpot_max_ms: 10_000 }
    }
}

/// How `tokometer rules` generates rules from the objectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// Value of the label `service` on every rule.
    pub service: String,
    /// Period of the error budget, in days.
    #[schemars(range(min = 1, max = 90))]
    pub period_days: u64,
    /// Minimum bad requests in the long window for a burn-rate alert, so that a single bad request at night does not
    /// page.
    #[schemars(range(min = 1, max = 1000000))]
    pub min_bad_events: u64,
    /// Labels by which requests are evaluated separately, in addition to `slo`. Prometheus adds `namespace` when it
    /// scrapes a pod.
    pub group_by: Vec<String>,
    /// Location of the runbooks, as a URL or a path; `/`, the alert name and `.md` are appended.
    pub runbook_url: String,
    /// URL of the dashboard, for the annotation `dashboard_url`. null: no such annotation.
    pub dashboard_url: Option<String>,
}

impl Default for Rules {
    fn default() -> Rules {
        let RuleSettings { service, period_days, min_bad_events, group_by, runbook_url, dashboard_url } =
            RuleSettings::default();
        let (period_days, min_bad_events) = (u64::from(period_days), u64::from(min_bad_events));
        Rules { service, period_days, min_bad_events, group_by, runbook_url, dashboard_url }
    }
}
