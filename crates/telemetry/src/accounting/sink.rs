//! A sink that sums tokens, cost and budget use by tenant and model.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokometer_decode::Route;
use tokometer_observe::measure::{Count, CountSource, Models, Outcome, Record, Sink, Slots};

use crate::accounting::latency::Latencies;
use crate::accounting::price::is_accepted;
use crate::accounting::tenants::{OTHER, TenantLabels};
use crate::accounting::{Basis, Budget, Error, Limit, Settings, Unpriced, cost, covers};
use crate::export::{Histograms, outcome_class};
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points};

/// Unit of token budgets.
pub const TOKENS: &str = "tokens";

/// Label of a model or tenant. `None` if no response has named a model yet, or the request has no tenant.
type Name = Option<Arc<str>>;

/// Model, tenant (`None` if tenants are not counted) and currency of a cost.
type CostKey = (Name, Name, Arc<str>);

/// Budget name and unit.
type BudgetKey = (String, Arc<str>);

/// Sums tokens, cost and budget use by tenant and model.
#[derive(Debug)]
pub struct Accounting {
    models: Models,
    /// Never locked by the data path.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rules: Arc<Rules>,
    /// Labels of tenants without a configured name.
    labels: Slots<Arc<str>>,
    /// The start of the times in `labels`: the end of the first request.
    epoch: Option<Instant>,
    latencies: Latencies,
    /// All sums except the use of budgets.
    sums: Sums,
    /// Used amount of each budget, including budgets that a reload removed.
    spent: HashMap<BudgetKey, f64>,
}

/// Validated settings, with the hash key loaded.
#[derive(Debug)]
pub struct Rules {
    settings: Settings,
    tenants: Option<TenantLabels>,
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
    /// Amount used since the start of the process.
    pub spent: f64,
}

/// All sums at one moment, since the start of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// By tenant; empty if tenants are not counted.
    pub tenants: BTreeMap<Name, Usage>,
    /// Requests counted under the tenant `other`, because the tenant limit was reached or the server rejected a request
    /// of an unknown tenant.
    pub folded: u64,
    /// Requests whose priority class was counted as `other`, because the limit on pairs of tenant and class was reached
    /// or the server rejected a request with an unknown pair.
    pub folded_classes: u64,
    /// Costs by basis.
    pub costs: BTreeMap<CostKey, BTreeMap<Basis, f64>>,
    /// Unpriced responses by model and reason.
    pub unpriced: BTreeMap<Name, BTreeMap<Unpriced, u64>>,
    /// The current budgets.
    pub budgets: Vec<Spent>,
}

/// Usage of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests by outcome.
    pub ended: BTreeMap<Outcome, u64>,
    /// Input tokens by source, including cached ones.
    pub input: BTreeMap<CountSource, u64>,
    /// Input tokens from the engine's cache.
    pub cached_input: u64,
    /// Output tokens by source.
    pub output: BTreeMap<CountSource, u64>,
}

impl Usage {
    fn add(&mut self, record: &Record) {
        let add = |sums: &mut BTreeMap<CountSource, u64>, count: Option<Count>| {
            if let Some(Count { tokens, source }) = count {
                *sums.entry(source).or_default() += tokens;
            }
        };
        *self.ended.entry(record.outcome).or_default() += 1;
        add(&mut self.input, record.tokens.input);
        add(&mut self.output, record.tokens.output);
        self.cached_input += record.tokens.cached.unwrap_or(0);
    }
}

impl Accounting {
    /// Creates an accounting sink.
    ///
    /// # Errors
    /// When the key of the tenant hash cannot be read.
    pub fn new(settings: Settings) -> Result<Accounting, Error> {
        let models = Models::new(settings.max_models, &settings.models);
        let rules = Arc::new(Rules::new(settings)?);
        let state = State {
            rules,
            labels: Slots::new(0),
            epoch: None,
            latencies: Latencies::default(),
            sums: Sums::default(),
            spent: HashMap::new(),
        };
        let accounting = Accounting { models, state: Mutex::new(state) };
        accounting.state().create_known();
        Ok(accounting)
    }

    /// From now on, also records latencies by tenant in these histograms.
    pub fn record_latencies_in(&self, histograms: Histograms) {
        self.state().latencies.record_in(histograms);
    }

    /// Replaces the settings. Existing sums are kept; new prices apply to later requests.
    pub fn reload(&self, rules: Rules) {
        let mut state = self.state();
        state.rules = Arc::new(rules);
        state.create_known();
    }

    /// Adds a finished request.
    pub fn add(&self, record: &Record) {
        let rules = Arc::clone(&self.state().rules);
        // With disaggregated prefill, prefill requests are not counted: the decode engine reports the same prompt
        // again.
        let is_counted = record.labels.route.is_read() && record.labels.route != Route::Prefill;
        if !rules.settings.is_on() || !is_counted {
            return;
        }
        let mut evicted = Vec::new();
        let model = self.models.of(record, |name| evicted.push(name.to_owned()));
        let mut state = self.state();
        // Removes the sums of models that lost their label. If such a model returns, its sums restart at zero.
        for name in evicted {
            state.sums.costs.retain(|(model, ..), _| model.as_deref() != Some(&name));
            state.sums.unpriced.retain(|model, _| model.as_deref() != Some(&name));
        }
        let tenant = rules.tenants.as_ref().and_then(|labels| state.tenant(labels, record));
        let now = state.now(record);
        if let Some(tenants) = &rules.settings.tenants {
            state.sums.tenants.entry(tenant.clone()).or_default().add(record);
            state.latencies.add(&tenant, record, tenants.most, now);
            state.sums.folded_classes = state.latencies.folded;
        }
        let prices = rules.settings.prices.as_ref();
        let cost = prices.and_then(|prices| Some((prices, cost(record, model.as_deref(), prices)?)));
        let mut paid = 0.0;
        match cost {
            None => {}
            Some((prices, Ok((money, basis)))) => {
                let key = (model.clone(), tenant, prices.currency.as_str().into());
                let by_basis = state.sums.costs.entry(key).or_insert_with(|| [(Basis::Exact, 0.0)].into());
                *by_basis.entry(basis).or_default() += money;
                paid = money;
            }
            Some((_, Err(why))) => {
                let zero = || Unpriced::ALL.map(|why| (why, 0)).into();
                *state.sums.unpriced.entry(model.clone()).or_insert_with(zero).entry(why).or_default() += 1;
            }
        }
        for budget in rules.settings.budgets.iter().filter(|budget| concerns(budget, record, model.as_deref())) {
            *state.spent.entry(rules.budget_key(budget)).or_default() += match budget.limit {
                Limit::Tokens(_) => tokens(record),
                Limit::Cost(_) => paid,
            };
        }
    }

    /// All sums.
    pub fn sums(&self) -> Sums {
        let state = self.state();
        let budgets = state.rules.settings.budgets.iter().map(|budget| {
            let key = state.rules.budget_key(budget);
            let spent = state.spent.get(&key).copied().unwrap_or_default();
            let limit = match budget.limit {
                Limit::Tokens(tokens) => tokens as f64,
                Limit::Cost(money) => money,
            };
            Spent { budget: key.0, unit: key.1, limit, spent }
        });
        Sums { budgets: budgets.collect(), ..state.sums.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The end of the request, in milliseconds since that of the first request.
    fn now(&mut self, record: &Record) -> u64 {
        let ended = record.started + record.times.ended;
        let since = ended.saturating_duration_since(*self.epoch.get_or_insert(ended));
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The tenant label of a request; `None` if the request names no tenant.
    fn tenant(&mut self, labels: &TenantLabels, record: &Record) -> Name {
        let name = record.request.targets.as_ref()?.tenant.as_deref()?;
        let now = self.now(record);
        // A server that authenticates clients rejects made-up tenants, so only accepted requests add labels.
        let found = labels.label(name, is_accepted(record), &mut self.labels, now);
        if let Some(gone) = found.replaces {
            self.sums.tenants.retain(|tenant, _| tenant.as_ref() != Some(&gone));
            self.sums.costs.retain(|(_, tenant, _), _| tenant.as_ref() != Some(&gone));
            self.latencies.forget_tenant(&gone);
        }
        self.sums.folded += u64::from(found.folded);
        Some(found.label)
    }

    /// Creates the sums of all configured tenants at zero, so that `rate()` includes the first request.
    fn create_known(&mut self) {
        if let Some(labels) = &self.rules.tenants {
            for tenant in labels.names().chain([OTHER]).map(|name| Some(name.into())).chain([None]) {
                self.sums.tenants.entry(tenant).or_default();
            }
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

/// True if the budget applies to this request.
fn concerns(budget: &Budget, record: &Record, model: Option<&str>) -> bool {
    let tenant = record.request.targets.as_ref().and_then(|targets| targets.tenant.as_deref());
    let named = model.or(record.labels.request_model.as_deref()).unwrap_or_default();
    let models = budget.models.is_empty() || budget.models.iter().any(|pattern| covers(pattern, named));
    models && (budget.tenants.is_empty() || tenant.is_some_and(|tenant| budget.tenants.iter().any(|t| t == tenant)))
}

/// The known tokens of a request. Lower bounds are included: a budget is a guard, not a bill.
fn tokens(record: &Record) -> f64 {
    let known = [record.tokens.input, record.tokens.output].into_iter().flatten();
    known.map(|count| count.tokens as f64).sum()
}

impl Collect for Accounting {
    fn collect(&self, points: &mut Points<'_>) {
        let sums = self.sums();
        if !sums.tenants.is_empty() {
            let folded = [("tenant", sums.folded), ("priority_class", sums.folded_classes)];
            points.put_each(Id::LabelsFolded, Key::Kind, folded);
        }
        for (tenant, usage) in sums.tenants {
            let tenant = (Key::Tenant, tenant.into());
            for class in ["success", "client_abort", "failure", "unobserved"] {
                let of = usage.ended.iter().filter(|(outcome, _)| outcome_class(**outcome) == class);
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
        for ((model, tenant, currency), by_basis) in sums.costs {
            let known = [(Key::Model, model.into()), (Key::Tenant, tenant.into()), (Key::Currency, currency.into())];
            for (basis, money) in by_basis {
                let [model, tenant, currency] = known.clone();
                points.put(Id::Cost, &[model, tenant, currency, (Key::Source, basis.as_str().into())], money);
            }
        }
        for (model, by_reason) in sums.unpriced {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::accounting::Tenants;
    use tokometer_metrics::values_of;
    use tokometer_observe::measure::{Labels, Outcome};

    #[test]
    fn exported_requests_of_a_tenant_are_grouped_by_outcome_class() {
        let settings = Settings { tenants: Some(Tenants::default()), ..Settings::default() };
        let accounting = Accounting::new(settings).unwrap();
        for outcome in [Outcome::Ok, Outcome::Drained, Outcome::Http4xx, Outcome::Ok, Outcome::Unobserved] {
            let labels = Labels { route: Route::Chat, ..Labels::default() };
            accounting.add(&Record::new(labels, Instant::now(), outcome, Duration::ZERO));
        }
        // The four outcome classes of requests without a tenant, then those of the tenant `other`.
        assert_eq!(values_of(&accounting, Id::TenantRequests), [2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(values_of(&accounting, Id::LabelsFolded), [0.0, 0.0]);
    }

    #[test]
    fn concurrent_additions_are_not_lost() {
        let settings = Settings { tenants: Some(Tenants::default()), ..Settings::default() };
        let accounting = Accounting::new(settings).unwrap();
        let labels = Labels { route: Route::Chat, ..Labels::default() };
        let record = Record::new(labels, Instant::now(), Outcome::Ok, Duration::ZERO)
            .with(|r| r.tokens.input = Some(Count { tokens: 3, source: CountSource::Usage }));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5_000).for_each(|_| accounting.add(&record)));
            }
        });
        let usage = &accounting.sums().tenants[&None];
        assert_eq!((usage.ended[&Outcome::Ok], usage.input[&CountSource::Usage]), (20_000, 60_000));
    }
}
