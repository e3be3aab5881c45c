//! Scripted times with known steps and causes.

use crate::*;

const MS: Nanos = 1_000_000;

#[derive(Default)]
struct Results {
    steps: Vec<Step>,
    delays: Vec<Delay>,
    caused: Vec<(u64, Nanos)>,
}

impl Sink for Results {
    fn step(&mut self, step: &Step) {
        self.steps.push(*step);
    }
    fn delay(&mut self, delay: &Delay) {
        self.delays.push(*delay);
    }
    fn caused(&mut self, culprit: Culprit, _: u32, excess: Nanos) {
        self.caused.push((culprit.tag, excess));
    }
}

/// A server whose streams are written 30 us apart.
struct Script {
    analyzer: Analyzer,
    results: Results,
    now: Nanos,
}

impl Script {
    /// Streams 0 to `streams`, each opened with 10 prompt tokens and decoding for 20 steps of 10 ms.
    fn decoding(streams: u32) -> Self {
        let mut script =
            Script { analyzer: Analyzer::new(Limits::default()), results: Results::default(), now: 10 * MS };
        for slot in 0..streams {
            script.open(slot, 10);
        }
        for _ in 0..21 {
            script.step(10, &vec![1; streams as usize]);
        }
        script
    }

    fn push(&mut self, slot: u32, kind: Kind) {
        self.analyzer.push(Event { at: self.now, slot, kind }, &mut self.results);
    }

    fn open(&mut self, slot: u32, prompt_tokens: u32) {
        self.push(slot, Kind::Open { tag: 100 + u64::from(slot), prompt_tokens, choices: 1 });
    }

    /// Tokens by slot, `later` ms after the previous step.
    fn step(&mut self, later: u64, tokens: &[u32]) {
        self.now += later * MS;
        let begin = self.now;
        for (slot, &count) in tokens.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.push(slot as u32, Kind::Tokens { count });
            self.now += 30_000;
        }
        self.now = begin;
    }

    fn finish(mut self) -> Results {
        self.analyzer.finish(&mut self.results);
        self.results
    }

    /// Causes of delays with their excess in ms, of stream 0.
    fn causes(self) -> Vec<(Cause, u64)> {
        let delays = self.finish().delays.into_iter().filter(|delay| delay.slot == 0);
        delays.map(|delay| (delay.cause, (delay.excess + MS / 2) / MS)).collect()
    }
}

#[test]
fn every_round_of_tokens_is_a_step() {
    let results = Script::decoding(3).finish();
    assert_eq!(results.steps.len(), 21);
    let first =
        Step { index: 1, start: 10 * MS, duration: 10 * MS, first_tokens: 3, prompt_tokens: 30, ..Step::default() };
    assert_eq!(results.steps[0], Step { prefill: true, merged: 1, ..first });
    let second = Step { index: 2, start: 20 * MS, duration: 10 * MS, decoding: 3, merged: 1, ..Step::default() };
    assert_eq!(results.steps[1], second);
    assert_eq!(results.delays, []);
}

#[test]
fn merged_tokens_are_several_steps_and_delivery() {
    let mut script = Script::decoding(3);
    script.step(40, &[4, 4, 4]);
    script.step(10, &[1, 1, 1]);
    let results = script.finish();
    assert_eq!(results.steps.len(), 26);
    assert!(results.steps.iter().all(|step| step.tokens() == 3));
    assert_eq!((results.steps[21].duration, results.steps[21].merged), (10 * MS, 4));
    assert!(results.delays.iter().all(|delay| delay.cause == Cause::Delivery && delay.excess == 30 * MS));
    assert_eq!(results.delays.len(), 3);
}

#[test]
fn tokens_held_up_complete_their_step() {
    let mut script = Script::decoding(3);
    script.step(10, &[1, 1, 0]);
    script.step(6, &[0, 0, 1]);
    script.step(4, &[1, 1, 1]);
    let results = script.finish();
    assert_eq!(results.steps.iter().map(Step::tokens).collect::<Vec<_>>(), [3; 23]);
}

#[test]
fn streams_merged_differently_share_steps() {
    let mut script = Script::decoding(3);
    script.step(10, &[1, 1, 0]);
    script.step(10, &[1, 0, 0]);
    script.step(10, &[1, 2, 3]);
    script.step(10, &[1, 1, 1]);
    let results = script.finish();
    assert_eq!(results.steps.iter().map(Step::tokens).collect::<Vec<_>>(), [3; 25]);
}

#[test]
fn first_token_after_a_pause_proves_prefill() {
    let mut script = Script::decoding(2);
    script.open(2, 3000);
    script.step(500, &[1, 1, 1]);
    script.step(10, &[1, 1, 1]);
    let results = script.finish();
    assert_eq!(results.delays.len(), 2);
    assert!(results.delays.iter().all(|delay| delay.cause == Cause::Prefill && delay.excess == 490 * MS));
    assert_eq!(results.delays[0].culprit.map(|culprit| (culprit.tag, culprit.prompt_tokens)), Some((102, 3000)));
    assert_eq!(results.caused, [(102, 490 * MS), (102, 490 * MS)]);
    assert!(results.steps[21].prefill && results.steps[21].prompt_tokens == 3000);
}

#[test]
fn delay_is_split_by_prompt_tokens() {
    let mut script = Script::decoding(1);
    script.open(1, 3000);
    script.open(2, 1000);
    script.step(410, &[1, 1, 1]);
    let results = script.finish();
    assert_eq!(results.caused, [(102, 100 * MS), (101, 300 * MS)]);
}

#[test]
fn chunks_before_the_first_token_are_prefill() {
    let mut script = Script::decoding(2);
    script.open(2, 8000);
    script.step(10, &[1, 1]);
    for _ in 0..4 {
        script.step(300, &[1, 1]);
    }
    script.step(200, &[1, 1, 1]);
    script.step(10, &[1, 1, 1]);
    let results = script.finish();
    assert_eq!(
        results.steps.iter().filter(|step| step.prefill).map(|step| step.index).collect::<Vec<_>>(),
        [1, 23, 24, 25, 26, 27]
    );
    let own = results.delays.iter().filter(|delay| delay.slot == 0);
    assert!(own.clone().all(|delay| delay.cause == Cause::Prefill));
    assert_eq!(own.map(|delay| delay.excess).sum::<Nanos>(), 4 * 290 * MS + 190 * MS);
}

#[test]
fn chunks_longer_than_the_lag_are_prefill_from_the_third() {
    let mut script = Script::decoding(2);
    script.open(2, 72_000);
    script.step(10, &[1, 1]);
    for _ in 0..9 {
        script.step(6000, &[1, 1]);
    }
    script.step(6000, &[1, 1, 1]);
    let results = script.finish();
    let causes: Vec<_> = results.delays.iter().filter(|delay| delay.slot == 0).map(|delay| delay.cause).collect();
    assert_eq!(causes[2..], [Cause::Prefill; 8]);
    assert_eq!(causes[..2], [Cause::Unknown; 2]);
    assert_eq!(results.steps.iter().filter(|step| step.prefill && step.index > 22).count(), 9);
}

#[test]
fn pause_while_a_long_prompt_is_queued_is_no_prefill() {
    let mut script = Script::decoding(2);
    script.open(2, 8000);
    script.step(10, &[1, 1]);
    script.step(300, &[1, 1]);
    for _ in 0..5 {
        script.step(10, &[1, 1]);
    }
    assert_eq!(script.causes(), [(Cause::EnginePause, 290)]);
}

#[test]
fn single_pause_before_an_unfinished_prefill_is_unknown() {
    let mut script = Script::decoding(2);
    script.open(2, 8000);
    script.step(10, &[1, 1]);
    script.step(300, &[1, 1]);
    assert_eq!(script.causes(), [(Cause::Unknown, 290)]);
}

#[test]
fn prefill_far_above_the_usual_time_is_an_engine_pause() {
    let mut script = Script::decoding(2);
    script.open(2, 40);
    script.step(33_000, &[1, 1, 1]);
    assert_eq!(script.causes(), [(Cause::EnginePause, 32_990)]);
}

#[test]
fn pause_without_prefill_or_burst_is_an_engine_pause() {
    let mut script = Script::decoding(2);
    script.step(710, &[1, 1]);
    script.step(10, &[1, 1]);
    assert_eq!(script.causes(), [(Cause::EnginePause, 700)]);
}

/// Stream 0 is silent for 20 steps.
fn silent(preemptions: u32) -> Script {
    let mut script = Script::decoding(3);
    let begin = script.now;
    for _ in 0..20 {
        script.step(10, &[0, 1, 1]);
    }
    script.step(10, &[1, 1, 1]);
    script.now += 5 * MS;
    script.push(0, Kind::Preemptions { from: begin + 150 * MS, count: preemptions });
    script.step(5, &[1, 1, 1]);
    script
}

#[test]
fn silent_stream_is_preempted_only_if_the_counter_rose() {
    assert_eq!(silent(1).causes(), [(Cause::Preempted, 200)]);
    assert_eq!(silent(0).causes(), [(Cause::StreamOnly, 200)]);
    let steps = silent(0).finish().steps;
    assert_eq!(steps.iter().map(Step::tokens).filter(|&tokens| tokens == 2).count(), 20);
}

#[test]
fn each_counted_preemption_explains_one_delay() {
    let mut script = Script::decoding(4);
    let begin = script.now;
    for _ in 0..20 {
        script.step(10, &[0, 0, 1, 1]);
    }
    script.step(10, &[1, 1, 1, 1]);
    script.now += 5 * MS;
    script.push(0, Kind::Preemptions { from: begin, count: 1 });
    let mut causes: Vec<_> = script.finish().delays.iter().map(|delay| delay.cause).collect();
    causes.sort();
    assert_eq!(causes, [Cause::Preempted, Cause::StreamOnly]);
}

#[test]
fn late_proxy_is_the_cause_of_what_it_covers() {
    let mut script = Script::decoding(2);
    script.now += 110 * MS;
    script.push(0, Kind::Held { cause: Cause::Tokometer, from: script.now - 90 * MS });
    script.step(0, &[1, 1]);
    assert_eq!(script.causes(), [(Cause::Tokometer, 100)]);
}

#[test]
fn blocked_client_is_reported_once_and_its_tokens_left_out() {
    let mut script = Script::decoding(3);
    script.push(0, Kind::Blocked(true));
    for _ in 0..30 {
        script.step(10, &[0, 1, 1]);
    }
    script.now += MS;
    script.push(0, Kind::Blocked(false));
    script.push(0, Kind::Held { cause: Cause::Client, from: script.now - 301 * MS });
    script.step(9, &[30, 1, 1]);
    script.step(10, &[1, 1, 1]);
    let results = script.finish();
    assert_eq!(results.steps.len(), 21 + 32);
    assert_eq!(results.delays.iter().map(|delay| (delay.slot, delay.cause)).collect::<Vec<_>>(), [(0, Cause::Client)]);
}

#[test]
fn interval_is_recognized_and_charged() {
    let mut script = Script { analyzer: Analyzer::new(Limits::default()), results: Results::default(), now: 10 * MS };
    script.open(0, 10);
    script.open(1, 10);
    script.step(10, &[1, 1]);
    for _ in 0..30 {
        script.step(50, &[5, 5]);
    }
    assert_eq!(script.analyzer.readable(), Readable::Yes { interval: 5 });
    let causes = script.causes();
    assert_eq!(causes.last(), Some(&(Cause::Interval, 40)));
}

#[test]
fn larger_batch_is_charged_with_the_slope() {
    let mut script = Script::decoding(1);
    for slot in 1..8 {
        script.open(slot, 10);
    }
    for _ in 0..20 {
        script.step(24, &[1; 8]);
    }
    let delays = script.finish().delays;
    let last = delays.iter().rfind(|delay| delay.slot == 0).map(|delay| (delay.cause, delay.excess));
    assert_eq!(last, Some((Cause::Batch, 14 * MS)));
}

#[test]
fn missing_counts_and_several_choices_are_unreadable() {
    let mut script = Script::decoding(4);
    assert_eq!(script.analyzer.readable(), Readable::Yes { interval: 1 });
    for slot in 0..4 {
        script.push(slot, Kind::End { tokens: 30 });
    }
    script.now += MS;
    script.open(0, 10);
    assert_eq!(script.analyzer.readable(), Readable::NoCounts);

    let mut script = Script { analyzer: Analyzer::new(Limits::default()), results: Results::default(), now: 10 * MS };
    script.push(0, Kind::Open { tag: 1, prompt_tokens: 10, choices: 4 });
    script.step(10, &[4]);
    script.step(10, &[4]);
    assert_eq!(script.analyzer.readable(), Readable::Choices);
}

#[test]
fn slot_reused_within_a_burst_is_another_stream() {
    let mut script = Script::decoding(2);
    script.step(10, &[1, 1]);
    script.now += 100_000;
    script.push(0, Kind::End { tokens: 0 });
    script.now += 100_000;
    script.open(0, 10);
    script.step(15, &[1, 1]);
    let results = script.finish();
    assert_eq!(results.steps.len(), 23);
    assert_eq!((results.steps[21].decoding, results.steps[22].decoding, results.steps[22].first_tokens), (2, 1, 1));
}

#[test]
fn events_of_unknown_streams_and_old_events_are_counted() {
    let mut script = Script::decoding(1);
    script.push(5, Kind::Tokens { count: 1 });
    script.push(5000, Kind::Tokens { count: 1 });
    script.now -= 5 * MS;
    script.push(0, Kind::Tokens { count: 1 });
    script.analyzer.finish(&mut script.results);
    assert_eq!(script.analyzer.ignored(), Ignored { unknown_streams: 2, out_of_order: 1 });
}
