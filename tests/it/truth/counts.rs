//! Compares token counts with the engines' own counters.

use std::collections::BTreeMap;

use serde_json::Value;
use tokometer::replay::Recording;
use tokometer_observe::measure::{Count, CountSource};

use super::naive::events;
use super::{Case, all, cases, run};

/// Output count in a complete recording: from the last `usage`, otherwise from the engine's counter, otherwise the
/// number of token ids.
fn carried(case: &Case) -> Option<u64> {
    let events = events(case);
    let last = |find: &dyn Fn(&Value) -> Option<u64>| events.iter().filter_map(|(_, json)| find(json)).next_back();
    let usage = |json: &Value| {
        let usage = [&json["usage"], &json["response"]["usage"]].into_iter().find(|usage| usage.is_object())?;
        usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64())
    };
    let counter = |json: &Value| {
        let (timings, meta) = (&json["timings"], &json["meta_info"]);
        let counters =
            [&timings["predicted_n"], &json["tokens_predicted"], &meta["completion_tokens"], &json["eval_count"]];
        counters.into_iter().find_map(Value::as_u64)
    };
    let ids = |json: &Value| {
        let choices = json["choices"].as_array()?.iter();
        choices.map(|choice| Some(choice["token_ids"].as_array()?.len() as u64)).sum::<Option<u64>>()
    };
    let all_ids = || events.iter().filter_map(|(_, json)| ids(json)).reduce(|a, b| a + b);
    last(&usage).or(last(&counter)).or_else(all_ids).filter(|_| case.complete())
}

/// Prompt tokens from the engine's counters, otherwise from `usage`. Counters of 0, as with tracing, are not used.
/// Neither are the counters of a recorded request for several sequences, because they include the prompt once per
/// sequence.
fn true_input(case: &Case) -> Option<u64> {
    let body = &case.meta["request"]["body"];
    let alone = body["n"].as_u64().unwrap_or(1) == 1 && !body["prompt"].is_array();
    let counted = case.meta["truth"]["prompt_tokens"].as_u64().filter(|n| *n > 0 && (alone || case.is_written()));
    let usage = &case.meta["usage_seen"];
    counted.or(usage["prompt_tokens"].as_u64()).or(usage["input_tokens"].as_u64())
}

#[test]
fn counts_match_engine_counters_or_are_lower_bounds() {
    let (mut wrong, mut exact, mut lower) = (Vec::new(), BTreeMap::new(), 0);
    let text = |count: Option<u64>| count.map_or("-".into(), |n| n.to_string());
    println!("engine | case | source | counted | true | prompt | true");
    for case in cases() {
        let (Some(output), Some(record)) = (case.meta["truth"]["completion_tokens"].as_u64(), case.record()) else {
            continue;
        };
        let (counted, input) = (record.tokens.output, true_input(&case));
        println!(
            "{} | {} | {} | {} | {output} | {} | {}",
            case.engine,
            case.name,
            counted.map_or("-", |n| n.source.as_str()),
            text(counted.map(|n| n.tokens)),
            text(record.tokens.input.map(|n| n.tokens)),
            text(input),
        );
        let response_complete = case.recording.reads.iter().any(|(_, bytes)| !bytes.is_empty());
        match counted {
            Some(Count { tokens, source: CountSource::Deltas }) if carried(&case) == Some(output) => {
                wrong.push(format!("{}: lower bound {tokens}, but the body reports {output}", case.title()));
            }
            Some(Count { tokens, source: CountSource::Deltas }) if tokens <= output => lower += 1,
            Some(Count { tokens, source }) if tokens == output => *exact.entry(source.as_str()).or_insert(0) += 1,
            None if !response_complete => {}
            _ => wrong.push(format!("{}: output {counted:?}, expected {output}", case.title())),
        }
        if record.tokens.input.is_some_and(|n| Some(n.tokens) != input) {
            wrong.push(format!("{}: input {:?}, expected {input:?}", case.title(), record.tokens.input));
        }
        // A complete response with an output count also has an input count, unless only ids were sent.
        let reported = counted.is_some_and(|n| n.source.is_exact() && n.source != CountSource::TokenIds);
        if reported && record.tokens.input.is_none() && input.is_some() {
            wrong.push(format!("{}: no input count, expected {input:?}", case.title()));
        }
        // If `usage` was sent, it must be the source of the count.
        let usage = &case.meta["usage_seen"];
        let reported = usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64());
        if reported == Some(output) && case.complete() && counted.is_none_or(|n| n.source != CountSource::Usage) {
            wrong.push(format!("{}: `usage` was sent, but got {counted:?}", case.title()));
        }
    }
    println!("exact by source: {exact:?}; lower bounds: {lower}");
    assert!(wrong.is_empty(), "{} failures:\n{}", wrong.len(), wrong.join("\n"));
    assert!(exact.get("usage").is_some_and(|n| *n > 150), "{exact:?}");
    assert!(exact.get("native_counter").is_some_and(|n| *n > 20), "{exact:?}");
}

/// The recording, truncated to this many response bytes and closed by the server.
fn cut(case: &Case, bytes: usize) -> Recording {
    let mut left = bytes;
    let mut reads = Vec::new();
    for (at, read) in &case.recording.reads {
        let kept = &read[..left.min(read.len())];
        left -= kept.len();
        reads.extend((!kept.is_empty()).then(|| (*at, kept.to_vec())));
    }
    Recording { path: case.recording.path.clone(), request: case.recording.request.clone(), reads, end: None }
}

#[test]
fn exact_counts_of_truncated_responses_are_correct() {
    const NEAR_THE_END: usize = 700;
    const STEP: usize = 23;
    let (mut wrong, mut exact) = (Vec::new(), 0);
    for case in cases() {
        let Some(whole) = case.record() else { continue };
        let length: usize = case.recording.reads.iter().map(|(_, bytes)| bytes.len()).sum();
        let Some(output) = whole.tokens.output.filter(|n| n.source.is_exact() && length < 200_000) else { continue };
        for bytes in (length.saturating_sub(NEAR_THE_END)..length).step_by(STEP) {
            let replayed = run(&cut(&case, bytes));
            let Some(record) = replayed.records.first() else { continue };
            if let Some(reported) = record.tokens.output.filter(|n| n.source.is_exact()) {
                exact += 1;
                if reported.tokens != output.tokens {
                    wrong.push(format!("{} cut at {bytes}: output {reported:?}, expected {output:?}", case.title()));
                }
            }
            let inputs = (record.tokens.input.map(|n| n.tokens), whole.tokens.input.map(|n| n.tokens));
            if inputs.0.is_some() && inputs.0 != inputs.1 {
                wrong.push(format!("{} cut at {bytes}: input {inputs:?}", case.title()));
            }
            let queues = (record.engine.queue, whole.engine.queue);
            if queues.0.is_some() && queues.0.map(|q| q.source) == queues.1.map(|q| q.source) && queues.0 != queues.1 {
                wrong.push(format!("{} cut at {bytes}: queue {queues:?}", case.title()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} failures:\n{}", wrong.len(), wrong.join("\n"));
    assert!(exact > 100, "{exact}");
}

#[test]
fn live_token_sum_equals_exact_count() {
    for case in cases() {
        let replayed = run(&case.recording);
        let Some(record) = replayed.records.first() else { continue };
        let Some(exact) = record.tokens.output.filter(|n| n.source.is_exact()) else { continue };
        assert_eq!(replayed.live_tokens, exact.tokens, "{}", case.title());
    }
}

#[test]
fn prompts_of_non_generating_requests_are_counted() {
    let mut counted = 0;
    for case in all().iter().filter(|case| case.api.is_none()) {
        let Some(input) = case.meta["usage_seen"]["prompt_tokens"].as_u64() else { continue };
        let record = case.record().unwrap_or_else(|| panic!("{}: no record", case.title()));
        assert_eq!(record.tokens.input, Some(Count { tokens: input, source: CountSource::Usage }), "{}", case.title());
        assert_eq!((record.tokens.output, record.times.first_token), (None, None), "{}", case.title());
        counted += 1;
    }
    assert!(counted >= 4, "only {counted}");
}

#[test]
fn fixtures_of_other_paths_match_their_counts() {
    let mut counted = 0;
    for case in all().iter().filter(|case| case.api.is_none() && case.is_written()) {
        let record = case.record().unwrap_or_else(|| panic!("{}: no record", case.title()));
        let exact = |count: Option<Count>| count.filter(|n| n.source.is_exact()).map(|n| n.tokens);
        let truth = &case.meta["truth"];
        assert_eq!(exact(record.tokens.output), truth["completion_tokens"].as_u64(), "{}", case.title());
        assert_eq!(exact(record.tokens.input), truth["prompt_tokens"].as_u64(), "{}", case.title());
        counted += 1;
    }
    assert!(counted >= 3, "only {counted}");
}
