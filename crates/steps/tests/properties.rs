//! Properties that hold for any sequence of events.

mod common;

use common::{engine::Engine, recording::Results};
use proptest::prelude::*;
use tokometer_steps::{Analyzer, Cause, Event, Kind, Limits};

fn run(events: &[Event], limits: Limits) -> Results {
    let mut results = Results::default();
    let mut analyzer = Analyzer::new(limits);
    for &event in events {
        analyzer.push(event, &mut results);
    }
    analyzer.finish(&mut results);
    results
}

/// Events with times of a coarse grain, so that many are equal. A slot is reused at the earliest one grain after its end.
fn script() -> impl Strategy<Value = Vec<Event>> {
    let action =
        (0u32..6, 0u8..20, 1u32..12, prop_oneof![4 => Just(0u64), 3 => 1u64..4, 2 => 10u64..30, 1 => 30u64..3000]);
    prop::collection::vec(action, 1..400).prop_map(|actions| {
        let grain = 1_000_000;
        let mut at = 10 * grain;
        let mut open = [false; 6];
        let mut ended = [0u64; 6];
        let mut events = Vec::new();
        for (tag, (slot, action, number, later)) in actions.into_iter().enumerate() {
            at += later * grain;
            let own = slot as usize;
            let kind = match action {
                0 if open[own] => Kind::End { tokens: number },
                1 => Kind::Preemptions { from: at - 5 * grain, count: number / 6 },
                2 => Kind::Held { cause: Cause::Client, from: at - 3 * grain },
                3 => Kind::Held { cause: Cause::Tokometer, from: at - 3 * grain },
                _ if open[own] => Kind::Tokens { count: if number < 8 { 1 } else { number } },
                _ if ended[own] == at => continue,
                _ => Kind::Open { tag: tag as u64, prompt_tokens: number * number * 50, choices: 1 },
            };
            match kind {
                Kind::Open { .. } => open[own] = true,
                Kind::End { .. } => {
                    open[own] = false;
                    ended[own] = at;
                }
                _ => {}
            }
            events.push(Event { at, slot, kind });
        }
        events
    })
}

/// Kinds of one stream at one time that have an order.
fn depends(a: &Event, b: &Event) -> bool {
    let opens = |event: &Event| matches!(event.kind, Kind::Open { .. } | Kind::End { .. });
    a.slot == b.slot && (opens(a) || opens(b))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn steps_are_ordered_and_conserve_tokens(events in script()) {
        let results = run(&events, Limits::default());
        let mut end = 0;
        for (nth, step) in results.steps.iter().enumerate() {
            prop_assert_eq!(step.index, nth as u64 + 1);
            prop_assert!(step.start >= end, "step {} starts before the previous one ends", step.index);
            end = step.start + step.duration;
            prop_assert!(step.tokens() > 0);
        }
        let sent: u64 = events.iter().map(|event| match event.kind {
            Kind::Tokens { count } => u64::from(count),
            _ => 0,
        }).sum();
        prop_assert_eq!(results.steps.iter().map(|step| u64::from(step.tokens())).sum::<u64>(), sent);
    }

    #[test]
    fn order_of_simultaneous_events_is_irrelevant(events in script(), seed in any::<u64>()) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut shuffled = events.clone();
        for _ in 0..4 * shuffled.len() {
            let at = rng.usize(0..shuffled.len());
            if at > 0 && shuffled[at - 1].at == shuffled[at].at && !depends(&shuffled[at - 1], &shuffled[at]) {
                shuffled.swap(at - 1, at);
            }
        }
        let (one, other) = (run(&events, Limits::default()), run(&shuffled, Limits::default()));
        prop_assert_eq!(one.steps, other.steps);
        prop_assert_eq!(one.delays, other.delays);
        prop_assert_eq!(one.caused, other.caused);
    }

    #[test]
    fn caused_equals_suffered(events in script(), pending in 1usize..100) {
        let results = run(&events, Limits { pending, ..Limits::default() });
        let prefill = results.delays.iter().filter(|delay| delay.cause == Cause::Prefill);
        prop_assert!(prefill.clone().all(|delay| delay.culprit.is_some()));
        prop_assert_eq!(prefill.map(|delay| delay.excess).sum::<u64>(), results.caused);
    }

    #[test]
    fn results_are_final_after_the_lag(events in script()) {
        let limits = Limits::default();
        let mut results = Results::default();
        let mut analyzer = Analyzer::new(limits);
        for &event in &events {
            analyzer.push(event, &mut results);
        }
        let last = events.last().map_or(0, |event| event.at);
        analyzer.advance(last + 2 * limits.lag, &mut results);
        analyzer.advance(last + 4 * limits.lag, &mut results);
        let (steps, delays) = (results.steps.len(), results.delays.len());
        analyzer.finish(&mut results);
        // The newest step stays open for late tokens.
        prop_assert!(results.steps.len() <= steps + 1);
        prop_assert_eq!(results.delays.len(), delays);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn caused_equals_suffered_under_load(seed in any::<u64>(), streams in 2usize..20, budget in 200u32..2000) {
        let engine = Engine { seed, streams, requests: 60, long_every: 6, budget, tokens: 20..80, ..Engine::default() };
        let results = run(&engine.run().0, Limits::default());
        let prefill = results.delays.iter().filter(|delay| delay.cause == Cause::Prefill);
        prop_assume!(results.caused > 0);
        prop_assert_eq!(prefill.map(|delay| delay.excess).sum::<u64>(), results.caused);
    }
}
