//! Accounting: tokens, cost and budget use by tenant and model, summed up from request records.
//!
//! Disabled unless configured. Tenant names are client-supplied and not verified; by default, the label is a hash of
//! the name. A request with unknown token counts adds no cost and is counted as unpriced.

mod latency;
mod price;
mod sink;
mod tenants;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use price::{Basis, Unpriced, cost};
pub use sink::{Accounting, Rules, Spent, Sums, TOKENS, Usage};
pub use tenants::Error;

/// Tenant accounting, token prices and budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Counting by tenant; `None`: disabled.
    pub tenants: Option<Tenants>,
    /// Prices; `None`: no costs are computed.
    pub prices: Option<Prices>,
    /// Budgets; names are unique.
    pub budgets: Vec<Budget>,
    /// Models whose counters are exported as zero from the start.
    pub models: Vec<String>,
    /// Maximum number of different models in counters; further models are counted as `other`.
    pub max_models: usize,
}

/// Accounting by tenant: the keys of `tenants` in the configuration, except those that identify the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Tenants {
    /// Value of the label `tenant`.
    #[serde(rename = "label")]
    pub form: TenantForm,
    /// File with the key for the hash, at least 16 bytes; use the same key on every pod. null: SHA-256 without a key,
    /// so anyone who guesses a name can confirm it.
    pub hash_key_file: Option<PathBuf>,
    /// Label values of known tenants, `name sent by the client: label`. These tenants have series from the start, and
    /// do not count towards `max`.
    pub names: BTreeMap<String, String>,
    /// If true, tenants that are not in `names` are counted as `other`.
    pub only_named: bool,
    /// Maximum number of tenants that are not in `names`. Tenants get their label in the order of their first response
    /// with status 200-299; further tenants are counted as `other`. At the maximum, a new tenant replaces a tenant
    /// that was unused for at least 10 minutes, or the tenant with the least traffic if the new one has at least 16
    /// requests and twice that traffic. The replaced tenant's series disappear; they restart at zero if the tenant
    /// returns.
    #[serde(rename = "max")]
    #[schemars(range(min = 1, max = 10000))]
    pub most: usize,
}

/// Value of the label `tenant`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TenantForm {
    /// The first 12 hexadecimal digits of a hash: HMAC-SHA-256 if `hash_key_file` is set, otherwise SHA-256.
    #[default]
    Hash,
    /// The name sent by the client, visible to everyone with access to the metrics.
    Plain,
}

/// Token prices: the block `prices` of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Prices {
    /// Currency, used as the label `currency`.
    pub currency: String,
    /// Prices by model; the first entry that matches a model is used. Empty: no costs are counted.
    pub models: Vec<Price>,
}

/// Prices of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Price {
    /// Model name as returned by the server; a trailing `*` matches any suffix, `*` alone every model.
    pub model: String,
    /// Price of one million input tokens. Required; 0 if they are free.
    #[serde(rename = "input_per_million")]
    #[schemars(range(min = 0, max = 1000000000))]
    pub input: f64,
    /// Price of one million input tokens read from the engine's cache. null: the price of other input tokens.
    #[serde(rename = "cached_input_per_million", default)]
    #[schemars(range(min = 0, max = 1000000000))]
    pub cached_input: Option<f64>,
    /// Price of one million output tokens. Required; 0 if they are free.
    #[serde(rename = "output_per_million")]
    #[schemars(range(min = 0, max = 1000000000))]
    pub output: f64,
}

impl Default for Prices {
    fn default() -> Prices {
        Prices { currency: "USD".to_owned(), models: Vec::new() }
    }
}

/// A daily budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Name, the label `budget`.
    pub name: String,
    /// Limit from one midnight (UTC) to the next.
    pub limit: Limit,
    /// Models that the budget applies to; a trailing `*` matches any suffix. Empty: all.
    pub models: Vec<String>,
    /// Tenants that the budget applies to, as named by the client. Empty: all.
    pub tenants: Vec<String>,
}

/// The limit of a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Input and output tokens.
    Tokens(u64),
    /// Money, in the currency of the prices.
    Cost(f64),
}

impl Tenants {
    /// A function that hashes names as for labels, to show names that may be secrets.
    ///
    /// # Errors
    /// If the key file cannot be used.
    pub fn hashes(&self) -> Result<impl Fn(&str) -> String + use<>, Error> {
        let labels = tenants::TenantLabels::new(self)?;
        Ok(move |name: &str| labels.hash(name))
    }
}

impl Settings {
    /// True if tenants, prices or budgets are configured.
    pub fn is_on(&self) -> bool {
        self.tenants.is_some() || self.prices.is_some() || !self.budgets.is_empty()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { tenants: None, prices: None, budgets: Vec::new(), models: Vec::new(), max_models: 64 }
    }
}

impl Default for Tenants {
    fn default() -> Tenants {
        Tenants {
            form: TenantForm::default(),
            hash_key_file: None,
            names: BTreeMap::new(),
            only_named: false,
            most: 100,
        }
    }
}

/// True if the pattern matches this model. A trailing `*` matches any suffix.
pub(crate) fn covers(pattern: &str, model: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begin) => model.starts_with(begin),
        None => model == pattern,
    }
}
