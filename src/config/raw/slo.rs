//! The blocks `slo`, `tenants`, `prices` and `budgets`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::units::Duration;
use tokometer_telemetry::slo;

block! {
    /// Service level objectives.
    Slo {
        /// True evaluates every request when it ends, and counts it in `tokometer.slo.events`.
        enabled: bool = true,
        /// Objectives for requests that get a complete response without an error. Empty list: no such objective (also for
        /// the lists below).
        availability: Vec<Availability> = vec![Availability::default()],
        /// Objectives for streamed requests whose first token arrives in time. A request that ends without a first token is
        /// bad if it waited longer than the limit.
        ttft: Vec<Ttft> = vec![Ttft::default()],
        /// Objectives for streamed requests with at least a minimum decode rate.
        decode_rate: Vec<DecodeRate> = vec![DecodeRate::default()],
        /// Objectives for streamed requests without long gaps between tokens.
        stall: Vec<Stall> = vec![Stall::default()],
        /// Objectives for requests that are available and not bad under any other objective that applies to them. Their
        /// output tokens are counted in `tokometer.slo.good_output.tokens`.
        goodput: Vec<Goodput> = vec![Goodput::default()],
        /// Models whose counters are exported as zero from the start, so that a rate includes their first bad request.
        /// Counters of other models start when the server first names the model.
        models: Vec<String> = Vec::new(),
        /// True counts responses with status 429, 503 or 529 as bad; false excludes such requests.
        busy_is_bad: bool = true,
        /// Minimum output tokens for a decode rate to be evaluated.
        #[schemars(range(min = 2, max = 1000000))]
        min_tokens: u64 = slo::Settings::default().min_tokens,
        /// Targets set by a single request in the headers `x-slo-ttft-ms` and `x-slo-tpot-ms`.
        request_targets: RequestTargets = RequestTargets::default(),
        /// How `tokometer rules` generates rules from the objectives.
        rules: Rules = Rules::default(),
    }
}

block! {
    /// Requests that an objective applies to; an empty list does not restrict them.
    AppliesTo {
        /// Model names; a trailing `*` matches any suffix.
        models: Vec<String> = Vec::new(),
        /// Route names, as in `observe.routes`. Empty: routes that generate tokens.
        routes: Vec<String> = Vec::new(),
        /// Tenants, as named by the clients; the block `tenants` defines which headers name them, also if it is not
        /// enabled.
        tenants: Vec<String> = Vec::new(),
    }
}

block! {
    /// Availability objective.
    Availability {
        /// Name of the objective, used as the label `slo`: lowercase letters, digits, `-` and `_`.
        name: String = "availability".to_owned(),
        /// Percentage of requests that must be good.
        #[schemars(range(min = 1, max = 99.9999))]
        target_percent: f64 = 99.5,
        /// Requests that the objective applies to.
        applies_to: AppliesTo = AppliesTo::default(),
    }
}

block! {
    /// Objective for the time to first token.
    Ttft {
        /// Name of the objective, used as the label `slo`.
        name: String = "ttft".to_owned(),
        /// Percentage of requests that must be good.
        #[schemars(range(min = 1, max = 99.9999))]
        target_percent: f64 = 99.0,
        /// Maximum time from the last byte of the request to the first token.
        #[schemars(extend("x-range" = ["1ms", "24h"]))]
        max: Duration = Duration::from_millis(2000),
        /// Additional time per 1000 prompt tokens that were not in the engine's cache. 0: the same limit for all prompts.
        /// If the engine does not report the prompt length, one token per four bytes of the request is assumed.
        #[schemars(extend("x-range" = ["0s", "24h"]))]
        per_1k_uncached_tokens: Duration = Duration::from_millis(500),
        /// Requests that the objective applies to.
        applies_to: AppliesTo = AppliesTo::default(),
    }
}

block! {
    /// Objective for the decode rate.
    DecodeRate {
        /// Name of the objective, used as the label `slo`.
        name: String = "decode_rate".to_owned(),
        /// Percentage of requests that must be good.
        #[schemars(range(min = 1, max = 99.9999))]
        target_percent: f64 = 95.0,
        /// Minimum tokens per second between the first and the last token of a stream.
        #[schemars(range(min = 0.001, max = 1000000))]
        min_tokens_per_second: f64 = 20.0,
        /// Requests that the objective applies to.
        applies_to: AppliesTo = AppliesTo::default(),
    }
}

block! {
    /// Objective for gaps between tokens.
    Stall {
        /// Name of the objective, used as the label `slo`.
        name: String = "stall".to_owned(),
        /// Percentage of requests that must be good.
        #[schemars(range(min = 1, max = 99.9999))]
        target_percent: f64 = 99.0,
        /// Maximum time between two tokens, and between the last token and the end of an aborted stream.
        #[schemars(extend("x-range" = ["1ms", "24h"]))]
        max_gap: Duration = Duration::from_millis(5000),
        /// Requests that the objective applies to.
        applies_to: AppliesTo = AppliesTo::default(),
    }
}

block! {
    /// Objective that combines all other objectives.
    Goodput {
        /// Name of the objective, used as the label `slo`.
        name: String = "goodput".to_owned(),
        /// Percentage of requests that must be good.
        #[schemars(range(min = 1, max = 99.9999))]
        target_percent: f64 = 95.0,
        /// Requests that the objective applies to.
        applies_to: AppliesTo = AppliesTo::default(),
    }
}

block! {
    /// Targets of single requests. Clients choose them, so they are bounded, used for evaluation only, and never a label.
    RequestTargets {
        /// True evaluates a request against the targets in its headers, if it has any; false uses only the configured
        /// objectives.
        enabled: bool = true,
    }
}

block! {
    /// How `tokometer rules` generates rules from the objectives.
    Rules {
        /// Value of the label `service` on every rule.
        service: String = slo::RuleSettings::default().service,
        /// Period of the error budget, in days.
        #[schemars(range(min = 1, max = 90))]
        period_days: u64 = slo::RuleSettings::default().period_days.into(),
        /// Minimum bad requests in the long window for a burn-rate alert, so that a single bad request at night does not
        /// page.
        #[schemars(range(min = 1, max = 1000000))]
        min_bad_events: u64 = slo::RuleSettings::default().min_bad_events.into(),
        /// Labels by which requests are evaluated separately, in addition to `slo`. Prometheus adds `namespace` when it
        /// scrapes a pod.
        group_by: Vec<String> = slo::RuleSettings::default().group_by,
        /// Location of the runbooks, as a URL or a path; `/`, the alert name and `.md` are appended.
        runbook_url: String = slo::RuleSettings::default().runbook_url,
        /// URL of the dashboard, for the annotation `dashboard_url`. null: no such annotation.
        dashboard_url: Option<String> = slo::RuleSettings::default().dashboard_url,
    }
}

block! {
    /// Counting by tenant.
    Tenants {
        /// True counts tokens and requests by tenant (`tokometer.tenant.*`). The tenant is whatever name the client sends,
        /// unverified: put an authenticating gateway in front, or use a server that rejects unknown clients.
        enabled: bool = false,
        /// Request headers that may name the tenant; the first one present is used. Objectives use them too.
        from_headers: Vec<String> = vec!["x-tenant".to_owned()],
        /// Claim of the bearer token (a signed JWT) that names the tenant if no header does: `sub`, or `org.id` for `id` in
        /// the object `org`. The signature is not verified, and no other claim is read or stored. null: tokens are not
        /// read.
        from_jwt_claim: Option<String> = None,
        /// Value of the label `tenant`.
        label: TenantLabel = TenantLabel::Hash,
        /// File with the key for the hash, at least 16 bytes; use the same key on every pod. null: plain SHA-256, which
        /// lets anyone confirm a guessed name.
        hash_key_file: Option<String> = None,
        /// Tenants with a label value, `name sent by the client: label`. Their series exist from the start and do not count
        /// towards `max`.
        names: BTreeMap<String, String> = BTreeMap::new(),
        /// True counts tenants that are not in `names` as `other`.
        only_named: bool = false,
        /// Maximum number of tenants that are not in `names`, in the order of their first response with status 200-299;
        /// further ones are counted as `other`. When the maximum is reached, a new tenant replaces the least recently used
        /// one if that was unused for at least 10 minutes. The replaced tenant's series disappear, and restart at zero if
        /// the tenant returns.
        #[schemars(range(min = 1, max = 10000))]
        max: u64 = 100,
    }
}

words! {
    /// Value of the label `tenant`.
    TenantLabel {
        /// The first 12 digits of a hash: SHA-256, or HMAC-SHA-256 with a key.
        Hash = "hash",
        /// The name sent by the client, visible to everyone with access to the metrics.
        Plain = "plain",
    }
}

block! {
    /// Token prices.
    Prices {
        /// Currency, used as the label `currency`.
        currency: String = "USD".to_owned(),
        /// Prices by model; the first entry that matches a model is used. Empty: no costs are counted.
        models: Vec<Price> = Vec::new(),
    }
}

block! {
    /// Prices of one model.
    Price {
        /// Model name as returned by the server; a trailing `*` matches any suffix, `*` alone every model.
        model: String = String::new(),
        /// Price of one million input tokens. Required.
        #[schemars(range(min = 0, max = 1000000000))]
        input_per_million: Option<f64> = None,
        /// Price of one million input tokens read from the engine's cache. null: the price of other input tokens.
        #[schemars(range(min = 0, max = 1000000000))]
        cached_input_per_million: Option<f64> = None,
        /// Price of one million output tokens. Required.
        #[schemars(range(min = 0, max = 1000000000))]
        output_per_million: Option<f64> = None,
    }
}

block! {
    /// A daily budget.
    Budget {
        /// Name of the budget, used as the label `budget`: lowercase letters, digits, `-` and `_`.
        name: String = String::new(),
        /// Maximum input and output tokens per day, from midnight to midnight UTC. Set either this or `cost_per_day`.
        #[schemars(range(min = 1, max = 1e15))]
        tokens_per_day: Option<u64> = None,
        /// Maximum cost per day, from midnight to midnight UTC, in the currency of `prices`.
        #[schemars(range(min = 0.000001, max = 1e12))]
        cost_per_day: Option<f64> = None,
        /// Model names that the budget applies to; a trailing `*` matches any suffix. Empty: all.
        models: Vec<String> = Vec::new(),
        /// Tenants that the budget applies to, as named by the clients. Empty: all.
        tenants: Vec<String> = Vec::new(),
    }
}
