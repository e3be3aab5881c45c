//! The blocks `tenants`, `prices` and `budgets`: token usage per tenant, its cost, and its limits.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counting by tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tenants {
    /// True counts tokens and requests by tenant (`tokometer.tenant.*`). The tenant is whatever name the client sends,
    /// unverified: put an authenticating gateway in front, or use a server that rejects unknown clients.
    pub enabled: bool,
    /// Request headers that may name the tenant; the first one present is used. Objectives use them too.
    pub from_headers: Vec<String>,
    /// Claim of the bearer token (a signed JWT) that names the tenant if no header does: `sub`, or `org.id` for `id` in
    /// the object `org`. The signature is not verified, and no other claim is read or stored. null: tokens are not
    /// read.
    pub from_jwt_claim: Option<String>,
    /// Value of the label `tenant`.
    pub label: TenantLabel,
    /// File with the key for the hash, at least 16 bytes; use the same key on every pod. null: plain SHA-256, which
    /// lets anyone confirm a guessed name.
    pub hash_key_file: Option<String>,
    /// Tenants with a label value, `name sent by the client: label`. Their series exist from the start and do not count
    /// towards `max`.
    pub names: BTreeMap<String, String>,
    /// True counts tenants that are not in `names` as `other`.
    pub only_named: bool,
    /// Maximum number of tenants that are not in `names`, in the order of their first response with status 200-299;
    /// further ones are counted as `other`. When the maximum is reached, a new tenant replaces the least recently used
    /// one if that was unused for at least 10 minutes. The replaced tenant's series disappear, and restart at zero if
    /// the tenant returns.
    #[schemars(range(min = 1, max = 10000))]
    pub max: u64,
}

/// Value of the label `tenant`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TenantLabel {
    /// The first 12 digits of a hash: SHA-256, or HMAC-SHA-256 with a key.
    #[default]
    Hash,
    /// The name sent by the client, visible to everyone with access to the metrics.
    Plain,
}

impl Default for Tenants {
    fn default() -> Tenants {
        Tenants {
            enabled: false,
            from_headers: vec!["x-tenant".to_owned()],
            from_jwt_claim: None,
            label: TenantLabel::Hash,
            hash_key_file: None,
            names: BTreeMap::new(),
            only_named: false,
            max: 100,
        }
    }
}

/// Token prices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Currency, used as the label `currency`.
    pub currency: String,
    /// Prices by model; the first entry that matches a model is used. Empty: no costs are counted.
    pub models: Vec<Price>,
}

impl Default for Prices {
    fn default() -> Prices {
        Prices { currency: "USD".to_owned(), models: Vec::new() }
    }
}

/// Prices of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Price {
    /// Model name as returned by the server; a trailing `*` matches any suffix, `*` alone every model.
    pub model: String,
    /// Price of one million input tokens. Required.
    #[schemars(range(min = 0, max = 1000000000))]
    pub input_per_million: Option<f64>,
    /// Price of one million input tokens read from the engine's cache. null: the price of other input tokens.
    #[schemars(range(min = 0, max = 1000000000))]
    pub cached_input_per_million: Option<f64>,
    /// Price of one million output tokens. Required.
    #[schemars(range(min = 0, max = 1000000000))]
    pub output_per_million: Option<f64>,
}

/// A daily budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Name of the budget, used as the label `budget`: lowercase letters, digits, `-` and `_`.
    pub name: String,
    /// Maximum input and output tokens per day, from midnight to midnight UTC. Set either this or `cost_per_day`.
    #[schemars(range(min = 1, max = 1e15))]
    pub tokens_per_day: Option<u64>,
    /// Maximum cost per day, from midnight to midnight UTC, in the currency of `prices`.
    #[schemars(range(min = 0.000001, max = 1e12))]
    pub cost_per_day: Option<f64>,
    /// Model names that the budget applies to; a trailing `*` matches any suffix. Empty: all.
    pub models: Vec<String>,
    /// Tenants that the budget applies to, as named by the clients. Empty: all.
    pub tenants: Vec<String>,
}
