//! Accounting sums: label limits, `other`, and reloads.

use std::collections::BTreeMap;

use tokometer_observe::measure::CountSource;
use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Record;
use tokometer_telemetry::accounting::Basis;
use tokometer_telemetry::accounting::Ledger;
use tokometer_telemetry::accounting::Limit;
use tokometer_telemetry::accounting::Rules;
use tokometer_telemetry::accounting::Settings;
use tokometer_telemetry::accounting::Sums;
use tokometer_telemetry::accounting::Tenants;
use tokometer_telemetry::accounting::Unpriced;

use super::answer;
use super::budget;
use super::by;
use super::labelled;
use super::ledger;
use super::plain;
use super::prices;
use crate::export::records;

/// Requests by tenant; `-` for requests without a tenant.
fn exchanges(ledger: &Ledger) -> BTreeMap<String, u64> {
    let tenants = ledger.sums().tenants.into_iter();
    let ended = tenants.map(|one| {
        let name = one.tenant.map_or("-".to_owned(), |name| name.to_string());
        (name, one.usage.ended.iter().map(|(_, n)| n).sum())
    });
    ended.collect()
}

fn table(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
}

#[test]
fn nothing_is_counted_by_default() {
    let ledger = ledger(Settings::default());
    ledger.add(&by("a", answer("m")));
    assert_eq!(ledger.sums(), Sums::default());
}

#[test]
fn tokens_and_requests_are_counted_by_tenant() {
    let ledger = ledger(plain(10));
    ledger.add(&by("a", answer("m")));
    ledger.add(&by("a", answer("m")));
    ledger.add(&answer("m"));
    ledger.add(&by("b", records::other()));
    ledger.add(&by("a", Record { outcome: Outcome::ClientAbortMidStream, ..answer("m") }));
    let sums = ledger.sums();
    let a = &sums.tenants.iter().find(|one| one.tenant.as_deref() == Some("a")).unwrap().usage;
    assert_eq!((a.input.as_slice(), a.cached_input), (&[(CountSource::Usage, 3000)][..], 1800));
    assert_eq!(a.output, [(CountSource::Usage, 303)]);
    assert!(a.ended.contains(&(Outcome::Ok, 2)) && a.ended.contains(&(Outcome::ClientAbortMidStream, 1)));
    assert_eq!(exchanges(&ledger), table(&[("-", 1), ("a", 3), ("other", 0)]), "other paths are not counted");
}

#[test]
fn tenants_over_the_limit_are_counted_as_other() {
    let names = [("acme".to_owned(), "Acme".to_owned())].into();
    let mut settings = plain(5);
    settings.tenants.as_mut().unwrap().names = names;
    let ledger = ledger(settings);
    assert_eq!(exchanges(&ledger), table(&[("-", 0), ("Acme", 0), ("other", 0)]), "configured tenants start at zero");
    for n in 0..1000 {
        ledger.add(&by(&format!("t{n}"), answer("m")));
    }
    ledger.add(&by("acme", answer("m")));
    ledger.add(&by("t3", answer("m")));
    let counted = exchanges(&ledger);
    assert_eq!(counted.len(), 5 + 3, "{counted:?}");
    assert_eq!((counted["other"], counted["t3"], counted["Acme"]), (995, 2, 1));
    assert_eq!(ledger.sums().folded, 995);
}

#[test]
fn refused_requests_add_no_label() {
    let ledger = ledger(plain(1));
    let refused = |name: &str| {
        by(
            name,
            Record {
                outcome: Outcome::Http4xx,
                status: Some(401),
                input_tokens: None,
                output_tokens: None,
                ..answer("m")
            },
        )
    };
    ledger.add(&refused("made-up"));
    ledger.add(&by("real", answer("m")));
    ledger.add(&refused("real"));
    assert_eq!(exchanges(&ledger), table(&[("-", 0), ("other", 1), ("real", 2)]));
}

#[test]
fn label_is_a_hash_by_default() {
    let ledger = ledger(Settings { tenants: Some(Tenants::default()), ..Settings::default() });
    ledger.add(&by("acme", answer("m")));
    assert!(exchanges(&ledger).contains_key("822b33ad87c1"), "{:?}", exchanges(&ledger));
    assert!(!format!("{ledger:?}").contains("acme"), "the client-supplied name must not be kept");
}

#[test]
fn costs_are_split_by_model_tenant_and_basis_budgets_are_not() {
    let mut acme = budget("acme", Limit::Cost(25.0));
    acme.tenants = vec!["a".to_owned()];
    let mut of_m = budget("m", Limit::Tokens(9));
    of_m.models = vec!["m*".to_owned()];
    let budgets = vec![budget("all", Limit::Tokens(1_000_000)), acme, of_m];
    let ledger = ledger(Settings { prices: Some(prices()), budgets, ..plain(10) });
    let zero: Vec<f64> = ledger.sums().budgets.iter().map(|budget| budget.spent).collect();
    assert_eq!(zero, [0.0, 0.0, 0.0], "every budget starts at zero");
    ledger.add(&by("a", answer("m")));
    ledger.add(&by("b", answer("m")));
    ledger.add(&by("a", Record { cached_tokens: None, ..answer("m") }));
    ledger.add(&by("a", answer("x")));
    ledger.add(&by("a", records::busy("m")));
    let sums = ledger.sums();
    let costs: Vec<_> = sums
        .costs
        .iter()
        .map(|cost| {
            assert_eq!((cost.model.as_deref(), &*cost.currency), (Some("m"), "USD"));
            let millionths = |money: f64| (money * 1e6).round() as u64;
            let by_basis = cost.by_basis.iter().map(|(basis, money)| (*basis, millionths(*money)));
            (cost.tenant.as_deref(), by_basis.collect::<Vec<_>>())
        })
        .collect();
    let a = vec![(Basis::Exact, 763), (Basis::Estimate, 1303)];
    assert_eq!(costs, [(Some("a"), a), (Some("b"), vec![(Basis::Exact, 763)])]);
    let unpriced = &sums.unpriced[0];
    assert_eq!((unpriced.model.as_deref(), sums.unpriced.len()), (Some("x"), 1));
    assert!(unpriced.by_reason.contains(&(Unpriced::NoPrice, 1)));
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
    let ledger = ledger(Settings { budgets: vec![of_m], ..Settings::default() });
    let record = Record { outcome: Outcome::ClientAbortMidStream, ..answer("m") };
    ledger.add(&labelled(record, |labels| labels.response_model = None));
    assert_eq!(ledger.sums().budgets[0].spent, 1101.0);
}

#[test]
fn reload_keeps_sums_and_prices_later_requests_anew() {
    let settings = Settings { prices: Some(prices()), budgets: vec![budget("b", Limit::Tokens(10))], ..plain(10) };
    let ledger = ledger(settings.clone());
    ledger.add(&by("a", answer("m")));
    let before = ledger.sums();
    let mut dearer = prices();
    dearer.models.iter_mut().for_each(|price| price.output *= 2.0);
    let mut changed = Settings { prices: Some(dearer), ..settings.clone() };
    changed.budgets[0].limit = Limit::Tokens(20);
    changed.budgets.push(budget("c", Limit::Cost(1.0)));
    ledger.reload(Rules::new(changed).unwrap());
    let after = ledger.sums();
    assert_eq!((&after.tenants, &after.costs), (&before.tenants, &before.costs));
    assert_eq!((after.budgets[0].spent, after.budgets[0].limit, after.budgets[1].spent), (1101.0, 20.0, 0.0));
    ledger.add(&by("a", answer("m")));
    let money = ledger.sums().costs[0].by_basis[0].1;
    assert!((money * 1e6 - (763.0 + 763.0 + 303.0)).abs() < 1e-6, "{money}");
    let broken = Tenants { hash_key_file: Some("/nonexistent/key".into()), ..Tenants::default() };
    let error = Rules::new(Settings { tenants: Some(broken), ..settings.clone() }).unwrap_err().to_string();
    assert!(error.contains("tenants.hash_key_file: cannot read /nonexistent/key"), "{error}");
    ledger.add(&by("a", answer("m")));
    assert_eq!(exchanges(&ledger)["a"], 3, "the old settings stay in effect");
    ledger.reload(Rules::new(Settings { tenants: None, prices: None, ..settings }).unwrap());
    ledger.add(&by("a", answer("m")));
    assert_eq!(ledger.sums().budgets[0].spent, 4.0 * 1101.0);
}
