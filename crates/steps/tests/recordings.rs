//! Recordings of a real vLLM against its own step log.
//!
//! `tests/data/NAME.gz` holds one event per line (time since the previous line in us, kind, fields), then the line `steps` and one
//! line per step of the engine's log: requests in prefill, their tokens, requests in decode, tokens
//! computed again, elapsed time in 0.1 ms. Kinds: `o`
//! request sent (slot, new prompt tokens), `f` first and `t` further tokens (slot, count), `e` end, `p` preemptions (since,
//! count), `b` zero window towards the client (slot, since), `w` what was provoked (cause, until, slot or -1).

mod common;

use common::{
    align::Score,
    causes::Confusion,
    recording::{Recording, Run},
};
use tokometer_steps::{Cause, Kind, Readable};

struct Compared {
    recording: Recording,
    run: Run,
    steps: Score,
    causes: Confusion,
}

fn compare(name: &str) -> Compared {
    let recording = Recording::read(name);
    let run = recording.run();
    let steps = Score::of(&run.steps, &recording.truth);
    let causes = Confusion::of(&run, &recording);
    println!("{name}: {steps:?} {:?}", causes);
    Compared { recording, run, steps, causes }
}

/// The goals: steps within 1 % in number, batch size exact in 99 %, 97 % precision and recall of steps with prefill.
fn assert_steps(name: &str, compared: &Compared) {
    assert_eq!(compared.run.readable, Readable::Yes { interval: 1 }, "{name}");
    let Score { number, batch, precision, recall, .. } = compared.steps;
    assert!(number.abs() <= 1.0 && batch >= 99.0, "{name}: {:?}", compared.steps);
    assert!(precision >= 97.0 && recall >= 97.0, "{name}: {:?}", compared.steps);
}

#[test]
fn steps_agree_with_the_log() {
    for name in ["sigstop2", "prefill2", "slowclient2", "batch", "grammar", "preempt", "capacity"] {
        let compared = compare(name);
        assert_steps(name, &compared);
        // All recordings have the exact number of steps; all but `preempt` (99.1 %) the exact batch sizes.
        assert_eq!(compared.steps.steps, compared.steps.of, "{name}");
        assert!(compared.steps.batch == 100.0 || name == "preempt", "{name}: {:?}", compared.steps);
        assert_eq!((compared.steps.precision, compared.steps.recall), (100.0, 100.0), "{name}");
    }
}

/// Steps between the events of a stream are placed in time only roughly, so that a first token is not always in the right one:
/// there is no goal for prefill here. Batch sizes miss the goal of 99 %.
#[test]
fn steps_with_ten_tokens_per_event_agree_in_number() {
    let compared = compare("interval");
    assert_eq!(compared.run.readable, Readable::Yes { interval: 10 });
    assert!(compared.steps.number.abs() <= 1.0, "{:?}", compared.steps);
    assert!(compared.steps.batch >= 97.0, "{:?}", compared.steps);
}

/// The goals: 90 % of long gaps right, none of prefill or preemption under a wrong cause.
#[test]
fn causes_of_long_gaps_agree_with_the_log() {
    for name in ["batch", "grammar", "preempt", "capacity"] {
        let causes = compare(name).causes;
        let (all, right, _) = causes.summary();
        assert!(all > 300 && right >= 90.0, "{name}: {right} % of {all}: {causes:?}");
        assert!(causes.never_wrong("prefill") && causes.never_wrong("preempted"), "{name}: {causes:?}");
    }
}

#[test]
fn provoked_causes_are_found() {
    let prefill = compare("prefill2").causes;
    assert_eq!((prefill.count("prefill", "prefill"), prefill.summary()), (25, (25, 100.0, 0)));
    let stopped = compare("sigstop2").causes;
    assert_eq!((stopped.count("engine_pause", "engine_pause"), stopped.summary()), (30, (30, 100.0, 0)));
    let preempted = compare("preempt").causes;
    assert_eq!(preempted.count("preempted", "preempted"), 33);
}

/// Every long gap during a provoked prefill or stop of the engine has that cause, by the times of what was done.
#[test]
fn gaps_while_something_was_provoked_have_its_cause() {
    for (name, provoked, cause) in
        [("prefill2", "prefill", Cause::Prefill), ("sigstop2", "sigstop", Cause::EnginePause)]
    {
        let Compared { recording, run, .. } = compare(name);
        for window in &recording.provoked {
            assert_eq!(window.cause, provoked);
            let during = run.delays.iter().filter(|delay| {
                delay.to / 1000 >= window.from
                    && delay.from / 1000 <= window.to
                    && delay.excess >= 500_000_000
                    && delay.cause != Cause::Batch
            });
            assert_eq!(during.clone().count(), 5, "{name}: one gap of each stream");
            assert!(during.clone().all(|delay| delay.cause == cause), "{name}");
            if cause == Cause::Prefill {
                let culprit = |slot: u32| during.clone().all(|delay| delay.culprit.is_some_and(|own| own.slot == slot));
                assert!(culprit(window.slot.unwrap()), "{name}");
            }
        }
    }
}

#[test]
fn slow_clients_are_charged_to_the_client() {
    let Compared { recording, run, .. } = compare("slowclient2");
    let mut slow: Vec<u32> = recording.provoked.iter().filter_map(|provoked| provoked.slot).collect();
    let blocked = run.delays.iter().filter(|delay| delay.cause == Cause::Client);
    let mut charged: Vec<u32> = blocked.clone().map(|delay| delay.slot).collect();
    slow.sort_unstable();
    charged.sort_unstable();
    assert_eq!(charged, slow);
    assert!(blocked.clone().all(|delay| delay.excess > 2_000_000_000));
}

#[test]
fn delay_caused_equals_delay_suffered() {
    for name in ["prefill2", "batch", "grammar", "preempt", "capacity"] {
        let run = compare(name).run;
        let prefill = run.delays.iter().filter(|delay| delay.cause == Cause::Prefill);
        assert_eq!(prefill.map(|delay| delay.excess).sum::<u64>(), run.caused, "{name}");
    }
}

/// Without counts, merged tokens are steps that nobody sees: 5 to 89 % of them in five recordings.
#[test]
fn missing_token_counts_make_steps_unreadable_where_it_matters() {
    for name in ["sigstop2", "prefill2", "slowclient2", "batch", "grammar", "preempt", "capacity", "interval"] {
        let mut recording = Recording::read(name);
        let mut sent = std::collections::HashMap::new();
        for event in &mut recording.events {
            match &mut event.kind {
                Kind::Tokens { count } => {
                    *sent.entry(event.slot).or_insert(0) += *count;
                    *count = 1;
                }
                Kind::End { tokens } => *tokens = sent[&event.slot],
                _ => {}
            }
        }
        let run = recording.run();
        let number = Score::of(&run.steps, &recording.truth).number;
        println!("{name} without counts: {number} %, {:?}", run.lacked_counts);
        assert_eq!(run.lacked_counts, number.abs() > 1.0, "{name}: {number} %");
    }
}
