//! Accounting: a sink that adds up tokens, cost and budget use by tenant and model.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use tokometer_observe::measure::CountSource;
use tokometer_observe::measure::Models;
use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;

use crate::accounting::Basis;
use crate::accounting::Budget;
use crate::accounting::Error;
use crate::accounting::Limit;
use crate::accounting::Settings;
use crate::accounting::Unpriced;
use crate::accounting::cost;
use crate::accounting::covers;
use crate::accounting::price::is_accepted;
use crate::accounting::tenants::LabelsInUse;
use crate::accounting::tenants::OTHER;
use crate::accounting::tenants::TenantLabels;
use crate::export::Collect;
use crate::export::Points;
use crate::export::outcome_class;
use crate::export::table::Id;
use crate::export::table::Key;

/// Unit of token budgets.
pub const TOKENS: &str = "tokens";

type Name = Option<Arc<str>>;

/// Model, tenant, currency.
type CostKey = (Name, Name, Arc<str>);

/// Budget name and unit.
type BudgetKey = (String, Arc<str>);

/// Sums by key.
type Table<K, V> = RwLock<HashMap<K, Arc<V>>>;

/// Adds up tokens, cost and budget use.
#[derive(Debug)]
pub struct Accounting {
    rules: ArcSwap<Rules>,
    models: Models,
    /// Labels of tenants without a configured name, and when each was last used.
    labels: RwLock<LabelsInUse>,
    folded: AtomicU64,
    tenants: Table<Name, Used>,
    costs: Table<CostKey, [Sum; Basis::ALL.len()]>,
    unpriced: Table<Name, [AtomicU64; Unpriced::ALL.len()]>,
    budgets: Table<BudgetKey, Sum>,
}

/// Validated settings, with the hash key loaded.
#[derive(Debug)]
pub struct Rules {
    settings: Settings,
    tenants: Option<TenantLabels>,
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
    /// Sums by basis; zero sums are left out, except for the exact one.
    pub by_basis: Vec<(Basis, f64)>,
}

/// Responses of one model that have no price.
#[derive(Clone, Debug, PartialEq)]
pub struct UnpricedResponses {
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
    pub unpriced: Vec<UnpricedResponses>,
    /// The current budgets.
    pub budgets: Vec<Spent>,
}

impl Accounting {
    /// Creates an accounting sink.
    ///
    /// # Errors
    /// When the key of the tenant hash cannot be read.
    pub fn new(settings: Settings) -> Result<Accounting, Error> {
        let models = Models::new(settings.max_models, &settings.models);
        let accounting = Accounting {
            rules: ArcSwap::from_pointee(Rules::new(settings)?),
            models,
            labels: RwLock::default(),
            folded: AtomicU64::new(0),
            tenants: RwLock::default(),
            costs: RwLock::default(),
            unpriced: RwLock::default(),
            budgets: RwLock::default(),
        };
        accounting.create_known();
        Ok(accounting)
    }

    /// Replaces the settings. Existing sums are kept; new prices apply to later requests.
    pub fn reload(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        self.create_known();
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
        let tenant = rules.tenants.as_ref().and_then(|labels| self.tenant(labels, record));
        if rules.tenants.is_some() {
            at(&self.tenants, tenant.clone()).add(record);
        }
        let cost = rules.settings.prices.as_ref().and_then(|prices| {
            let cost = cost(record, model.as_deref(), prices)?;
            match cost {
                Ok((money, basis)) => {
                    let key = (model.clone(), tenant.clone(), prices.currency.as_str().into());
                    at(&self.costs, key)[basis as usize].add(money);
                }
                Err(why) => {
                    at(&self.unpriced, model.clone())[why as usize].fetch_add(1, Relaxed);
                }
            }
            cost.ok().map(|(money, _)| money)
        });
        for budget in rules.settings.budgets.iter().filter(|budget| concerns(budget, record, model.as_deref())) {
            let used = match budget.limit {
                Limit::Tokens(_) => Some(tokens(record)),
                Limit::Cost(_) => cost,
            };
            at(&self.budgets, rules.budget_key(budget)).add(used.unwrap_or(0.0));
        }
    }

    /// All sums.
    pub fn sums(&self) -> Sums {
        let rules = self.rules.load();
        let mut tenants =
            each(&self.tenants, |tenant, used| TenantUsage { tenant: tenant.clone(), usage: used.usage() });
        tenants.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        let mut costs = each(&self.costs, |(model, tenant, currency), sums| {
            let by_basis = Basis::ALL.into_iter().zip(sums).map(|(basis, sum)| (basis, sum.get()));
            Costs {
                model: model.clone(),
                tenant: tenant.clone(),
                currency: Arc::clone(currency),
                by_basis: by_basis.filter(|(basis, money)| *basis == Basis::Exact || *money > 0.0).collect(),
            }
        });
        costs.sort_by(|a, b| (&a.model, &a.tenant, &a.currency).cmp(&(&b.model, &b.tenant, &b.currency)));
        let mut unpriced = each(&self.unpriced, |model, counts| UnpricedResponses {
            model: model.clone(),
            by_reason: Unpriced::ALL.into_iter().zip(counts).map(|(why, n)| (why, n.load(Relaxed))).collect(),
        });
        unpriced.sort_by(|a, b| a.model.cmp(&b.model));
        let budgets = rules.settings.budgets.iter().map(|budget| {
            let (name, unit) = rules.budget_key(budget);
            let limit = match budget.limit {
                Limit::Tokens(tokens) => tokens as f64,
                Limit::Cost(money) => money,
            };
            let spent = at(&self.budgets, (name.clone(), Arc::clone(&unit))).get();
            Spent { budget: name, unit, limit, spent }
        });
        Sums { tenants, folded: self.folded.load(Relaxed), costs, unpriced, budgets: budgets.collect() }
    }

    /// The tenant label of a request; `None` if the request names no tenant.
    fn tenant(&self, labels: &TenantLabels, record: &Record) -> Name {
        let name = record.targets.as_ref()?.tenant.as_deref()?;
        // A server that authenticates clients refuses made-up tenants, so only an accepted request may add a label.
        let admitted = is_accepted(record);
        let now = record.started + record.ended;
        let found = labels.label(name, admitted, &self.labels.read().unwrap_or_else(PoisonError::into_inner), now);
        let found = if found.is_new {
            // Checked again: another thread may have added a label since.
            let mut in_use = self.labels.write().unwrap_or_else(PoisonError::into_inner);
            let found = labels.label(name, admitted, &in_use, now);
            if let Some(gone) = &found.replaces {
                in_use.remove(gone);
                retain(&self.tenants, |tenant| tenant.as_ref() != Some(gone));
                retain(&self.costs, |(_, tenant, _)| tenant.as_ref() != Some(gone));
            }
            if found.is_new {
                in_use.insert(Arc::clone(&found.label), Mutex::new(now));
            }
            found
        } else {
            found
        };
        if found.folded {
            self.folded.fetch_add(1, Relaxed);
        }
        Some(found.label)
    }

    /// Creates the sums known from the start at zero, so that `rate` sees the first event.
    fn create_known(&self) {
        let rules = self.rules.load();
        if let Some(labels) = &rules.tenants {
            for name in labels.names().chain([OTHER]) {
                at(&self.tenants, Some(name.into()));
            }
            at(&self.tenants, None);
        }
        for budget in &rules.settings.budgets {
            at(&self.budgets, rules.budget_key(budget));
        }
    }
}

impl Rules {
    /// Loads the key of the tenant hash.
    ///
    /// # Errors
    /// When the key cannot be read.
    pub fn new(settings: Settings) -> Result<Rules, Error> {
        let tenants = settings.tenants.as_ref().map(TenantLabels::new).transpose()?;
        Ok(Rules { settings, tenants })
    }

    fn budget_key(&self, budget: &Budget) -> BudgetKey {
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
fn at<K: Eq + Hash, V: Default>(table: &Table<K, V>, key: K) -> Arc<V> {
    if let Some(found) = table.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Arc::clone(found);
    }
    Arc::clone(table.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_default())
}

/// Removes the sums of evicted models or tenants. A sum that is created again starts at zero.
fn retain<K: Eq + Hash, V>(table: &Table<K, V>, keep: impl Fn(&K) -> bool) {
    table.write().unwrap_or_else(PoisonError::into_inner).retain(|key, _| keep(key));
}

fn each<K, V, T>(table: &Table<K, V>, show: impl Fn(&K, &V) -> T) -> Vec<T> {
    table.read().unwrap_or_else(PoisonError::into_inner).iter().map(|(key, sum)| show(key, sum)).collect()
}

impl Collect for Accounting {
    fn collect(&self, points: &mut Points<'_>) {
        let sums = self.sums();
        if !sums.tenants.is_empty() {
            points.put(Id::LabelsFolded, &[(Key::Kind, "tenant".into())], sums.folded);
        }
        for TenantUsage { tenant, usage } in sums.tenants {
            let tenant = (Key::Tenant, tenant.into());
            for class in ["success", "client_abort", "failure", "unobserved"] {
                let of = usage.ended.iter().filter(|(outcome, _)| outcome_class(*outcome) == class);
                let ended: u64 = of.map(|(_, n)| n).sum();
                points.put(Id::TenantRequests, &[tenant.clone(), (Key::OutcomeClass, class.into())], ended);
            }
            for (id, counts) in [(Id::TenantInputTokens, usage.input), (Id::TenantOutputTokens, usage.output)] {
                for (source, tokens) in counts {
                    points.put(id, &[tenant.clone(), (Key::Source, source.as_str().into())], tokens);
                }
            }
            points.put(Id::TenantCachedTokens, &[tenant], usage.cached_input);
        }
        for Costs { model, tenant, currency, by_basis } in sums.costs {
            let known = [(Key::Model, model.into()), (Key::Tenant, tenant.into()), (Key::Currency, currency.into())];
            for (basis, money) in by_basis {
                let [model, tenant, currency] = known.clone();
                points.put(Id::Cost, &[model, tenant, currency, (Key::Source, basis.as_str().into())], money);
            }
        }
        for UnpricedResponses { model, by_reason } in sums.unpriced {
            for (why, n) in by_reason {
                points.put(Id::Unpriced, &[(Key::Model, model.clone().into()), (Key::Reason, why.as_str().into())], n);
            }
        }
        for Spent { budget, unit, limit, spent } in sums.budgets {
            let place = [(Key::Budget, Arc::<str>::from(budget).into()), (Key::Unit, unit.into())];
            points.put(Id::BudgetSpent, &place, spent);
            points.put(Id::BudgetLimit, &place, limit);
        }
    }
}

impl Sink for Accounting {
    fn record(&self, record: &Arc<Record>) {
        self.add(record);
    }
}

/// A sum of money or tokens.
#[derive(Debug, Default)]
struct Sum(AtomicU64);

impl Sum {
    /// Adds a finite value above 0; ignores others.
    fn add(&self, value: f64) {
        if value.is_finite() && value > 0.0 {
            let more = |bits: u64| Some((f64::from_bits(bits) + value).to_bits());
            // Cannot fail: the closure always returns a value.
            self.0.fetch_update(Relaxed, Relaxed, more).ok();
        }
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

/// Usage of one tenant.
#[derive(Debug, Default)]
struct Used {
    ended: [AtomicU64; Outcome::ALL.len()],
    input: [AtomicU64; CountSource::ALL.len()],
    cached: AtomicU64,
    output: [AtomicU64; CountSource::ALL.len()],
}

/// Usage of one tenant at one moment. Zero counts are left out, except for outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests by outcome, for every outcome.
    pub ended: Vec<(Outcome, u64)>,
    /// Input tokens by source, including cached ones.
    pub input: Vec<(CountSource, u64)>,
    /// Input tokens from the engine's cache.
    pub cached_input: u64,
    /// Output tokens by source.
    pub output: Vec<(CountSource, u64)>,
}

impl Used {
    fn add(&self, record: &Record) {
        self.ended[record.outcome as usize].fetch_add(1, Relaxed);
        for (counters, count) in [(&self.input, record.input_tokens), (&self.output, record.output_tokens)] {
            if let Some(count) = count {
                counters[count.source as usize].fetch_add(count.tokens, Relaxed);
            }
        }
        self.cached.fetch_add(record.cached_tokens.unwrap_or(0), Relaxed);
    }

    fn usage(&self) -> Usage {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let tokens = |counters: &[AtomicU64]| {
            let each = CountSource::ALL.into_iter().zip(counters).map(|(source, n)| (source, read(n)));
            each.filter(|(_, n)| *n > 0).collect()
        };
        Usage {
            ended: Outcome::ALL.into_iter().zip(&self.ended).map(|(outcome, n)| (outcome, read(n))).collect(),
            input: tokens(&self.input),
            cached_input: read(&self.cached),
            output: tokens(&self.output),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::*;
    use crate::accounting::Tenants;
    use crate::export::values_of;
    use tokometer_decode::Route;
    use tokometer_observe::measure::Labels;
    use tokometer_observe::measure::Outcome;

    #[test]
    fn exported_requests_of_a_tenant_are_grouped_by_outcome_class() {
        let settings = Settings { tenants: Some(Tenants::default()), ..Settings::default() };
        let accounting = Accounting::new(settings).unwrap();
        for outcome in [Outcome::Ok, Outcome::Drained, Outcome::Http4xx, Outcome::Ok, Outcome::Unobserved] {
            let labels = Labels { route: Route::Chat, ..Labels::default() };
            accounting.add(&Record::new(labels, Instant::now(), outcome, Duration::ZERO));
        }
        // Requests without a tenant, and those of other tenants.
        assert_eq!(values_of(&accounting, Id::TenantRequests), [2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(values_of(&accounting, Id::LabelsFolded), [0.0]);
    }

    #[test]
    fn sum_ignores_negative_and_non_finite_values() {
        let sum = Sum::default();
        for value in [0.1, -5.0, f64::NAN, f64::INFINITY, 0.0, 0.2] {
            sum.add(value);
        }
        assert!((sum.get() - 0.3).abs() < 1e-12, "{}", sum.get());
    }

    #[test]
    fn concurrent_additions_are_not_lost() {
        let sum = Sum::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| sum.add(0.5)));
            }
        });
        assert_eq!(sum.get(), 20_000.0);
    }
}
