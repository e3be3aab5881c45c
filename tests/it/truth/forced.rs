//! Replays every recording with every engine forced: a wrong engine may lose measurements, but must never produce a
//! wrong one.

use tokometer::replay::replay;
use tokometer_decode::Engine;
use tokometer_observe::observer::{ConfiguredEngine, Settings};

use super::all;

#[test]
fn forced_engine_yields_no_panic_and_no_wrong_exact_count() {
    let (mut wrong, mut exact) = (Vec::new(), 0);
    for case in all() {
        let known = case.record();
        // If the engine's counter is unknown, compare with the replay without a forced engine.
        let exactly =
            |of: Option<tokometer_observe::measure::Count>| of.filter(|n| n.source.is_exact()).map(|n| n.tokens);
        let counted = known.as_ref().and_then(|record| exactly(record.tokens.output));
        let output = case.meta["truth"]["completion_tokens"].as_u64().or(counted);
        let input = known.as_ref().and_then(|record| record.tokens.input);
        for engine in Engine::ALL {
            let replayed =
                replay(&case.recording, &Settings { engine: ConfiguredEngine(Some(engine)), ..Settings::default() });
            let place = format!("{} as {}", case.title(), engine.as_str());
            if !replayed.detached.is_empty() || replayed.in_flight != 0 {
                wrong.push(format!("{place}: detached {:?}, {} in flight", replayed.detached, replayed.in_flight));
            }
            let record = replayed.records.first();
            if record.map(|r| r.outcome) != known.as_ref().map(|r| r.outcome) {
                wrong.push(format!(
                    "{place}: {:?}, expected {:?}",
                    record.map(|r| r.outcome),
                    known.as_ref().map(|r| r.outcome)
                ));
            }
            let Some(record) = record else { continue };
            if let Some(tokens) = exactly(record.tokens.output) {
                exact += 1;
                if Some(tokens) != output {
                    wrong.push(format!("{place}: exact output {tokens}, expected {output:?}"));
                }
            } else if let (Some(least), Some(output)) = (record.tokens.output, output)
                && least.tokens > output
            {
                wrong.push(format!("{place}: lower bound {least:?}, expected at most {output}"));
            }
            if let (Some(forced), Some(input)) = (record.tokens.input, input)
                && forced.tokens != input.tokens
            {
                wrong.push(format!("{place}: input {forced:?}, expected {input:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} failures:\n{}", wrong.len(), wrong.join("\n"));
    assert!(exact > 500, "only {exact} exact counts");
}
