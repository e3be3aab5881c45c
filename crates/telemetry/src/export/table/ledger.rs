//! Entries about tenants, cost and budgets.

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
        "Requests by tenant; only with `tenants`",
    ),
    &[Key::Tenant, Key::OutcomeClass],
);

pub(super) const TENANT_INPUT: Metric = by(
    counter(
        Id::TenantInputTokens,
        "tokometer.tenant.input.tokens",
        "{token}",
        Scope::Process,
        "Prompt tokens by tenant, including cached ones; only with `tenants`",
    ),
    &[Key::Tenant, Key::Source],
);

pub(super) const TENANT_CACHED: Metric = by(
    counter(
        Id::TenantCachedTokens,
        "tokometer.tenant.cached.tokens",
        "{token}",
        Scope::Process,
        "Prompt tokens read from the engine's cache, where the engine reports them, by tenant; only with `tenants`",
    ),
    &[Key::Tenant],
);

pub(super) const TENANT_OUTPUT: Metric = by(
    counter(
        Id::TenantOutputTokens,
        "tokometer.tenant.output.tokens",
        "{token}",
        Scope::Process,
        "Output tokens by tenant, including partial ones of aborted requests; only with `tenants`",
    ),
    &[Key::Tenant, Key::Source],
);

pub(super) const COST: Metric = by(
    counter(
        Id::Cost,
        "tokometer.cost",
        "{currency}",
        Scope::Process,
        "Cost of responses at the configured prices; `source` marks it as exact, an estimate or a lower bound; only with `prices`",
    ),
    &[Key::Model, Key::Tenant, Key::Currency, Key::Source],
);

pub(super) const UNPRICED: Metric = by(
    counter(
        Id::Unpriced,
        "tokometer.unpriced",
        "{exchange}",
        Scope::Process,
        "Responses not included in any cost because their model has no price or their token count is unknown; only with `prices`",
    ),
    &[Key::Model, Key::Reason],
);

pub(super) const BUDGET_SPENT: Metric = by(
    counter(
        Id::BudgetSpent,
        "tokometer.budget.spent",
        "",
        Scope::Process,
        "Amount of a budget used since the process started, in the budget's unit",
    ),
    &[Key::Budget, Key::Unit],
);

pub(super) const BUDGET_LIMIT: Metric = by(
    gauge(Id::BudgetLimit, "tokometer.budget.limit", "", "Daily limit of a budget (midnight to midnight UTC)"),
    &[Key::Budget, Key::Unit],
);
