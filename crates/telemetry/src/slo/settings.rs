//! Settings of the SLO objectives.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokometer_decode::Route;

use crate::accounting::covers;

/// The objectives, and the settings they share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// The objectives; names are unique.
    #[serde(skip)]
    pub objectives: Vec<Objective>,
    /// Maximum number of different models in counters; further models are counted as `other`.
    #[serde(skip)]
    pub max_models: usize,
    /// Models whose counters are exported as zero from the start, so that rates include their first bad request.
    /// Counters of other models start when a response first names the model.
    pub models: Vec<String>,
    /// If true, responses with status 429, 503 or 529 are bad. If false, the objectives exclude these requests.
    pub busy_is_bad: bool,
    /// Minimum output tokens of a request for its decode rate to be evaluated.
    #[schemars(range(min = 2, max = 1000000))]
    pub min_tokens: u64,
    /// Decode rates that readers of a stream notice, marked on the dashboards and the live page. They are not used to
    /// evaluate requests.
    pub reading: ReadingSpeed,
    /// How `tokometer rules` generates rules from the objectives.
    pub rules: RuleSettings,
}

/// An SLO objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// Name, the label `slo`.
    pub name: String,
    /// Target share of good requests, between 0 and 1.
    pub target: f64,
    /// The requests that the objective applies to.
    pub scope: Scope,
    /// When a request is good.
    pub goal: Goal,
}

/// The requests that an objective applies to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    /// Model names; a trailing `*` matches any suffix. Empty: all models.
    pub models: Vec<String>,
    /// Routes. Empty: all routes that generate tokens.
    pub routes: Vec<Route>,
    /// Tenant names, as sent by clients. Empty: all tenants.
    pub tenants: Vec<String>,
}

/// When a request is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The response is complete and without an error.
    Availability,
    /// The first token arrives in time.
    FirstToken {
        /// Maximum wait for an empty prompt.
        base: Duration,
        /// Added per thousand prompt tokens that were not in the engine's cache.
        per_1k_uncached: Duration,
    },
    /// Tokens arrive fast enough.
    DecodeRate {
        /// Minimum tokens per second.
        floor: f64,
    },
    /// The stream has no stall.
    Stall {
        /// Maximum gap between two tokens that the stream's cadence does not explain.
        longest: Duration,
    },
    /// The request meets the conditions of [`Goal::Availability`] and every other objective whose scope covers it.
    Goodput,
}

impl Goal {
    /// Name of the kind, in configuration and messages.
    pub fn word(&self) -> &'static str {
        match self {
            Goal::Availability => "availability",
            Goal::FirstToken { .. } => "ttft",
            Goal::DecodeRate { .. } => "decode_rate",
            Goal::Stall { .. } => "stall",
            Goal::Goodput => "goodput",
        }
    }

    /// Thresholds by name; each name includes the unit.
    pub fn thresholds(&self) -> Vec<(&'static str, f64)> {
        match self {
            Goal::Availability | Goal::Goodput => Vec::new(),
            Goal::FirstToken { base, per_1k_uncached } => vec![
                ("ttft_seconds", base.as_secs_f64()),
                ("ttft_seconds_per_1k_uncached_tokens", per_1k_uncached.as_secs_f64()),
            ],
            Goal::DecodeRate { floor } => vec![("decode_tokens_per_second", *floor)],
            Goal::Stall { longest } => vec![("gap_seconds", longest.as_secs_f64())],
        }
    }
}

impl Scope {
    /// The route with this name in the configuration.
    pub fn route(name: &str) -> Option<Route> {
        Route::of_name(name)
    }

    /// Names of the routes in the configuration.
    pub fn routes() -> impl Iterator<Item = &'static str> {
        Route::names()
    }

    /// True if requests on this route and of this tenant are in scope.
    pub(super) fn covers(&self, route: Route, tenant: Option<&str>) -> bool {
        let routes = if self.routes.is_empty() { route.generates() } else { self.routes.contains(&route) };
        routes && (self.tenants.is_empty() || tenant.is_some_and(|tenant| self.tenants.iter().any(|t| t == tenant)))
    }

    /// True if this model is in scope.
    pub(super) fn covers_model(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|pattern| covers(pattern, model))
    }
}

/// Decode rates that readers of a stream notice: the block `slo.reading` of the configuration. The dashboards and the
/// live page mark the bands between these rates; they do not affect objectives.
///
/// The defaults assume 1.3 tokens per English word. Adults read about 240 words per minute silently (Brysbaert 2019,
/// How many words do we read per minute?), which is 5 tokens per second, and skim at about twice that rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReadingSpeed {
    /// Decode rate in tokens per second, marked on the dashboards and the live page. Below it, a reader has to wait for
    /// text.
    #[schemars(range(min = 0.001, max = 1000000))]
    pub slow: f64,
    /// Decode rate in tokens per second, marked on the dashboards and the live page. At or above it, a stream stays
    /// ahead of its reader.
    #[schemars(range(min = 0.001, max = 1000000))]
    pub comfortable: f64,
    /// Decode rate in tokens per second, marked on the dashboards and the live page. Above it, readers notice no
    /// further improvement.
    #[schemars(range(min = 0.001, max = 1000000))]
    pub fast: f64,
}

impl Default for ReadingSpeed {
    fn default() -> ReadingSpeed {
        ReadingSpeed { slow: 10.0, comfortable: 15.0, fast: 30.0 }
    }
}

/// Settings of `tokometer rules`: the block `slo.rules` of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RuleSettings {
    /// Value of the label `service` on every rule.
    pub service: String,
    /// Period of the error budget, in days.
    #[schemars(range(min = 1, max = 90))]
    pub period_days: u32,
    /// Minimum number of bad requests in the long window for a burn-rate alert. This prevents a page for a single bad
    /// request when there is little traffic.
    #[schemars(range(min = 1, max = 1000000))]
    pub min_bad_events: u32,
    /// The rules evaluate each objective separately for each combination of these labels. Prometheus adds `namespace`
    /// when it scrapes a pod.
    pub group_by: Vec<String>,
    /// URL of the folder docs/runbooks, as your Git server shows it. For the annotation `runbook_url`, `/`, the alert
    /// name and `.md` are appended. null: no annotation.
    pub runbook_url: Option<String>,
    /// Grafana URL, for the annotation `dashboard_url`: a link to the alert's dashboard with its variables set. null:
    /// no annotation.
    pub dashboard_url: Option<String>,
}

impl Default for RuleSettings {
    fn default() -> RuleSettings {
        RuleSettings {
            service: "llm".to_owned(),
            period_days: 30,
            min_bad_events: 5,
            group_by: vec!["namespace".to_owned(), "model".to_owned()],
            runbook_url: None,
            dashboard_url: None,
        }
    }
}

impl Settings {
    /// No objectives.
    pub fn none() -> Settings {
        Settings {
            objectives: Vec::new(),
            models: Vec::new(),
            max_models: 64,
            busy_is_bad: true,
            min_tokens: 16,
            reading: ReadingSpeed::default(),
            rules: RuleSettings::default(),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        let objective =
            |goal: Goal, target| Objective { name: goal.word().to_owned(), target, scope: Scope::default(), goal };
        let first_token =
            Goal::FirstToken { base: Duration::from_secs(2), per_1k_uncached: Duration::from_millis(500) };
        Settings {
            objectives: vec![
                objective(Goal::Availability, 0.995),
                objective(first_token, 0.99),
                objective(Goal::DecodeRate { floor: 20.0 }, 0.95),
                objective(Goal::Stall { longest: Duration::from_secs(5) }, 0.99),
                objective(Goal::Goodput, 0.95),
            ],
            ..Settings::none()
        }
    }
}
