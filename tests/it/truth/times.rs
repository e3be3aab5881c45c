//! Compares times, gaps and rates with a naive parser of the recordings.

use super::cases;
use super::naive::{Naive, naive};

#[test]
fn times_and_chunks_match_naive_reading() {
    let mut compared = 0;
    let (mut wrong, mut lower_bounds) = (Vec::new(), Vec::new());
    for case in cases() {
        let (Some(naive), Some(record)) = (naive(&case), case.record()) else {
            continue;
        };
        let ours = Naive {
            headers: record.times.headers,
            first_event: record.times.first_event,
            first_token: record.times.first_token,
            first_tokens: record.tokens.first.filter(|_| naive.first_tokens.is_some()),
            first_visible: record.times.first_visible,
            last_token: record.times.last_token,
            chunks: record.tokens.chunks,
            longest_gap: record.gaps.longest,
            finishes: record.response.finish_reasons.iter().map(|r| r.as_str().to_owned()).collect(),
        };
        compared += 1;
        if ours != naive {
            wrong.push(format!("{}:\n  ours  {ours:?}\n  naive {naive:?}", case.title()));
        }
        let mut rate = || {
            let span = (naive.last_token? - naive.first_token?).as_secs_f64();
            let output = record.tokens.output.filter(|n| n.source.is_exact())?.tokens;
            // A first event with a tool call may contain any number of tokens, so only a lower bound is known.
            let held = record.tokens.first.is_none() && output > naive.chunks + 1 && record.tokens.first_held;
            if held {
                lower_bounds.push(case.title());
                return None;
            }
            let after = output.checked_sub(record.tokens.first.unwrap_or(1)).filter(|n| *n > 0)?;
            (span >= 0.001).then(|| after as f64 / span)
        };
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
        let rate = rate();
        let same = match (record.rate.exact, rate) {
            (Some(a), Some(b)) => close(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        if !same {
            wrong.push(format!("{}: rate {:?}, naive {rate:?}", case.title(), record.rate.exact));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Lower bounds are expected for tool calls, for hidden reasoning, and for reasoning in the content, which looks
    // like content after hidden reasoning.
    let names = ["tool", "include-reasoning-false", "think-no-separate"];
    let held = |title: &String| names.iter().any(|name| title.contains(name));
    assert!(lower_bounds.len() > 10 && lower_bounds.iter().all(held), "{lower_bounds:#?}");
    assert!(compared > 80, "only {compared} streams compared");
}
