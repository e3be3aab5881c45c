//! Token counts, against the engines' own counters.

use std::collections::BTreeMap;

use super::{cases, line, run};

#[test]
fn counts_equal_the_engines_own_counters_or_are_marked_as_lower_bounds() {
    let mut wrong = Vec::new();
    let mut exact = BTreeMap::new();
    println!(
        "{:<22} {:<46} {:<20} {:>7} {:>7} {:>7} {:>7}",
        "engine", "case", "source", "counted", "true", "prompt", "true"
    );
    for case in cases() {
        let truth = &case.meta["truth"];
        let (Some(output), Some(line)) = (truth["completion_tokens"].as_u64(), line(&case)) else { continue };
        let answered = case.recording.reads.iter().any(|(_, bytes)| !bytes.is_empty());
        let n = case.meta["request"]["body"]["n"].as_u64().unwrap_or(1);
        // With n over 1 the engines' counters hold the prompt once per sequence, and while traced not at all.
        let usage_prompt = case.meta["usage_seen"]["prompt_tokens"].as_u64();
        let input = usage_prompt.or(truth["prompt_tokens"].as_u64().filter(|p| *p > 0 && n == 1));
        println!(
            "{:<22} {:<46} {:<20} {:>7} {:>7} {:>7} {:>7}",
            case.engine,
            case.name,
            line.output_tokens_source.unwrap_or("-"),
            line.output_tokens.map_or("-".into(), |n| n.to_string()),
            output,
            line.input_tokens.map_or("-".into(), |n| n.to_string()),
            input.map_or("-".into(), |n| n.to_string()),
        );
        let place = format!("{} {}: {line:?}", case.engine, case.name);
        match (line.output_tokens, line.output_tokens_source) {
            (Some(counted), Some("deltas_lower_bound")) if counted <= output => {}
            (Some(counted), Some(source)) if source != "deltas_lower_bound" && counted == output => {
                *exact.entry(source).or_insert(0) += 1;
            }
            (None, None) if !answered => {}
            _ => wrong.push(format!("output, true {output}: {place}")),
        }
        if line.input_tokens.is_some() && line.input_tokens != input {
            wrong.push(format!("input, true {input:?}: {place}"));
        }
        // Where the stream carried usage, nothing less will do.
        let usage = &case.meta["usage_seen"];
        let complete = case.meta["complete"].as_bool() == Some(true);
        let whole = usage["completion_tokens"].as_u64() == Some(output) && complete;
        if whole && line.output_tokens_source != Some("usage") {
            wrong.push(format!("usage was there: {place}"));
        }
    }
    println!("exact by source: {exact:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(exact.get("usage").is_some_and(|n| *n > 100) && exact.contains_key("native_counter"), "{exact:?}");
}

#[test]
fn live_tokens_come_to_the_exact_count_and_never_over_it() {
    for case in cases() {
        let replayed = run(&case.recording);
        let Some(record) = replayed.records.first() else { continue };
        let Some(exact) = record.output_tokens.filter(|n| n.source.is_exact()) else { continue };
        assert_eq!(replayed.live_tokens, exact.tokens, "{} {}", case.engine, case.name);
    }
}
