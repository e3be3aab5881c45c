//! The accounting against a reference implementation that sums up all records on demand.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tokometer_observe::measure::{Count, CountSource, Outcome, Record};
use tokometer_telemetry::accounting::{Limit, Settings};

use super::{accounting, budget, by, plain, prices, response};

const CAP: usize = 3;

/// Values of the accounting by metric and labels.
type Sums = BTreeMap<String, f64>;

#[derive(Clone, Debug)]
struct Scene {
    model: &'static str,
    tenant: Option<&'static str>,
    outcome: Outcome,
    input: Option<(u64, CountSource)>,
    cached: Option<u64>,
    output: Option<(u64, CountSource)>,
}

impl Scene {
    fn status(&self) -> Option<u16> {
        match self.outcome {
            Outcome::Http4xx => Some(404),
            Outcome::Http5xx => Some(500),
            Outcome::RejectedBusy => Some(429),
            Outcome::UpstreamRefused => None,
            _ => Some(200),
        }
    }

    fn record(&self) -> Record {
        let count = |reported: Option<(u64, CountSource)>| reported.map(|(tokens, source)| Count { tokens, source });
        let record = response(self.model).with(|r| {
            r.outcome = self.outcome;
            r.response.status = self.status();
            r.tokens.input = count(self.input);
            r.tokens.cached = self.cached;
            r.tokens.output = count(self.output);
        });
        match self.tenant {
            Some(tenant) => by(tenant, record),
            None => record,
        }
    }
}

fn scene() -> impl Strategy<Value = Scene> {
    let source = || select(CountSource::ALL.to_vec());
    let outcomes = vec![
        Outcome::Ok,
        Outcome::Ok,
        Outcome::ClientAbortMidStream,
        Outcome::Truncated,
        Outcome::Http4xx,
        Outcome::RejectedBusy,
        Outcome::UpstreamRefused,
    ];
    (
        select(vec!["m-1", "m-2", "free-1", "x"]),
        option::of(select(vec!["a", "b", "c", "d", "e", "f"])),
        select(outcomes),
        option::of((0..2000_u64, source())),
        option::of(0..2500_u64),
        option::of((0..500_u64, source())),
    )
        .prop_map(|(model, tenant, outcome, input, cached, output)| Scene {
            model,
            tenant,
            outcome,
            input,
            cached,
            output,
        })
}

/// The reference implementation.
fn naively(scenes: &[Scene]) -> Sums {
    let mut places: Vec<&str> = Vec::new();
    let mut sums = Sums::new();
    for scene in scenes {
        let taken = scene.status() == Some(200);
        let tenant = match scene.tenant {
            None => "-",
            Some(name) if places.contains(&name) => name,
            Some(name) if taken && places.len() < CAP => {
                places.push(name);
                name
            }
            Some(_) => "other",
        };
        let mut add = |name: String, value: f64| *sums.entry(name).or_default() += value;
        add(format!("{tenant} {}", scene.outcome.as_str()), 1.0);
        for (kind, reported) in [("input", scene.input), ("output", scene.output)] {
            if let Some((tokens, source)) = reported {
                add(format!("{tenant} {kind} {}", source.as_str()), tokens as f64);
                add("budget tokens".to_owned(), tokens as f64);
            }
        }
        add(format!("{tenant} cached"), scene.cached.unwrap_or(0) as f64);
        if !taken {
            continue;
        }
        let free = scene.model.starts_with("free");
        match (scene.model, scene.input, scene.output) {
            ("x", ..) => add("unpriced x no_price".to_owned(), 1.0),
            (model, None, _) => add(format!("unpriced {model} no_input_count"), 1.0),
            (model, _, None) => add(format!("unpriced {model} no_output_count"), 1.0),
            (model, Some((input, of_input)), Some((output, of_output))) => {
                let cached = scene.cached.unwrap_or(0).min(input);
                let money = ((input - cached) as f64 * 1.0 + cached as f64 * 0.1 + output as f64 * 3.0) / 1e6;
                let money = if free { 0.0 } else { money };
                let any = |source| of_input == source || of_output == source;
                let basis = if (!free && scene.cached.is_none()) || any(CountSource::Tokenizer) {
                    "estimate"
                } else if any(CountSource::Deltas) {
                    "lower_bound"
                } else {
                    "exact"
                };
                add(format!("cost {model} {tenant} {basis}"), money);
                add("budget USD".to_owned(), money);
            }
        }
    }
    sums.retain(|_, value| *value > 0.0);
    sums
}

fn by_accounting(scenes: &[Scene]) -> Sums {
    let budgets = vec![budget("t", Limit::Tokens(5)), budget("c", Limit::Cost(5.0))];
    let accounting = accounting(Settings { prices: Some(prices()), budgets, ..plain(CAP) });
    scenes.iter().for_each(|scene| accounting.add(&scene.record()));
    let reported = accounting.sums();
    let mut sums = Sums::new();
    let mut put =
        |name: String, value: f64| assert_eq!(sums.insert(name.clone(), value), None, "{name} is reported twice");
    for (tenant, usage) in reported.tenants {
        let tenant = tenant.map_or("-".to_owned(), |name| name.to_string());
        usage.ended.iter().for_each(|(outcome, n)| put(format!("{tenant} {}", outcome.as_str()), *n as f64));
        usage.input.iter().for_each(|(source, n)| put(format!("{tenant} input {}", source.as_str()), *n as f64));
        usage.output.iter().for_each(|(source, n)| put(format!("{tenant} output {}", source.as_str()), *n as f64));
        put(format!("{tenant} cached"), usage.cached_input as f64);
    }
    for ((model, tenant, _), by_basis) in reported.costs {
        let model = model.expect("every response names its model");
        let tenant = tenant.map_or("-".to_owned(), |name| name.to_string());
        by_basis.iter().for_each(|(basis, money)| put(format!("cost {model} {tenant} {}", basis.as_str()), *money));
    }
    for (model, by_reason) in reported.unpriced {
        let model = model.expect("every response names its model");
        by_reason.iter().for_each(|(why, n)| put(format!("unpriced {model} {}", why.as_str()), *n as f64));
    }
    reported.budgets.iter().for_each(|budget| put(format!("budget {}", budget.unit), budget.spent));
    sums.retain(|_, value| *value > 0.0);
    sums
}

proptest! {
    #[test]
    fn sums_match_the_reference(scenes in vec(scene(), 0..120)) {
        let (ours, theirs) = (by_accounting(&scenes), naively(&scenes));
        prop_assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
        for (name, value) in &ours {
            prop_assert!((value - theirs[name]).abs() < 1e-9 * value.abs().max(1.0), "{}: {} and {}", name, value, theirs[name]);
        }
    }
}
