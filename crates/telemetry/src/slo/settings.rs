//! What a person may set about objectives.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokometer_decode::Route;

/// The objectives, and what is common to all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The objectives, their names all different.
    pub objectives: Vec<Objective>,
    /// Models whose counters stand at zero from the start.
    pub models: Vec<String>,
    /// Most different models in counters; further ones are `other`.
    pub max_models: usize,
    /// A refusal for want of room (429, 503, 529) is bad; else it is excluded.
    pub busy_is_bad: bool,
    /// Fewest output tokens for which a decode rate is judged.
    pub min_tokens: u64,
    /// Shortest time between the first and the last token for which a decode rate is judged.
    pub min_decode: Duration,
    /// Share of the decoding time from which on a client that did not take bytes is the cause of a low rate.
    pub client_limited: f64,
    /// Bounds of what a request may ask for as its longest wait; what is beyond is moved to the bound.
    pub asked_first_token: RangeInclusive<Duration>,
    /// Bounds of what a request may ask for as its longest time per output token.
    pub asked_per_token: RangeInclusive<Duration>,
    /// What `tokometer rules` makes of it.
    pub rules: RuleSettings,
}

/// What a share of the exchanges must fulfil.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// Name, the label `slo`.
    pub name: String,
    /// Share of good exchanges that is aimed at, between 0 and 1.
    pub target: f64,
    /// Which exchanges it is about.
    pub scope: Scope,
    /// When one of them is good.
    pub goal: Goal,
}

/// Which exchanges an objective is about. An empty list sets no bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    /// Names of models; a `*` at the end stands for any rest.
    pub models: Vec<String>,
    /// Routes. Where none is named, those that generate tokens.
    pub routes: Vec<Route>,
    /// Tenants, as their header names them.
    pub tenants: Vec<String>,
}

/// When an exchange is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// It is answered, whole and without an error.
    Availability,
    /// Its first token comes in time.
    FirstToken {
        /// Longest wait for an empty prompt.
        base: Duration,
        /// What is added for each thousand tokens of the prompt that the engine did not have in its cache.
        per_1k_uncached: Duration,
    },
    /// Its tokens come fast enough.
    DecodeRate {
        /// Fewest tokens per second.
        floor: f64,
    },
    /// No silence in the middle of the stream.
    Stall {
        /// Longest gap between two tokens.
        longest: Duration,
    },
    /// It is available, and good by every other objective that is about it.
    Goodput,
}

impl Goal {
    /// The word for its kind, in configuration and messages.
    pub fn word(&self) -> &'static str {
        match self {
            Goal::Availability => "availability",
            Goal::FirstToken { .. } => "ttft",
            Goal::DecodeRate { .. } => "decode_rate",
            Goal::Stall { .. } => "stall",
            Goal::Goodput => "goodput",
        }
    }

    /// Its thresholds, each by the name that has its unit.
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
    /// The route that configuration calls so.
    pub fn route(name: &str) -> Option<Route> {
        Route::of_name(name)
    }

    /// What configuration calls the routes.
    pub fn routes() -> impl Iterator<Item = &'static str> {
        Route::names()
    }

    /// True when it is about exchanges on this route, of this tenant.
    pub(super) fn covers(&self, route: Route, tenant: Option<&str>) -> bool {
        let routes = if self.routes.is_empty() { route.generates() } else { self.routes.contains(&route) };
        routes && (self.tenants.is_empty() || tenant.is_some_and(|tenant| self.tenants.iter().any(|t| t == tenant)))
    }

    /// True when it is about this model.
    pub(super) fn covers_model(&self, model: &str) -> bool {
        self.models.is_empty()
            || self.models.iter().any(|wanted| match wanted.strip_suffix('*') {
                Some(begin) => model.starts_with(begin),
                None => model == wanted,
            })
    }
}

/// What `tokometer rules` makes of the objectives.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSettings {
    /// The label `service` of all rules.
    pub service: String,
    /// Days over which the budget of errors is spent.
    pub period_days: u32,
    /// Fewest bad exchanges in the long window for an alert.
    pub min_bad_events: u32,
    /// Labels by which exchanges are judged apart, beside `slo`.
    pub group_by: Vec<String>,
    /// Where the runbooks are; the alert's name and `.md` follow.
    pub runbook_url: String,
    /// Where the dashboard is.
    pub dashboard_url: Option<String>,
}

impl Default for RuleSettings {
    fn default() -> RuleSettings {
        RuleSettings {
            service: "llm".to_owned(),
            period_days: 30,
            min_bad_events: 5,
            group_by: vec!["namespace".to_owned(), "model".to_owned()],
            runbook_url: "docs/runbooks".to_owned(),
            dashboard_url: None,
        }
    }
}

impl Settings {
    /// Nothing is judged.
    pub fn none() -> Settings {
        let ms = Duration::from_millis;
        Settings {
            objectives: Vec::new(),
            models: Vec::new(),
            max_models: 64,
            busy_is_bad: true,
            min_tokens: 16,
            min_decode: ms(200),
            client_limited: 0.1,
            asked_first_token: ms(100)..=ms(600_000),
            asked_per_token: ms(5)..=ms(10_000),
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
