//! The entries about tenants, cost and budgets.

use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::build::by;
use crate::export::table::build::counter;
use crate::export::table::build::gauge;

pub(super) const TENANT_EXCHANGES: Metric = by(
    counter(
        Id::TenantExchanges,
        "tokometer.tenant.exchanges",
        "{exchange}",
        Scope::Process,
        "Exchanges by whose they were; only with `tenants`",
    ),
    &[Key::Tenant, Key::OutcomeClass],
);

pub(super) const TENANT_INPUT: Metric = by(
    counter(
        Id::TenantInputTokens,
        "tokometer.tenant.input.tokens",
        "{token}",
        Scope::Process,
        "Prompt tokens by whose they were, cached ones included; only with `tenants`",
    ),
    &[Key::Tenant, Key::Source],
);

pub(super) const TENANT_CACHED: Metric = by(
    counter(
        Id::TenantCachedTokens,
        "tokometer.tenant.cached.tokens",
        "{token}",
        Scope::Process,
        "Prompt tokens that came from the engine's cache, where it tells them, by whose they were; only with `tenants`",
    ),
    &[Key::Tenant],
);

pub(super) const TENANT_OUTPUT: Metric = by(
    counter(
        Id::TenantOutputTokens,
        "tokometer.tenant.output.tokens",
        "{token}",
        Scope::Process,
        "Output tokens by whose they were, partial ones of aborted exchanges included; only with `tenants`",
    ),
    &[Key::Tenant, Key::Source],
);

pub(super) const COST: Metric = by(
    counter(
        Id::Cost,
        "tokometer.cost",
        "{currency}",
        Scope::Process,
        "What answers cost by the prices that are set; `source` says whether it is exact, an estimate or a lower bound; only with `prices`",
    ),
    &[Key::Model, Key::Tenant, Key::Currency, Key::Source],
);

pub(super) const UNPRICED: Metric = by(
    counter(
        Id::Unpriced,
        "tokometer.unpriced",
        "{exchange}",
        Scope::Process,
        "Answers that are in no cost: their model has no price, or their tokens are not known; only with `prices`",
    ),
    &[Key::Model, Key::Reason],
);

pub(super) const BUDGET_SPENT: Metric = by(
    counter(
        Id::BudgetSpent,
        "tokometer.budget.spent",
        "",
        Scope::Process,
        "What was used of a budget since the start of the process, in its unit",
    ),
    &[Key::Budget, Key::Unit],
);

pub(super) const BUDGET_LIMIT: Metric = by(
    gauge(
        Id::BudgetLimit,
        "tokometer.budget.limit",
        "",
        "What may be used of a budget from one midnight (UTC) to the next",
    ),
    &[Key::Budget, Key::Unit],
);
