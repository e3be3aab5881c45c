//! The block `slo`: objectives, and the rules that are made of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use tokometer_telemetry::slo::RuleSettings;

/// Objectives of service levels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// True judges every exchange when it ends, and counts it in `tokometer.slo.events`.
    pub enabled: bool,
    /// Exchanges that are answered, whole and without an error. An empty list: no such objective (so below, too).
    pub availability: Vec<Availability>,
    /// Streamed exchanges whose first token comes in time. One that ends without a first token is bad if it waited longer.
    pub ttft: Vec<Ttft>,
    /// Streamed exchanges whose tokens come fast enough.
    pub decode_rate: Vec<DecodeRate>,
    /// Streamed exchanges without a silence between two tokens.
    pub stall: Vec<Stall>,
    /// Exchanges that are available, and bad by no other objective that is about them. Their output tokens are counted in
    /// `tokometer.slo.good_output.tokens`.
    pub goodput: Vec<Goodput>,
    /// Models whose counters stand at zero from the start, so that a rate sees their first bad exchange. Others begin when
    /// the server first names them.
    pub models: Vec<String>,
    /// True counts 429, 503 and 529 as bad; false leaves such exchanges out.
    pub busy_is_bad: bool,
    /// Fewest output tokens for which a decode rate is judged.
    #[schemars(range(min = 2, max = 1000000))]
    pub min_tokens: u64,
    /// Shortest time in milliseconds between first and last token for which a decode rate is judged.
    #[schemars(range(min = 1, max = 3600000))]
    pub min_decode_ms: u64,
    /// An exchange whose client did not take bytes for more than so many percent of its decoding is not judged by its rate.
    #[schemars(range(min = 0, max = 100))]
    pub client_limited_percent: f64,
    /// Targets that a request brings itself, in the headers `x-slo-ttft-ms` and `x-slo-tpot-ms`.
    pub request_targets: RequestTargets,
    /// Header of requests that names the tenant, for `applies_to.tenants`. It is never a label. With `tenants.enabled` that block
    /// says who names the tenant, and this stays null. null: none is read.
    pub tenant_header: Option<String>,
    /// What `tokometer rules` makes of the objectives.
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

/// Which exchanges an objective is about; an empty list sets no bound.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AppliesTo {
    /// Names of models; a `*` at the end stands for any rest.
    pub models: Vec<String>,
    /// Names of routes, as in `observe.routes`. Empty: those that generate tokens.
    pub routes: Vec<String>,
    /// Tenants, as clients name them.
    pub tenants: Vec<String>,
}

/// An objective of availability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Availability {
    /// Name, the label `slo`: small letters, digits, `-` and `_`.
    pub name: String,
    /// Percent of the exchanges that are to be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Which exchanges it is about.
    pub applies_to: AppliesTo,
}

impl Default for Availability {
    fn default() -> Availability {
        Availability { name: "availability".to_owned(), target_percent: 99.5, applies_to: AppliesTo::default() }
    }
}

/// An objective for the wait for the first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ttft {
    /// Name, the label `slo`.
    pub name: String,
    /// Percent of the exchanges that are to be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Milliseconds from the last byte of the request to the first token that are allowed.
    #[schemars(range(min = 1, max = 86400000))]
    pub max_ms: u64,
    /// Milliseconds more for each thousand tokens of the prompt that the engine did not have in its cache. 0: one limit for
    /// all prompts. Where the engine does not tell the prompt's length, four bytes of the request are taken for a token.
    #[schemars(range(min = 0, max = 86400000))]
    pub per_1k_uncached_tokens_ms: u64,
    /// Which exchanges it is about.
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

/// An objective for tokens per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeRate {
    /// Name, the label `slo`.
    pub name: String,
    /// Percent of the exchanges that are to be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Fewest tokens per second between the first and the last token of a stream.
    #[schemars(range(min = 0.001, max = 1000000))]
    pub min_tokens_per_second: f64,
    /// Which exchanges it is about.
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

/// An objective for silence in mid-stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stall {
    /// Name, the label `slo`.
    pub name: String,
    /// Percent of the exchanges that are to be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Milliseconds between two tokens that are allowed, and between the last one and the end of a stream that breaks off.
    #[schemars(range(min = 1, max = 86400000))]
    pub max_gap_ms: u64,
    /// Which exchanges it is about.
    pub applies_to: AppliesTo,
}

impl Default for Stall {
    fn default() -> Stall {
        Stall { name: "stall".to_owned(), target_percent: 99.0, max_gap_ms: 5000, applies_to: AppliesTo::default() }
    }
}

/// An objective for all of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Goodput {
    /// Name, the label `slo`.
    pub name: String,
    /// Percent of the exchanges that are to be good.
    #[schemars(range(min = 1, max = 99.9999))]
    pub target_percent: f64,
    /// Which exchanges it is about.
    pub applies_to: AppliesTo,
}

impl Default for Goodput {
    fn default() -> Goodput {
        Goodput { name: "goodput".to_owned(), target_percent: 95.0, applies_to: AppliesTo::default() }
    }
}

/// Targets of single requests. A client chooses them, so they are bounded, judged and nothing else: never a label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RequestTargets {
    /// True judges a request by its own targets where it brings them; false by the objectives' alone.
    pub enabled: bool,
    /// Smallest `x-slo-ttft-ms` that counts; below it this stands for it. Small values are a way to be paged at will.
    #[schemars(range(min = 1, max = 86400000))]
    pub ttft_min_ms: u64,
    /// Largest `x-slo-ttft-ms` that counts.
    #[schemars(range(min = 1, max = 86400000))]
    pub ttft_max_ms: u64,
    /// Smallest `x-slo-tpot-ms` that counts.
    #[schemars(range(min = 1, max = 3600000))]
    pub tpot_min_ms: u64,
    /// Largest `x-slo-tpot-ms` that counts.
    #[schemars(range(min = 1, max = 3600000))]
    pub tpot_max_ms: u64,
}

impl Default for RequestTargets {
    fn default() -> RequestTargets {
        RequestTargets { enabled: true, ttft_min_ms: 100, ttft_max_ms: 600_000, tpot_min_ms: 5, tpot_max_ms: 10_000 }
    }
}

/// What `tokometer rules` makes of the objectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// The label `service` of every rule.
    pub service: String,
    /// Days over which the budget of bad exchanges is spent.
    #[schemars(range(min = 1, max = 90))]
    pub period_days: u64,
    /// Fewest bad exchanges in the long window for an alert on a burn rate, so that one bad request at night pages nobody.
    #[schemars(range(min = 1, max = 1000000))]
    pub min_bad_events: u64,
    /// Labels by which exchanges are judged apart, beside `slo`. `namespace` comes from the scrape of a pod.
    pub group_by: Vec<String>,
    /// Where the runbooks are, as a URL or a path; `/` and the alert's name with `.md` follow.
    pub runbook_url: String,
    /// URL of the dashboard, for `dashboard_url`. null: no such annotation.
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
