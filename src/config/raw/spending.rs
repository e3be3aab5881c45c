//! The blocks `tenants`, `prices` and `budgets`: who used how many tokens, what they cost, and how many may be used.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counting by tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tenants {
    /// True counts tokens and requests by tenant (`tokometer.tenant.*`). A tenant is who the client says it is: nothing of it is
    /// checked here, so put a gateway before it that does, or a server that refuses who is not known.
    pub enabled: bool,
    /// Headers of a request that may name its tenant; the first that is there does. Objectives take it from here too.
    pub from_headers: Vec<String>,
    /// Claim of the bearer token (a signed JWT) that names the tenant where no header does: `sub`, or `org.id` for the `id` in the
    /// object `org`. The token's signature is not checked, and nothing else of it is read or kept. null: tokens are left alone.
    pub from_jwt_claim: Option<String>,
    /// What stands in the label `tenant`.
    pub label: TenantLabel,
    /// File that holds a key for the hash, 16 bytes or more; the same on every pod. null: a plain SHA-256, with which a name that
    /// can be guessed can be recognised.
    pub hash_key_file: Option<String>,
    /// Tenants with a name of their own, `what the client says: label`. They have a series from the start, beside `max`.
    pub names: BTreeMap<String, String>,
    /// True counts tenants that are not in `names` as `other`.
    pub only_named: bool,
    /// Most tenants that are not in `names`, in the order in which the server first answers them with a status of 200-299; further
    /// ones are `other`. When there are as many, a new one replaces the one that was unused for the longest time, if that is 10
    /// minutes or more: its series disappear, and begin at zero if the tenant returns.
    #[schemars(range(min = 1, max = 10000))]
    pub max: u64,
}

/// What stands in the label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TenantLabel {
    /// The first 12 digits of a hash: SHA-256, with a key HMAC-SHA-256.
    #[default]
    Hash,
    /// What the client says, for everyone to read who reads metrics.
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

/// Prices of tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// The currency, as the label `currency` has it.
    pub currency: String,
    /// Prices by model; the first entry that covers a model counts. Empty: nothing is priced.
    pub models: Vec<Price>,
}

impl Default for Prices {
    fn default() -> Prices {
        Prices { currency: "USD".to_owned(), models: Vec::new() }
    }
}

/// Prices of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Price {
    /// Name of the model as the server gives it; a `*` at the end stands for any rest, alone for every model.
    pub model: String,
    /// Price of a million input tokens. It has to be set.
    #[schemars(range(min = 0, max = 1000000000))]
    pub input_per_million: Option<f64>,
    /// Price of a million input tokens that came from the engine's cache. null: that of other input tokens.
    #[schemars(range(min = 0, max = 1000000000))]
    pub cached_input_per_million: Option<f64>,
    /// Price of a million output tokens. It has to be set.
    #[schemars(range(min = 0, max = 1000000000))]
    pub output_per_million: Option<f64>,
}

/// How much may be used in a day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Name, the label `budget`: small letters, digits, `-` and `_`.
    pub name: String,
    /// Input and output tokens from one midnight (UTC) to the next. Either this or `cost_per_day` is set.
    #[schemars(range(min = 1, max = 1e15))]
    pub tokens_per_day: Option<u64>,
    /// Cost from one midnight (UTC) to the next, in the currency of `prices`.
    #[schemars(range(min = 0.000001, max = 1e12))]
    pub cost_per_day: Option<f64>,
    /// Names of models that it is about; a `*` at the end stands for any rest. Empty: all.
    pub models: Vec<String>,
    /// Tenants that it is about, as the client names them. Empty: all.
    pub tenants: Vec<String>,
}
