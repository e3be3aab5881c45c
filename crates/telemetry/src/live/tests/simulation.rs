//! Wedge detection with the default settings. A simulated engine sends tokens for several minutes, and its metrics page
//! is scraped every five seconds.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer_engine::scrape::exposition::Parser;
use tokometer_engine::scrape::{self, Failure, Page, Watch};

use crate::live::tests::{Stage, TestRequest, seconds};
use crate::live::{Reach, Signs, State};

/// Simulated time and its step.
const END: f64 = 400.0;
const STEP: f64 = 0.1;

/// A simulated engine with a metrics page. It decodes ten tokens per second for each of `streams`.
struct Script {
    /// Streams that receive tokens from second 2 on.
    streams: usize,
    /// A request sent at second 60: size of the prompt, and arrival time of the first token.
    prompt: Option<(u64, f64)>,
    /// Period in which no token is sent.
    silent: Range<f64>,
    /// Period in which the engine makes no iteration.
    still: Range<f64>,
    /// Period in which the server does not respond to the scraper.
    mute: Range<f64>,
    /// Whether the metrics page is scraped.
    scraped: bool,
    /// Data-parallel ranks that share the streams. `silent` and `still` affect only the last rank.
    ranks: usize,
}

const NEVER: Range<f64> = 0.0..0.0;

const DECODING: Script =
    Script { streams: 8, prompt: None, silent: NEVER, still: NEVER, mute: NEVER, scraped: true, ranks: 1 };

const TWO_RANKS: Script = Script { ranks: 2, ..DECODING };

/// The first and the last second at which the engine was wedged.
fn wedged(script: &Script) -> Option<(f64, f64)> {
    verdicts(script).map(|(first, last, _)| (first, last))
}

/// Like [`wedged`], with the rank of the verdict.
fn verdicts(script: &Script) -> Option<(f64, f64, Option<u16>)> {
    let affected = script.ranks - 1;
    let stage = Stage::new();
    let watch = Arc::new(Watch::new(&scrape::Settings::default()));
    let scraped = Arc::clone(&watch);
    let sign = move |_, now: Instant| Signs { reach: Reach::Accepts, still: scraped.still(now) };
    stage.in_flight.set_signs_source(Box::new(sign));
    let mut streams: Vec<TestRequest> = (0..script.streams).map(|_| stage.stream(1.0)).collect();
    let (mut prefilling, mut prompt) = (None, script.prompt);
    let (mut iterations, mut next_page) = (vec![0; script.ranks], 3.0);
    let mut found = None::<(f64, f64, Option<u16>)>;
    for step in 0..(END / STEP) as u32 {
        let at = f64::from(step) * STEP;
        if at >= 2.0 {
            let send = |(number, stream): (usize, TestRequest)| match number % script.ranks == affected
                && script.silent.contains(&at)
            {
                true => stream,
                false => stream.token(at),
            };
            streams = streams.into_iter().enumerate().map(send).collect();
        }
        if let Some((bytes, first)) = prompt
            && at >= 60.0
        {
            prefilling.get_or_insert_with(|| stage.request(true, bytes, None, at));
            if at >= first {
                streams.extend(prefilling.take());
                prompt = None;
            }
        }
        for (rank, iterations) in iterations.iter_mut().enumerate() {
            let is_still = rank == affected && script.still.contains(&at);
            *iterations += u32::from(!streams.is_empty() && !is_still);
        }
        if script.scraped && at >= next_page {
            let now = stage.began + seconds(at);
            let running = streams.len() + usize::from(prefilling.is_some());
            if script.mute.contains(&at) {
                watch.note(now + seconds(2.0), seconds(2.0), Err(Failure::Timeout));
            } else {
                watch.note(now, Duration::from_millis(3), Ok(&page(running, &iterations)));
            }
            next_page = at + watch.pause(&scrape::Settings::default(), 0.5).as_secs_f64();
        }
        let verdict = stage.verdict(at);
        if verdict.state == State::Wedged {
            let (first, last, rank) = found.unwrap_or((at, at, verdict.rank));
            assert!(at - last < 1.5 * STEP, "wedged again at {at} s after {last} s");
            assert_eq!(verdict.rank, rank, "at {at} s");
            found = Some((first, at, rank));
        }
    }
    found
}

/// A metrics page with this many running requests, shared among the ranks, and the iterations of each rank.
fn page(running: usize, iterations: &[u32]) -> Page {
    let share = running.div_ceil(iterations.len());
    let line = |(rank, iterations): (usize, &u32)| {
        let (running, count) = ("vllm:num_requests_running", "vllm:iteration_tokens_total_count");
        format!("{running}{{engine=\"{rank}\"}} {share}\n{count}{{engine=\"{rank}\"}} {iterations}\n")
    };
    let text: String = iterations.iter().enumerate().map(line).collect();
    let (mut page, mut parser) = (Page::default(), Parser::default());
    parser.feed(text.as_bytes(), &mut |sample| page.take(sample));
    page
}

#[test]
fn engine_frozen_for_30_s_is_wedged_from_the_20th_second() {
    // A stopped engine process whose API server still responds, and a completely stopped server, each at different
    // times between two pages.
    for begin in [100.0, 101.3, 102.6, 103.9, 104.8] {
        let frozen = begin..begin + 30.0;
        let engine = Script { silent: frozen.clone(), still: frozen.clone(), ..DECODING };
        let whole = Script { silent: frozen.clone(), still: frozen.clone(), mute: frozen.clone(), ..DECODING };
        for script in [engine, whole] {
            let (from, to) = wedged(&script).expect("it is noticed");
            assert!((begin + 20.0..begin + 22.0).contains(&from), "{from} after {begin}");
            assert!((begin + 29.0..begin + 30.2).contains(&to), "{to} after {begin}");
        }
    }
}

#[test]
fn without_a_metrics_page_the_bound_between_tokens_is_60_s() {
    let frozen = |length: f64| Script { silent: 100.0..100.0 + length, scraped: false, ..DECODING };
    assert_eq!(wedged(&frozen(50.0)), None);
    let (from, _) = wedged(&frozen(90.0)).expect("it is noticed");
    assert!((159.0..161.0).contains(&from), "{from}");
}

#[test]
fn silence_of_an_engine_that_iterates_is_not_a_wedge() {
    // For example, the engine buffers a tool call until it is complete.
    assert_eq!(wedged(&Script { streams: 1, silent: 100.0..150.0, ..DECODING }), None);
}

#[test]
fn prefill_without_iterations_is_not_a_wedge() {
    // vLLM counts no iteration before the first token. 20,000 prompt tokens take 100 s, alone and while other streams
    // wait for this prefill.
    let prompt = Some((80_000, 160.0));
    assert_eq!(wedged(&Script { streams: 0, prompt, still: 60.0..160.0, ..DECODING }), None);
    assert_eq!(wedged(&Script { prompt, silent: 60.0..160.0, still: 60.0..160.0, ..DECODING }), None);
    // The first request, with a short prompt, waits for compilation.
    assert_eq!(wedged(&Script { streams: 0, prompt: Some((400, 170.0)), still: 60.0..170.0, ..DECODING }), None);
}

#[test]
fn short_prompt_does_not_hide_a_frozen_engine() {
    let frozen = 70.0..110.0;
    let script = Script { prompt: Some((400, 110.0)), silent: frozen.clone(), still: frozen, ..DECODING };
    let (from, _) = wedged(&script).expect("it is noticed");
    assert!((90.0..92.0).contains(&from), "{from}");
}

#[test]
fn idle_engine_is_not_wedged() {
    assert_eq!(wedged(&Script { streams: 0, still: 0.0..END, ..DECODING }), None);
}

#[test]
fn one_of_two_ranks_frozen_for_30_s_is_wedged_from_the_20th_second() {
    for begin in [100.0, 101.3, 102.6, 103.9, 104.8] {
        let frozen = begin..begin + 30.0;
        let script = Script { silent: frozen.clone(), still: frozen, ..TWO_RANKS };
        let (from, to, rank) = verdicts(&script).expect("it is noticed");
        assert!((begin + 20.0..begin + 22.0).contains(&from), "{from} after {begin}");
        assert!((begin + 29.0..begin + 30.2).contains(&to), "{to} after {begin}");
        assert_eq!(rank, Some(1));
    }
}

#[test]
fn ranks_without_both_kinds_of_evidence_are_not_wedged() {
    // The engine buffers tool calls of some streams for a minute, while each rank iterates.
    assert_eq!(wedged(&Script { silent: 100.0..160.0, ..TWO_RANKS }), None);
    // A rank reports running requests and makes no iteration, while every stream gets its tokens.
    assert_eq!(wedged(&Script { still: 100.0..300.0, ..TWO_RANKS }), None);
    // 20,000 prompt tokens take 100 s: their rank makes no iteration, and the streams on it wait.
    let prompt = Some((80_000, 160.0));
    assert_eq!(wedged(&Script { prompt, silent: 60.0..160.0, still: 60.0..160.0, ..TWO_RANKS }), None);
    // Without the metrics page, the ranks are unknown.
    assert_eq!(wedged(&Script { scraped: false, silent: 100.0..300.0, still: 100.0..300.0, ..TWO_RANKS }), None);
}
