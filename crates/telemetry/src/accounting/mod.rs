//! Accounting: tokens, cost and budget use by tenant and model, summed up from request records.
//!
//! Disabled unless configured. Tenant names are client-supplied and not verified; their label is a hash unless
//! configured otherwise. A request with unknown token counts adds no cost and is counted as unpriced.

mod price;
mod sink;
mod tenants;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use price::{Basis, Unpriced, cost};
pub use sink::{Accounting, Rules, Spent, Sums, TOKENS, Usage};
pub use tenants::Error;

/// Which tenants are counted separately, token prices, and budgets.
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

/// Counting by tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenants {
    /// Label of a tenant without a configured name.
    pub form: TenantForm,
    /// File with the hash key; `None`: a hash without a key.
    pub hash_key_file: Option<PathBuf>,
    /// Labels by client-supplied name. These tenants do not count towards `most`.
    pub names: BTreeMap<String, String>,
    /// Counts all tenants without a configured name as `other`.
    pub only_named: bool,
    /// Maximum number of tenants without a configured name; further tenants are counted as `other`.
    pub most: usize,
}

/// Form of a tenant label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantForm {
    /// The first 12 hexadecimal digits of a SHA-256.
    #[default]
    Hash,
    /// The client-supplied name.
    Plain,
}

/// Token prices.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// The currency of all prices, the label `currency`.
    pub currency: String,
    /// Prices by model: the first matching pattern applies.
    pub models: Vec<Price>,
}

/// Price of a million tokens of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// Model name; a trailing `*` matches any suffix.
    pub model: String,
    /// A million input tokens that the engine did not have in its cache.
    pub input: f64,
    /// A million input tokens from the engine's cache; `None`: same as other input tokens.
    pub cached_input: Option<f64>,
    /// A million output tokens.
    pub output: f64,
}

/// A daily budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Name, the label `budget`.
    pub name: String,
    /// Limit from one midnight (UTC) to the next.
    pub limit: Limit,
    /// Models it applies to, a trailing `*` matches any suffix; an empty list does not restrict.
    pub models: Vec<String>,
    /// Tenants it applies to, as named by the client; an empty list does not restrict.
    pub tenants: Vec<String>,
}

/// The size of a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Input and output tokens.
    Tokens(u64),
    /// Money, in the currency of the prices.
    Cost(f64),
}

impl Settings {
    /// True when anything is counted.
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

/// True when a pattern matches this model.
pub(crate) fn covers(pattern: &str, model: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begin) => model.starts_with(begin),
        None => model == pattern,
    }
}
