//! The blocks `slo`, `tenants` and `budgets`.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use tokometer_settings::Duration;
use tokometer_telemetry::accounting;
use tokometer_telemetry::slo;

block! {
    /// Service level objectives.
    Slo {
        /// If true, every request is evaluated when it ends, and counted in `tokometer.slo.events`.
        enabled: bool = true,
        /// Availability objectives: a request is good if it gets a complete response without an error. Empty list: no
        /// such objective (as for the lists below).
        availability: Vec<Availability> = vec![Availability::default()],
        /// Time-to-first-token objectives: a streamed request is good if its first token arrives in time. A request
        /// that ends without a first token is bad if it waited longer than the limit.
        ttft: Vec<Ttft> = vec![Ttft::default()],
        /// Decode rate objectives: a streamed request is good if its decode rate reaches the minimum.
        decode_rate: Vec<DecodeRate> = vec![DecodeRate::default()],
        /// Stall objectives: a streamed request is good if all gaps between its tokens are short enough.
        stall: Vec<Stall> = vec![Stall::default()],
        /// Goodput objectives: a request is good if it is available and not bad under any other objective that applies
        /// to it. The output tokens of good requests are counted in `tokometer.slo.good_output.tokens`.
        goodput: Vec<Goodput> = vec![Goodput::default()],
        /// Per-request targets from the headers `x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms`, or from their old
        /// names `x-slo-ttft-ms` and `x-slo-tpot-ms`.
        request_targets: RequestTargets = RequestTargets::default(),
        #[serde(flatten)]
        #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
        shared: slo::Settings = slo::Settings::default(),
    }
}

block! {
    /// Requests that an objective applies to.
    AppliesTo {
        /// Model names; a trailing `*` matches any suffix. Empty: all models.
        models: Vec<String> = Vec::new(),
        /// Route names, as in `observe.routes`. Empty: all routes that generate tokens.
        routes: Vec<String> = Vec::new(),
        /// Tenant names, as sent by clients. Empty: all tenants. The block `tenants` sets the headers and the JWT claim
        /// that contain the tenant name, even if `tenants.enabled` is false.
        tenants: Vec<String> = Vec::new(),
    }
}

block! {
    /// Availability objective.
    Availability {
        /// Name of the objective, used as the label `slo`: lowercase letters, digits, `-` and `_`.
        name: String = "availability".to_owned(),
        /// Minimum percentage of good requests.
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
        /// Minimum percentage of good requests.
        #[schemars(range(min = 1, max = 99.9999))]
        target_percent: f64 = 99.0,
        /// Maximum time from the last byte of the request to the first token.
        #[schemars(extend("x-range" = ["1ms", "24h"]))]
        max: Duration = Duration::from_millis(2000),
        /// Time added to `max` per 1000 prompt tokens that were not in the engine's cache. 0: the same limit for all
        /// prompts. If the engine does not report the prompt length, one token per four request bytes is assumed.
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
        /// Minimum percentage of good requests.
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
        /// Minimum percentage of good requests.
        #[schemars(range(min = 1, max = 99.9999))]
        target_percent: f64 = 99.0,
        /// Maximum time between two tokens, and between the last token and the end of a failed or aborted stream.
        /// Pauses that the stream's own cadence explains do not count (docs/concepts/stalls.md).
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
        /// Minimum percentage of good requests.
        #[schemars(range(min = 1, max = 99.9999))]
        target_percent: f64 = 95.0,
        /// Requests that the objective applies to.
        applies_to: AppliesTo = AppliesTo::default(),
    }
}

block! {
    /// Per-request targets, used only to evaluate requests, and never a label.
    RequestTargets {
        /// If true, clients can set targets for a request in its headers, which replace the limits of your objectives
        /// (docs/concepts/objectives.md). Enable this only if a gateway sets or removes these headers. If false, only
        /// the configured objectives apply.
        enabled: bool = false,
    }
}

block! {
    /// Counting by tenant.
    Tenants {
        /// If true, tokens and requests are counted by tenant (`tokometer.tenant.*`). Tokometer does not verify tenant
        /// names: put an authenticating gateway in front, or use a server that rejects unknown clients.
        enabled: bool = false,
        /// Request headers that can contain the tenant name, for the tenant metrics and for objectives. The first
        /// header in this list that the request contains is used. null: `x-tenant`, or no header if `from_jwt_claim`
        /// is set.
        from_headers: Option<Vec<String>> = None,
        /// Claim of the bearer token (a signed JWT) that names the tenant: `sub`, or `org.id` for `id` in the object
        /// `org`. It takes precedence over `from_headers`, which names the tenant only of requests without this claim.
        /// The signature is not verified, and no other claim is read or stored. null: tokens are not read.
        from_jwt_claim: Option<String> = None,
        #[serde(flatten)]
        #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
        counted: accounting::Tenants = accounting::Tenants::default(),
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
        /// Tenants that the budget applies to, as named by clients. Empty: all.
        tenants: Vec<String> = Vec::new(),
    }
}

impl Tenants {
    /// The headers that name the tenant. By default, an unverified header must not replace a claim that the server
    /// verifies.
    pub(crate) fn headers(&self) -> &[String] {
        static DEFAULT: LazyLock<[String; 1]> = LazyLock::new(|| ["x-tenant".to_owned()]);
        match &self.from_headers {
            Some(headers) => headers,
            None if self.from_jwt_claim.is_some() => &[],
            None => &*DEFAULT,
        }
    }
}
