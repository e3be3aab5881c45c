//! Event sequences of a simulated scheduler and front end, against its steps.

mod common;

use common::{
    align::Score,
    engine::Engine,
    recording::{Recording, Run, Truth},
};
use tokometer_steps::{Cause, Readable};

fn run(engine: &Engine) -> (Run, Vec<Truth>) {
    let (events, truth) = engine.run();
    (Recording { events, truth: Vec::new(), provoked: Vec::new() }.run(), truth)
}

fn engine(streams: usize) -> Engine {
    let requests = if streams < 100 { 5 * streams.max(8) } else { 2 * streams };
    Engine { streams, requests, ..Engine::default() }
}

/// Excess in stream seconds by cause.
fn seconds(run: &Run, cause: Cause) -> f64 {
    let own = run.delays.iter().filter(|delay| delay.cause == cause);
    own.map(|delay| delay.excess as f64 / 1e9).sum()
}

fn score(engine: &Engine) -> (Score, Readable) {
    let (run, truth) = run(engine);
    let score = Score::of(&run.steps, &truth);
    println!("{:?} {engine:?}", score);
    (score, run.readable)
}

/// The goal: steps within 2 % in number, batch size right in 95 % of them.
fn assert_steps(engine: &Engine, number: f64, batch: f64) {
    let (score, readable) = score(engine);
    assert_eq!(readable, Readable::Yes { interval: engine.interval });
    assert!(score.number.abs() <= number && score.batch >= batch, "{score:?} of {engine:?}");
}

const STREAMS: [usize; 4] = [4, 16, 64, 256];

#[test]
fn calm_servers_are_read_exactly() {
    for streams in STREAMS {
        let calm = engine(streams);
        for engine in [Engine { front_ends: 2, ..calm.clone() }, Engine { jitter: 0.8, ..calm.clone() }, calm] {
            let (score, readable) = score(&engine);
            assert_eq!(readable, Readable::Yes { interval: 1 });
            assert_eq!(
                (score.number, score.batch, score.precision, score.recall),
                (0.0, 100.0, 100.0, 100.0),
                "{engine:?}"
            );
        }
    }
}

#[test]
fn steps_of_a_millisecond_are_read() {
    for streams in [1, 4, 16] {
        let fast = Engine { base: 600.0, per_stream: 5.0, per_prompt_token: 5.0, ..engine(streams) };
        assert_steps(&fast, 0.0, 100.0);
    }
    // The front end takes 35 us per stream, which is more than the step: it merges all the time. Batch sizes miss the goal.
    let saturated = Engine { base: 600.0, per_stream: 5.0, per_prompt_token: 5.0, ..engine(64) };
    assert_steps(&saturated, 2.0, 85.0);
}

#[test]
fn starved_front_ends_are_read() {
    for streams in STREAMS {
        for (runs, held, batch) in [
            (20_000.0, 5_000.0, 99.0),
            (20_000.0, 20_000.0, 99.0),
            (5_000.0, 5_000.0, 99.0),
            // Runs a tenth of the time; misses the goal of 95 % with many streams.
            (3_000.0, 30_000.0, 90.0),
        ] {
            assert_steps(&Engine { runs, held, ..engine(streams) }, 1.0, batch);
        }
        // Streams begin and end while tokens are held up; with few streams nothing shows how they overlap.
        let (number, batch) = if streams > 16 { (1.0, 97.0) } else { (4.0, 92.0) };
        assert_steps(&Engine { runs: 100_000.0, held: 300_000.0, ..engine(streams) }, number, batch);
    }
}

#[test]
fn two_starved_front_ends_are_read() {
    for streams in STREAMS {
        for (runs, held, batch) in [
            (20_000.0, 5_000.0, 99.0),
            (5_000.0, 5_000.0, 99.0),
            // Misses the goal of 95 % with many streams (93 %).
            (20_000.0, 20_000.0, 93.0),
        ] {
            assert_steps(&Engine { front_ends: 2, runs, held, ..engine(streams) }, 1.0, batch);
        }
    }
}

#[test]
fn intervals_are_read() {
    for streams in STREAMS {
        assert_steps(&Engine { interval: 2, ..engine(streams) }, 0.5, 99.0);
        assert_steps(&Engine { interval: 4, ..engine(streams) }, 0.5, 97.0);
        // Misses the goal of 95 % with 4 to 64 streams.
        assert_steps(&Engine { interval: 10, ..engine(streams) }, 2.5, 88.0);
    }
}

#[test]
fn chunks_of_prefill_are_found() {
    for streams in STREAMS {
        for jitter in [0.1, 0.8] {
            let (score, _) = score(&Engine { long_every: 8, budget: 512, jitter, ..engine(streams) });
            assert_eq!((score.number, score.precision), (0.0, 100.0), "{streams}");
            // The goal is 97 %. With few streams the decode-only step time is not known at first.
            let recall = if streams > 4 { 97.0 } else { 85.0 };
            assert!(score.recall >= recall, "{score:?} {streams}");
        }
    }
}

#[test]
fn several_engines_and_speculative_decoding_are_unreadable() {
    for streams in STREAMS {
        for engines in [2, 3] {
            assert_eq!(score(&Engine { engines, ..engine(streams) }).1, Readable::SeveralEngines, "{streams}");
        }
        assert_eq!(score(&Engine { speculative: 4, ..engine(streams) }).1, Readable::Speculative, "{streams}");
    }
}

/// The goal: delay by cause within 5 %, at most 2 % under a wrong cause.
#[test]
fn delay_by_cause_agrees() {
    for streams in [4, 16, 64] {
        let pauses = Engine { pause_every: 100, pause: 700_000.0, ..engine(streams) };
        let chunked = Engine { long_every: 8, budget: 512, ..engine(streams) };
        for engine in [
            Engine { long_every: 8, ..engine(streams) },
            Engine { long_every: 8, budget: 512, ..pauses.clone() },
            chunked,
            pauses,
        ] {
            let (run, truth) = run(&engine);
            let sum = |part: &dyn Fn(&Truth) -> f64| -> f64 { truth.iter().map(part).sum() };
            let prefill = sum(&|step| step.prefill_ms * f64::from(step.decoding) / 1e3);
            let pause = sum(&|step| step.pause_ms * f64::from(step.decoding) / 1e3);
            let all: f64 =
                Cause::ALL.iter().filter(|&&cause| cause != Cause::Batch).map(|&cause| seconds(&run, cause)).sum();
            let (by_prefill, by_pause) = (seconds(&run, Cause::Prefill), seconds(&run, Cause::EnginePause));
            println!("prefill {prefill:.2} {by_prefill:.2} pause {pause:.2} {by_pause:.2} all {all:.2} {engine:?}");
            let within = |found: f64, truth: f64| (found - truth).abs() <= (0.05 * truth).max(0.01 * all);
            // A pause during a chunk of prefill has two causes; it is unknown.
            let pauses_in_prefill = engine.pause_every > 0 && engine.long_every > 0;
            let low = |found: f64, truth: f64| found <= truth * 1.05;
            let agrees = |found, truth| within(found, truth) || pauses_in_prefill && low(found, truth);
            assert!(agrees(by_prefill, prefill), "prefill {by_prefill} of {prefill}: {engine:?}");
            assert!(agrees(by_pause, pause), "pause {by_pause} of {pause}: {engine:?}");
            let unknown = seconds(&run, Cause::Unknown);
            assert!(all - by_prefill - by_pause - unknown <= 0.02 * all, "{engine:?}");
        }
    }
}

/// Tokens that one front end of several holds back are not blamed on the engine.
#[test]
fn delay_by_the_front_end_agrees() {
    for front_ends in [1, 2] {
        let engine = Engine { front_ends, runs: 1_000_000.0, held: 200_000.0, ..engine(16) };
        let (run, _) = run(&engine);
        let (delivery, pause) = (seconds(&run, Cause::Delivery), seconds(&run, Cause::EnginePause));
        assert!(delivery > 20.0 && pause <= 0.04 * delivery, "{delivery} {pause}");
    }
}
