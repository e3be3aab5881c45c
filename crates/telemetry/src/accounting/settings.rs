//! What a person may set about tenants, prices and budgets.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Who is counted apart, what tokens cost, and how many may be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Counting by tenant; `None`: nobody is told apart.
    pub tenants: Option<Tenants>,
    /// Prices; `None`: nothing is priced.
    pub prices: Option<Prices>,
    /// Budgets, their names all different.
    pub budgets: Vec<Budget>,
    /// Models whose counters stand at zero from the start.
    pub models: Vec<String>,
    /// Most different models in counters; further ones are `other`.
    pub max_models: usize,
}

/// Counting by tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenants {
    /// What stands for a tenant that has no name of its own here.
    pub form: TenantForm,
    /// File that holds the key of the hash; `None`: a hash without a key.
    pub hash_key_file: Option<PathBuf>,
    /// Labels by what the client says. These tenants have a place from the start, beside `most`.
    pub names: BTreeMap<String, String>,
    /// Tenants without a name here are all counted as `other`.
    pub only_named: bool,
    /// Most tenants without a name here; further ones are `other`.
    pub most: usize,
}

/// What stands for a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantForm {
    /// The first 12 hexadecimal digits of a SHA-256.
    #[default]
    Hash,
    /// What the client says.
    Plain,
}

/// Prices of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// The currency of all of them, the label `currency`.
    pub currency: String,
    /// Prices by model: the first whose pattern covers the model counts.
    pub models: Vec<Price>,
}

/// What a million tokens of a model cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// Name of the model; a `*` at the end stands for any rest.
    pub model: String,
    /// A million input tokens that the engine did not have in its cache.
    pub input: f64,
    /// A million input tokens that came from the engine's cache; `None`: the same as others.
    pub cached_input: Option<f64>,
    /// A million output tokens.
    pub output: f64,
}

/// How much may be used in a day.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Name, the label `budget`.
    pub name: String,
    /// What may be used from one midnight (UTC) to the next.
    pub limit: Limit,
    /// Models that it is about, a `*` at the end stands for any rest; an empty list sets no bound.
    pub models: Vec<String>,
    /// Tenants that it is about, as the client names them; an empty list sets no bound.
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
    /// True when something is to be counted.
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

/// True when a pattern covers this model.
pub(super) fn covers(pattern: &str, model: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begin) => model.starts_with(begin),
        None => model == pattern,
    }
}
