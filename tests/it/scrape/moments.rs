//! The engine state that applies at a given time, with scripted times.

use std::time::{Duration, Instant};

use tokometer_engine::scrape::{Failure, Settings, Stillness, Watch};

use super::page;

const TOOK: Duration = Duration::from_millis(3);

fn seconds(n: f64) -> Duration {
    Duration::from_secs_f64(n)
}

fn settings() -> Settings {
    Settings { interval: seconds(5.0), timeout: seconds(2.0), ..Settings::default() }
}

/// A watch, and a function that records a page with this many running requests at this second.
fn watch() -> (Watch, Instant, impl Fn(&Watch, f64, u32)) {
    let start = Instant::now();
    let note = move |watch: &Watch, at: f64, running: u32| {
        watch.note(start + seconds(at), TOOK, Ok(&page(&format!("vllm:num_requests_running {running}"))));
    };
    (Watch::new(&settings()), start, note)
}

#[test]
fn state_of_a_moment_is_the_last_one_before_it() {
    let (watch, start, note) = watch();
    for (at, running) in [(0.0, 1), (5.0, 2), (10.0, 3)] {
        note(&watch, at, running);
    }
    let at = |moment: f64| watch.at(start + seconds(moment)).map(|(state, age)| (state.running.unwrap(), age));
    assert_eq!(at(0.0), Some((1.0, Duration::ZERO)));
    assert_eq!(at(4.9), Some((1.0, seconds(4.9))));
    assert_eq!(at(5.0), Some((2.0, Duration::ZERO)));
    assert_eq!(at(7.0), Some((2.0, seconds(2.0))), "not the newest: the stream's first token was long ago");
    assert_eq!(at(12.5), Some((3.0, seconds(2.5))));
    assert!(watch.at(start - seconds(1.0)).is_none(), "nothing was known before the first page");
}

#[test]
fn failure_ends_the_state_until_the_next_page() {
    let (watch, start, note) = watch();
    note(&watch, 0.0, 1);
    watch.note(start + seconds(5.0), seconds(2.0), Err(Failure::Timeout));
    watch.note(start + seconds(10.0), TOOK, Err(Failure::Connect));
    note(&watch, 20.0, 4);
    let running = |moment: f64| watch.at(start + seconds(moment)).and_then(|(state, _)| state.running);
    assert_eq!(
        [4.9, 5.0, 11.0, 19.9, 20.0].map(running),
        [Some(1.0), None, None, None, Some(4.0)],
        "a state before a failure still applies to its time"
    );
    let measurements = watch.measurements(start + seconds(12.0));
    assert_eq!((measurements.state, measurements.attempts, measurements.duration), (None, 4, Some(TOOK)));
    let count = |failure: Failure| measurements.failures[Failure::ALL.iter().position(|own| *own == failure).unwrap()];
    assert_eq!(Failure::ALL.map(count), [1, 1, 0, 0, 0, 0, 0, 0]);
    let later = watch.measurements(start + seconds(21.0));
    assert_eq!((later.age, later.state.and_then(|state| state.running)), (Some(seconds(1.0)), Some(4.0)));
}

#[test]
fn state_expires_without_new_pages() {
    let (watch, start, note) = watch();
    note(&watch, 0.0, 1);
    // A state is valid for three intervals plus the timeout of a scrape.
    assert!(watch.at(start + seconds(17.0)).is_some());
    assert!(watch.at(start + seconds(17.1)).is_none());
    let measurements = watch.measurements(start + seconds(30.0));
    assert_eq!((measurements.state, measurements.age), (None, Some(seconds(30.0))));
}

#[test]
fn states_of_one_hour_are_kept() {
    let (watch, start, note) = watch();
    for n in 0..800 {
        note(&watch, f64::from(n) * 5.0, n as u32);
    }
    let running = |n: u32| watch.at(start + seconds(f64::from(n) * 5.0 + 1.0)).and_then(|(state, _)| state.running);
    assert_eq!((running(799), running(80), running(79)), (Some(799.0), Some(80.0), None));
}

#[test]
fn failing_engine_is_asked_less_often_up_to_a_minute() {
    let (watch, start, note) = watch();
    let settings = settings();
    let pause = |watch: &Watch| watch.pause(&settings, 0.5);
    assert_eq!(pause(&watch), seconds(5.0));
    let mut pauses = Vec::new();
    for n in 0..40 {
        watch.note(start + seconds(f64::from(n)), TOOK, Err(Failure::Connect));
        pauses.push(pause(&watch).as_secs());
    }
    assert_eq!(&pauses[..6], [5, 10, 20, 40, 60, 60]);
    assert_eq!(pauses[39], 60);
    note(&watch, 100.0, 1);
    assert_eq!(pause(&watch), seconds(5.0), "one page resets the pause");
    assert_eq!((watch.pause(&settings, 0.0), watch.pause(&settings, 1.0)), (seconds(4.5), seconds(5.5)));
    let rare = Settings { interval: seconds(300.0), ..settings };
    watch.note(start, TOOK, Err(Failure::Connect));
    watch.note(start, TOOK, Err(Failure::Connect));
    assert_eq!(watch.pause(&rare, 0.5), seconds(300.0), "never more often than the interval");
}

/// Records a page of vLLM with these values.
fn note_iterations(watch: &Watch, at: Instant, running: u32, iterations: u32) {
    let text = format!("vllm:num_requests_running {running}\nvllm:iteration_tokens_total_count {iterations}\n");
    watch.note(at, TOOK, Ok(&page(&text)));
}

#[test]
fn engine_is_still_while_requests_run_without_an_iteration() {
    let (watch, start, _) = watch();
    let at = |n: f64| start + seconds(n);
    let still = |n: f64| watch.still(at(n)).engine;
    for (n, running, iterations, expected) in [
        (0.0, 8, 100, None),
        (5.0, 8, 140, None),
        (10.0, 8, 140, Some(5.0)),
        (15.0, 9, 140, Some(10.0)),
        (20.0, 9, 141, None),
        (25.0, 0, 141, None),
        (30.0, 2, 141, None),
        (35.0, 2, 141, Some(5.0)),
        // A restarted engine counts from 0, so a lower count is progress.
        (40.0, 2, 3, None),
    ] {
        note_iterations(&watch, at(n), running, iterations);
        assert_eq!(still(n + 1.0), expected.map(seconds), "{n}");
    }
}

#[test]
fn server_that_does_not_respond_is_still_and_one_that_is_gone_is_not() {
    let (watch, start, note) = watch();
    let at = |n: f64| start + seconds(n);
    let fails = |n: f64, why| watch.note(at(n), seconds(2.0), Err(why));
    note_iterations(&watch, at(0.0), 8, 100);
    fails(7.0, Failure::Timeout);
    assert_eq!(watch.still(at(8.0)).engine, Some(seconds(7.0)));
    fails(14.0, Failure::Timeout);
    // After timeouts, attempts are less frequent, so this state is valid for longer.
    assert_eq!(watch.still(at(40.0)).engine, Some(seconds(14.0)));
    assert_eq!(watch.still(at(100.0)).engine, None, "too old");
    fails(60.0, Failure::Connect);
    assert_eq!(watch.still(at(61.0)).engine, None);
    fails(70.0, Failure::Timeout);
    assert_eq!(watch.still(at(71.0)).engine, None, "nothing is known to run");
    note(&watch, 80.0, 3);
    fails(87.0, Failure::Timeout);
    assert_eq!(watch.still(at(88.0)).engine, None, "this engine counts no iterations");
}

fn still(engine: Option<f64>, rank: Option<(u16, f64)>) -> Stillness {
    Stillness { engine: engine.map(seconds), rank: rank.map(|(rank, period)| (rank, seconds(period))) }
}

#[test]
fn still_rank_is_found_among_ranks_that_iterate() {
    let (watch, start, _) = watch();
    let at = |n: f64| start + seconds(n);
    let read = |n: f64, ranks: &[(u32, u32)]| {
        let line = |(rank, (running, iterations)): (usize, &(u32, u32))| {
            format!(
                "vllm:num_requests_running{{engine=\"{rank}\"}} {running}\n\
                 vllm:iteration_tokens_total_count{{engine=\"{rank}\"}} {iterations}\n"
            )
        };
        let text: String = ranks.iter().enumerate().map(line).collect();
        watch.note(at(n), TOOK, Ok(&page(&text)));
    };
    let stopped = || {
        let ranks = watch.measurements(at(41.0)).ranks;
        ranks.iter().map(|(_, state)| state.stopped.unwrap()).collect::<Vec<_>>()
    };
    // Rank 1 makes no iteration after the first page. Rank 2 has no running requests.
    for (n, ranks) in [
        (0.0, [(8, 100), (8, 100), (0, 100)]),
        (10.0, [(8, 140), (8, 100), (0, 100)]),
        (30.0, [(8, 200), (9, 100), (0, 100)]),
        (40.0, [(8, 240), (9, 100), (0, 100)]),
    ] {
        read(n, &ranks);
    }
    assert_eq!((watch.still(at(41.0)), stopped()), (still(None, Some((1, 40.0))), vec![0.0, 40.0, 0.0]));
    watch.note(at(47.0), seconds(2.0), Err(Failure::Timeout));
    assert_eq!(watch.still(at(48.0)).rank, Some((1, seconds(47.0))), "a page that times out ends no period");
    read(50.0, &[(8, 240), (9, 101), (0, 100)]);
    assert_eq!(watch.still(at(51.0)), still(None, Some((0, 10.0))));
    // If a page has a single rank, the engine is reported as still, not the rank.
    read(55.0, &[(8, 200)]);
    read(60.0, &[(8, 200)]);
    assert_eq!(watch.still(at(61.0)), still(Some(5.0), None));
}
