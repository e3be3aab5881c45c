//! Usage and cost per tenant: a row of the overview.

use serde_json::json;

use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Target;
use crate::dashboards::promql::Label;
use crate::dashboards::promql::is;
use crate::dashboards::promql::share;
use crate::dashboards::promql::total;
use crate::dashboards::viz;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

const TENANTS: &str = "only where tenants are told apart";
const PRICES: &str = "only where prices are set";
const TENANT: Label = Label::Of(Key::Tenant);
const LEGEND: &str = "{{tenant}}";

pub(super) fn panels() -> Vec<Panel> {
    vec![tokens(), failures(), cost()]
}

fn tokens() -> Panel {
    viz::graph(
        "Output tokens per second by tenant",
        "The ten that get the most, of exchanges that ended. A tenant is a hash unless the settings name it (docs/TENANTS.md).",
        viz::MANY_TOKENS_PER_SECOND,
    )
    .target(Target::range(LEGEND, format!("topk(10, {})", total(Id::TenantOutputTokens, &[TENANT], &[]))))
    .may_be_empty(TENANTS)
    .size(8, 8)
}

fn failures() -> Panel {
    let all = total(Id::TenantExchanges, &[TENANT], &[]);
    let failed = total(Id::TenantExchanges, &[TENANT], &[is(Key::OutcomeClass, "failure")]);
    viz::graph(
        "Failures by tenant",
        "Share of their exchanges that the server failed, of the ten for whom it is the largest. One far above the others asks for what \
         others do not.",
        "percentunit",
    )
    .field("max", json!(1))
    .target(Target::range(LEGEND, format!("topk(10, {} > 0)", share(&failed, &all))))
    .may_be_empty("only where tenants are told apart, and an exchange of one failed")
    .size(8, 8)
}

fn cost() -> Panel {
    let by = [Label::Of(Key::Model), Label::Of(Key::Currency)];
    viz::graph(
        "Cost per hour by model",
        "At the rate of the moment and the prices of the settings, in their currency; what is an estimate or a lower bound is in it.",
        "short",
    )
    .target(Target::range("{{model}} {{currency}}", format!("3600 * {}", total(Id::Cost, &by, &[]))))
    .may_be_empty(PRICES)
    .size(8, 8)
}
