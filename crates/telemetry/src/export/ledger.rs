//! Usage and cost by tenant and model, as observations.

use std::sync::Arc;

use crate::export::attributes::Value;
use crate::export::failure;
use crate::export::table::Id;
use crate::export::table::Key;
use tokometer_observe::measure::Outcome;

/// Totals of tokens, cost and budgets since the process started. String keys are values of `source` and `reason`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LedgerStats {
    /// By tenant; empty where tenants are not counted.
    pub tenants: Vec<TenantStats>,
    /// Requests whose tenant was folded into `other`; `None` where tenants are not counted.
    pub folded: Option<u64>,
    /// Costs.
    pub costs: Vec<CostStats>,
    /// Responses without a price, by model and reason.
    pub unpriced: Vec<UnpricedStats>,
    /// The configured budgets.
    pub budgets: Vec<BudgetStats>,
}

/// Usage of one tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantStats {
    /// Its label; `None` for requests without a tenant.
    pub tenant: Option<Arc<str>>,
    /// Requests by outcome.
    pub ended: Vec<(Outcome, u64)>,
    /// Input tokens by source.
    pub input: Vec<(&'static str, u64)>,
    /// Input tokens read from the engine's cache.
    pub cached: u64,
    /// Output tokens by source.
    pub output: Vec<(&'static str, u64)>,
}

/// Cost of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct CostStats {
    /// The model, if one is known.
    pub model: Option<Arc<str>>,
    /// The tenant, where tenants are counted.
    pub tenant: Option<Arc<str>>,
    /// The currency.
    pub currency: Arc<str>,
    /// Amount by source.
    pub by_source: Vec<(&'static str, f64)>,
}

/// Unpriced responses of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct UnpricedStats {
    /// The model, if one is known.
    pub model: Option<Arc<str>>,
    /// Number of responses, by reason.
    pub by_reason: Vec<(&'static str, u64)>,
}

/// Usage of a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetStats {
    /// Its name.
    pub budget: Arc<str>,
    /// Its unit.
    pub unit: Arc<str>,
    /// Daily limit.
    pub limit: f64,
    /// Amount used.
    pub spent: f64,
}

/// Pushes each value with its attributes.
pub(super) fn observe(stats: &LedgerStats, mut push: impl FnMut(Id, &[(Key, Value)], f64)) {
    if let Some(folded) = stats.folded {
        push(Id::LabelsFolded, &[(Key::Kind, Value::Word("tenant"))], folded as f64);
    }
    for tenant in &stats.tenants {
        let known = named(Key::Tenant, tenant.tenant.as_ref());
        let mut tell = |id, more: Option<(Key, &'static str)>, value: f64| {
            let more = more.map(|(key, word)| (key, Value::Word(word)));
            let attributes: Vec<(Key, Value)> = known.iter().cloned().chain(more).collect();
            push(id, &attributes, value);
        };
        for class in ["success", "client_abort", "failure", "unobserved"] {
            let of = tenant.ended.iter().filter(|(outcome, _)| failure::outcome_class(*outcome) == class);
            let ended: u64 = of.map(|(_, n)| n).sum();
            tell(Id::TenantExchanges, Some((Key::OutcomeClass, class)), ended as f64);
        }
        for (id, counts) in [(Id::TenantInputTokens, &tenant.input), (Id::TenantOutputTokens, &tenant.output)] {
            for (source, n) in counts {
                tell(id, Some((Key::Source, source)), *n as f64);
            }
        }
        tell(Id::TenantCachedTokens, None, tenant.cached as f64);
    }
    for cost in &stats.costs {
        let mut known = named(Key::Model, cost.model.as_ref());
        known.extend(named(Key::Tenant, cost.tenant.as_ref()));
        known.push((Key::Currency, Value::Text(Arc::clone(&cost.currency))));
        for (source, money) in &cost.by_source {
            let attributes: Vec<(Key, Value)> =
                known.iter().cloned().chain([(Key::Source, Value::Word(source))]).collect();
            push(Id::Cost, &attributes, *money);
        }
    }
    for unpriced in &stats.unpriced {
        for (reason, n) in &unpriced.by_reason {
            let mut attributes = named(Key::Model, unpriced.model.as_ref());
            attributes.push((Key::Reason, Value::Word(reason)));
            push(Id::Unpriced, &attributes, *n as f64);
        }
    }
    for budget in &stats.budgets {
        let attributes = [
            (Key::Budget, Value::Text(Arc::clone(&budget.budget))),
            (Key::Unit, Value::Text(Arc::clone(&budget.unit))),
        ];
        push(Id::BudgetSpent, &attributes, budget.spent);
        push(Id::BudgetLimit, &attributes, budget.limit);
    }
}

fn named(key: Key, name: Option<&Arc<str>>) -> Vec<(Key, Value)> {
    name.map(|name| (key, Value::Text(Arc::clone(name)))).into_iter().collect()
}
