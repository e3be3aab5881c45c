//! Accounting: a sink that adds up tokens, cost and budget use by tenant and model.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;

use crate::accounting::Basis;
use crate::accounting::Budget;
use crate::accounting::Error;
use crate::accounting::Limit;
use crate::accounting::Settings;
use crate::accounting::Unpriced;
use crate::accounting::Usage;
use crate::accounting::cost;
use crate::accounting::identity::Identity;
use crate::accounting::identity::OTHER;
use crate::accounting::identity::Places;
use crate::accounting::price::is_taken;
use crate::accounting::settings::covers;
use crate::accounting::sums::Cost;
use crate::accounting::sums::Missing;
use crate::accounting::sums::Sum;
use crate::accounting::sums::Used;
use tokometer_observe::measure::Models;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;

/// Unit of token budgets.
pub const TOKENS: &str = "tokens";

type Name = Option<Arc<str>>;

/// Model, tenant, currency.
type CostPlace = (Name, Name, Arc<str>);

/// Budget name and unit.
type BudgetPlace = (String, Arc<str>);

/// Sums by key.
type Table<K, V> = RwLock<HashMap<K, Arc<V>>>;

/// Adds up tokens, cost and budget use.
#[derive(Debug)]
pub struct Ledger {
    rules: ArcSwap<Rules>,
    models: Models,
    /// Labels of tenants without a configured name, and when each was last used.
    places: RwLock<Places>,
    folded: AtomicU64,
    tenants: Table<Name, Used>,
    costs: Table<CostPlace, Cost>,
    unpriced: Table<Name, Missing>,
    budgets: Table<BudgetPlace, Sum>,
}

/// Validated settings, with the hash key loaded.
#[derive(Debug)]
pub struct Rules {
    settings: Settings,
    identity: Option<Identity>,
}

/// Usage of one tenant. `None`: requests without a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantUsage {
    /// The label.
    pub tenant: Option<Arc<str>>,
    /// Since the start of the process.
    pub usage: Usage,
}

/// Cost of one model, by tenant if tenants are counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The model; `None` until a server has named one.
    pub model: Option<Arc<str>>,
    /// The tenant label.
    pub tenant: Option<Arc<str>>,
    /// The currency.
    pub currency: Arc<str>,
    /// Sums by basis.
    pub by_basis: Vec<(Basis, f64)>,
}

/// Responses of one model that have no price.
#[derive(Clone, Debug, PartialEq)]
pub struct UnpricedAnswers {
    /// The model; `None` until a server has named one.
    pub model: Option<Arc<str>>,
    /// Count for every reason.
    pub by_reason: Vec<(Unpriced, u64)>,
}

/// Use of one budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    /// Name of the budget.
    pub budget: String,
    /// Unit: [`TOKENS`], or the currency.
    pub unit: Arc<str>,
    /// Daily limit.
    pub limit: f64,
    /// Used since the start of the process.
    pub spent: f64,
}

/// All sums at one moment. Lists are sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// By tenant; empty if tenants are not counted.
    pub tenants: Vec<TenantUsage>,
    /// Requests counted under the tenant `other` because the tenant limit was reached, or the server refused a request
    /// of an unknown tenant.
    pub folded: u64,
    /// Costs.
    pub costs: Vec<Costs>,
    /// Responses without a price, by model.
    pub unpriced: Vec<UnpricedAnswers>,
    /// The current budgets.
    pub budgets: Vec<Spent>,
}

impl Ledger {
    /// Creates an accounting sink.
    ///
    /// # Errors
    /// When the key of the tenant hash cannot be read.
    pub fn new(settings: Settings) -> Result<Ledger, Error> {
        let models = Models::new(settings.max_models, &settings.models);
        let ledger = Ledger {
            rules: ArcSwap::from_pointee(Rules::new(settings)?),
            models,
            places: RwLock::default(),
            folded: AtomicU64::new(0),
            tenants: RwLock::default(),
            costs: RwLock::default(),
            unpriced: RwLock::default(),
            budgets: RwLock::default(),
        };
        ledger.found();
        Ok(ledger)
    }

    /// Replaces the settings. Existing sums are kept; new prices apply to later requests.
    pub fn reload(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        self.found();
    }

    /// Adds a finished request.
    pub fn add(&self, record: &Record) {
        let rules = self.rules.load();
        if !rules.settings.is_on() || !record.labels.route.is_read() {
            return;
        }
        let model = self.models.of(record, |gone| {
            retain(&self.costs, |(model, ..)| model.as_deref() != Some(gone));
            retain(&self.unpriced, |model| model.as_deref() != Some(gone));
        });
        let tenant = rules.identity.as_ref().and_then(|identity| self.tenant(identity, record));
        if rules.identity.is_some() {
            at(&self.tenants, tenant.clone()).add(record);
        }
        let cost = rules.settings.prices.as_ref().and_then(|prices| {
            let cost = cost(record, model.as_deref(), prices)?;
            match cost {
                Ok((money, basis)) => {
                    let place = (model.clone(), tenant.clone(), prices.currency.as_str().into());
                    at(&self.costs, place).add(money, basis);
                }
                Err(why) => at(&self.unpriced, model.clone()).add(why),
            }
            cost.ok().map(|(money, _)| money)
        });
        for budget in rules.settings.budgets.iter().filter(|budget| concerns(budget, record, model.as_deref())) {
            let used = match budget.limit {
                Limit::Tokens(_) => Some(tokens(record)),
                Limit::Cost(_) => cost,
            };
            at(&self.budgets, rules.place(budget)).add(used.unwrap_or(0.0));
        }
    }

    /// All sums.
    pub fn sums(&self) -> Sums {
        let rules = self.rules.load();
        let mut tenants =
            each(&self.tenants, |tenant, used| TenantUsage { tenant: tenant.clone(), usage: used.usage() });
        tenants.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        let mut costs = each(&self.costs, |(model, tenant, currency), cost| Costs {
            model: model.clone(),
            tenant: tenant.clone(),
            currency: Arc::clone(currency),
            by_basis: cost.by_basis(),
        });
        costs.sort_by(|a, b| (&a.model, &a.tenant, &a.currency).cmp(&(&b.model, &b.tenant, &b.currency)));
        let mut unpriced = each(&self.unpriced, |model, missing| UnpricedAnswers {
            model: model.clone(),
            by_reason: missing.by_reason(),
        });
        unpriced.sort_by(|a, b| a.model.cmp(&b.model));
        let budgets = rules.settings.budgets.iter().map(|budget| {
            let (name, unit) = rules.place(budget);
            let limit = match budget.limit {
                Limit::Tokens(tokens) => tokens as f64,
                Limit::Cost(money) => money,
            };
            let spent = at(&self.budgets, (name.clone(), Arc::clone(&unit))).get();
            Spent { budget: name, unit, limit, spent }
        });
        Sums { tenants, folded: self.folded.load(Ordering::Relaxed), costs, unpriced, budgets: budgets.collect() }
    }

    /// The tenant label of a request; `None` if the request names no tenant.
    fn tenant(&self, identity: &Identity, record: &Record) -> Name {
        let said = record.targets.as_ref()?.tenant.as_deref()?;
        // A server that authenticates clients refuses made-up tenants, so only an accepted request may add a label.
        let admitted = is_taken(record);
        let now = record.started + record.ended;
        let found = identity.label(said, admitted, &self.places.read().unwrap_or_else(PoisonError::into_inner), now);
        let found = if found.is_new {
            // Checked again: another thread may have added a label since.
            let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
            let found = identity.label(said, admitted, &places, now);
            if let Some(gone) = &found.replaces {
                places.remove(gone);
                retain(&self.tenants, |tenant| tenant.as_ref() != Some(gone));
                retain(&self.costs, |(_, tenant, _)| tenant.as_ref() != Some(gone));
            }
            if found.is_new {
                places.insert(Arc::clone(&found.label), Mutex::new(now));
            }
            found
        } else {
            found
        };
        if found.folded {
            self.folded.fetch_add(1, Ordering::Relaxed);
        }
        Some(found.label)
    }

    /// Creates the sums known from the start at zero, so that `rate` sees the first event.
    fn found(&self) {
        let rules = self.rules.load();
        if let Some(identity) = &rules.identity {
            for name in identity.names().chain([OTHER]) {
                at(&self.tenants, Some(name.into()));
            }
            at(&self.tenants, None);
        }
        for budget in &rules.settings.budgets {
            at(&self.budgets, rules.place(budget));
        }
    }
}

impl Rules {
    /// Loads the key of the tenant hash.
    ///
    /// # Errors
    /// When the key cannot be read.
    pub fn new(settings: Settings) -> Result<Rules, Error> {
        let identity = settings.tenants.as_ref().map(Identity::new).transpose()?;
        Ok(Rules { settings, identity })
    }

    fn place(&self, budget: &Budget) -> BudgetPlace {
        let currency = || self.settings.prices.as_ref().map(|prices| prices.currency.as_str());
        let unit = match budget.limit {
            Limit::Tokens(_) => TOKENS,
            Limit::Cost(_) => currency().unwrap_or_default(),
        };
        (budget.name.clone(), unit.into())
    }
}

/// True when a budget applies to this request.
fn concerns(budget: &Budget, record: &Record, model: Option<&str>) -> bool {
    let tenant = record.targets.as_ref().and_then(|targets| targets.tenant.as_deref());
    let named = model.or(record.labels.request_model.as_deref()).unwrap_or_default();
    let models = budget.models.is_empty() || budget.models.iter().any(|pattern| covers(pattern, named));
    models && (budget.tenants.is_empty() || tenant.is_some_and(|tenant| budget.tenants.iter().any(|t| t == tenant)))
}

/// The known tokens of a request. A budget is a guard rather than a bill, so a lower bound is better than nothing.
fn tokens(record: &Record) -> f64 {
    let known = [record.input_tokens, record.output_tokens].into_iter().flatten();
    known.map(|count| count.tokens as f64).sum()
}

/// The sum at this key, created on first use.
fn at<K: Eq + Hash, V: Default>(table: &Table<K, V>, place: K) -> Arc<V> {
    if let Some(found) = table.read().unwrap_or_else(PoisonError::into_inner).get(&place) {
        return Arc::clone(found);
    }
    Arc::clone(table.write().unwrap_or_else(PoisonError::into_inner).entry(place).or_default())
}

/// Removes the sums of evicted models or tenants. A sum that is created again starts at zero.
fn retain<K: Eq + Hash, V>(table: &Table<K, V>, keep: impl Fn(&K) -> bool) {
    table.write().unwrap_or_else(PoisonError::into_inner).retain(|place, _| keep(place));
}

fn each<K, V, T>(table: &Table<K, V>, show: impl Fn(&K, &V) -> T) -> Vec<T> {
    table.read().unwrap_or_else(PoisonError::into_inner).iter().map(|(place, sum)| show(place, sum)).collect()
}

impl Sink for Ledger {
    fn record(&self, record: &Record) {
        self.add(record);
    }
}
