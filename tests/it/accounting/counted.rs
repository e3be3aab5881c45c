//! Accounting sums: label limits, `other`, and reloads.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokometer_observe::measure::{CountSource, Outcome, Record};
use tokometer_telemetry::accounting::{Accounting, Basis, Limit, Rules, Settings, Sums, Tenants, Unpriced};

use super::{accounting, budget, by, labelled, plain, prices, response};
use crate::export::records;

/// Requests by tenant; `-` for requests without a tenant.
fn requests(accounting: &Accounting) -> BTreeMap<String, u64> {
    let tenants = accounting.sums().tenants.into_iter();
    let ended = tenants.map(|(tenant, usage)| {
        let name = tenant.map_or("-".to_owned(), |name| name.to_string());
        (name, usage.ended.values().sum())
    });
    ended.collect()
}

fn table(listeners: &[(&str, u64)]) -> BTreeMap<String, u64> {
    listeners.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
}

#[test]
fn nothing_is_counted_by_default() {
    let accounting = accounting(Settings::default());
    accounting.add(&by("a", response("m")));
    assert_eq!(accounting.sums(), Sums::default());
}

#[test]
fn tokens_and_requests_are_counted_by_tenant() {
    let accounting = accounting(plain(10));
    accounting.add(&by("a", response("m")));
    accounting.add(&by("a", response("m")));
    accounting.add(&response("m"));
    accounting.add(&by("b", records::other()));
    accounting.add(&by("a", Record { outcome: Outcome::ClientAbortMidStream, ..response("m") }));
    let sums = accounting.sums();
    let a = &sums.tenants[&Some(Arc::<str>::from("a"))];
    assert_eq!((&a.input, a.cached_input), (&[(CountSource::Usage, 3000)].into(), 1800));
    assert_eq!(a.output, [(CountSource::Usage, 303)].into());
    assert_eq!(a.ended, [(Outcome::Ok, 2), (Outcome::ClientAbortMidStream, 1)].into());
    assert_eq!(requests(&accounting), table(&[("-", 1), ("a", 3), ("other", 0)]), "other paths are not counted");
}

#[test]
fn tenants_over_the_limit_are_counted_as_other() {
    let names = [("acme".to_owned(), "Acme".to_owned())].into();
    let mut settings = plain(5);
    settings.tenants.as_mut().unwrap().names = names;
    let accounting = accounting(settings);
    assert_eq!(
        requests(&accounting),
        table(&[("-", 0), ("Acme", 0), ("other", 0)]),
        "configured tenants start at zero"
    );
    for n in 0..1000 {
        accounting.add(&by(&format!("t{n}"), response("m")));
    }
    accounting.add(&by("acme", response("m")));
    accounting.add(&by("t3", response("m")));
    let counted = requests(&accounting);
    assert_eq!(counted.len(), 5 + 3, "{counted:?}");
    assert_eq!((counted["other"], counted["t3"], counted["Acme"]), (995, 2, 1));
    assert_eq!(accounting.sums().folded, 995);
}

#[test]
fn refused_requests_add_no_label() {
    let accounting = accounting(plain(1));
    let refused = |name: &str| {
        by(
            name,
            response("m").with(|r| {
                r.outcome = Outcome::Http4xx;
                r.response.status = Some(401);
                r.tokens.input = None;
                r.tokens.output = None;
            }),
        )
    };
    accounting.add(&refused("made-up"));
    accounting.add(&by("real", response("m")));
    accounting.add(&refused("real"));
    assert_eq!(requests(&accounting), table(&[("-", 0), ("other", 1), ("real", 2)]));
}

#[test]
fn label_is_a_hash_by_default() {
    let accounting = accounting(Settings { tenants: Some(Tenants::default()), ..Settings::default() });
    accounting.add(&by("acme", response("m")));
    assert!(requests(&accounting).contains_key("822b33ad87c1"), "{:?}", requests(&accounting));
    assert!(!format!("{accounting:?}").contains("acme"), "the client-supplied name must not be kept");
}

#[test]
fn costs_are_split_by_model_tenant_and_basis_budgets_are_not() {
    let mut acme = budget("acme", Limit::Cost(25.0));
    acme.tenants = vec!["a".to_owned()];
    let mut of_m = budget("m", Limit::Tokens(9));
    of_m.models = vec!["m*".to_owned()];
    let budgets = vec![budget("all", Limit::Tokens(1_000_000)), acme, of_m];
    let accounting = accounting(Settings { prices: Some(prices()), budgets, ..plain(10) });
    let zero: Vec<f64> = accounting.sums().budgets.iter().map(|budget| budget.spent).collect();
    assert_eq!(zero, [0.0, 0.0, 0.0], "every budget starts at zero");
    accounting.add(&by("a", response("m")));
    accounting.add(&by("b", response("m")));
    accounting.add(&by("a", response("m").with(|r| r.tokens.cached = None)));
    accounting.add(&by("a", response("x")));
    accounting.add(&by("a", records::busy("m")));
    let sums = accounting.sums();
    let costs: Vec<_> = sums
        .costs
        .iter()
        .map(|((model, tenant, currency), by_basis)| {
            assert_eq!((model.as_deref(), &**currency), (Some("m"), "USD"));
            let millionths = |money: f64| (money * 1e6).round() as u64;
            let by_basis = by_basis.iter().map(|(basis, money)| (*basis, millionths(*money)));
            (tenant.as_deref(), by_basis.collect::<Vec<_>>())
        })
        .collect();
    let a = vec![(Basis::Exact, 763), (Basis::Estimate, 1303)];
    assert_eq!(costs, [(Some("a"), a), (Some("b"), vec![(Basis::Exact, 763)])]);
    assert_eq!(sums.unpriced.len(), 1);
    assert_eq!(sums.unpriced[&Some(Arc::<str>::from("x"))][&Unpriced::NoPrice], 1);
    let spent: Vec<(&str, &str, f64, f64)> =
        sums.budgets.iter().map(|b| (b.budget.as_str(), &*b.unit, b.limit, (b.spent * 1e6).round() / 1e6)).collect();
    assert_eq!(
        spent,
        [
            ("all", "tokens", 1_000_000.0, 4.0 * 1101.0),
            ("acme", "USD", 25.0, 0.002066),
            ("m", "tokens", 9.0, 3.0 * 1101.0),
        ]
    );
}

#[test]
fn aborted_request_uses_the_budget_of_the_requested_model() {
    let mut of_m = budget("m", Limit::Tokens(9));
    of_m.models = vec!["m".to_owned()];
    let accounting = accounting(Settings { budgets: vec![of_m], ..Settings::default() });
    let record = Record { outcome: Outcome::ClientAbortMidStream, ..response("m") };
    accounting.add(&labelled(record, |labels| labels.response_model = None));
    assert_eq!(accounting.sums().budgets[0].spent, 1101.0);
}

#[test]
fn reload_keeps_sums_and_prices_later_requests_anew() {
    let settings = Settings { prices: Some(prices()), budgets: vec![budget("b", Limit::Tokens(10))], ..plain(10) };
    let accounting = accounting(settings.clone());
    accounting.add(&by("a", response("m")));
    let before = accounting.sums();
    let mut dearer = prices();
    dearer.models.iter_mut().for_each(|price| price.output *= 2.0);
    let mut changed = Settings { prices: Some(dearer), ..settings.clone() };
    changed.budgets[0].limit = Limit::Tokens(20);
    changed.budgets.push(budget("c", Limit::Cost(1.0)));
    accounting.reload(Rules::new(changed).unwrap());
    let after = accounting.sums();
    assert_eq!((&after.tenants, &after.costs), (&before.tenants, &before.costs));
    assert_eq!((after.budgets[0].spent, after.budgets[0].limit, after.budgets[1].spent), (1101.0, 20.0, 0.0));
    accounting.add(&by("a", response("m")));
    let money = accounting.sums().costs.values().next().unwrap()[&Basis::Exact];
    assert!((money * 1e6 - (763.0 + 763.0 + 303.0)).abs() < 1e-6, "{money}");
    let broken = Tenants { hash_key_file: Some("/nonexistent/key".into()), ..Tenants::default() };
    let error = Rules::new(Settings { tenants: Some(broken), ..settings.clone() }).unwrap_err().to_string();
    assert!(error.contains("tenants.hash_key_file: cannot read /nonexistent/key"), "{error}");
    accounting.add(&by("a", response("m")));
    assert_eq!(requests(&accounting)["a"], 3, "the old settings stay in effect");
    accounting.reload(Rules::new(Settings { tenants: None, prices: None, ..settings }).unwrap());
    accounting.add(&by("a", response("m")));
    assert_eq!(accounting.sums().budgets[0].spent, 4.0 * 1101.0);
}
