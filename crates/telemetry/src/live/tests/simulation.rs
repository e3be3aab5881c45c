//! Wedge detection with the default settings, over minutes of a scripted engine: its tokens on the wire, and its metrics
//! page, read every five seconds.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer_engine::scrape::exposition::Parser;
use tokometer_engine::scrape::{self, Failure, Page, Watch};

use crate::live::tests::{Asked, Stage, seconds};
use crate::live::{Reach, Signs, State};

/// Simulated time and its step.
const END: f64 = 400.0;
const STEP: f64 = 0.1;

/// An engine that decodes ten tokens per second for each of `streams`, with a metrics page.
struct Script {
    /// Streams that have tokens from the second 2 on.
    streams: usize,
    /// A request from the second 60 on: size of its prompt, and when its first token arrives.
    prompt: Option<(u64, f64)>,
    /// No token is sent.
    silent: Range<f64>,
    /// The engine makes no iteration.
    still: Range<f64>,
    /// The server does not respond to the scraper.
    mute: Range<f64>,
    /// Whether the page is read at all.
    scraped: bool,
}

const NEVER: Range<f64> = 0.0..0.0;

const DECODING: Script = Script { streams: 8, prompt: None, silent: NEVER, still: NEVER, mute: NEVER, scraped: true };

/// The seconds at which the engine began and ceased to be wedged.
fn wedged(script: &Script) -> Option<(f64, f64)> {
    let stage = Stage::new();
    let watch = Arc::new(Watch::new(&scrape::Settings::default()));
    let scraped = Arc::clone(&watch);
    let sign = move |_, now: Instant| Signs { reach: Reach::Accepts, still: scraped.still(now) };
    stage.in_flight.consult(Box::new(sign));
    let mut streams: Vec<Asked> = (0..script.streams).map(|_| stage.stream(1.0)).collect();
    let (mut prefilling, mut prompt) = (None, script.prompt);
    let (mut iterations, mut next_page, mut found) = (0, 3.0, None::<(f64, f64)>);
    for step in 0..(END / STEP) as u32 {
        let at = f64::from(step) * STEP;
        if at >= 2.0 && !script.silent.contains(&at) {
            streams = streams.into_iter().map(|stream| stream.token(at)).collect();
        }
        if let Some((bytes, first)) = prompt
            && at >= 60.0
        {
            prefilling.get_or_insert_with(|| stage.ask(true, bytes, None, at));
            if at >= first {
                streams.extend(prefilling.take());
                prompt = None;
            }
        }
        iterations += u32::from(!streams.is_empty() && !script.still.contains(&at));
        if script.scraped && at >= next_page {
            let now = stage.began + seconds(at);
            let running = streams.len() + usize::from(prefilling.is_some());
            if script.mute.contains(&at) {
                watch.note(now + seconds(2.0), seconds(2.0), Err(Failure::Timeout));
            } else {
                watch.note(now, Duration::from_millis(3), Ok(&page(running, iterations)));
            }
            next_page = at + watch.pause(&scrape::Settings::default(), 0.5).as_secs_f64();
        }
        if stage.verdict(at).state == State::Wedged {
            let (first, last) = found.unwrap_or((at, at));
            assert!(at - last < 1.5 * STEP, "wedged again at {at} s after {last} s");
            found = Some((first, at));
        }
    }
    found
}

fn page(running: usize, iterations: u32) -> Page {
    let text = format!("vllm:num_requests_running {running}\nvllm:iteration_tokens_total_count {iterations}\n");
    let (mut page, mut parser) = (Page::default(), Parser::default());
    parser.feed(text.as_bytes(), &mut |sample| page.take(sample));
    page
}

#[test]
fn engine_frozen_for_30_s_is_wedged_from_the_20th_second() {
    // A stopped engine process whose API server still responds, and a server that is stopped as a whole, at any time
    // between two pages.
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
fn silence_of_an_engine_that_iterates_is_no_wedge() {
    // A tool call that is held back until it is complete.
    assert_eq!(wedged(&Script { streams: 1, silent: 100.0..150.0, ..DECODING }), None);
}

#[test]
fn prefill_without_iterations_is_no_wedge() {
    // vLLM counts no iteration before the first token. 20,000 tokens in 150 s, alone and while others would decode but
    // wait for the whole prompt.
    let prompt = Some((80_000, 160.0));
    assert_eq!(wedged(&Script { streams: 0, prompt, still: 60.0..160.0, ..DECODING }), None);
    assert_eq!(wedged(&Script { prompt, silent: 60.0..160.0, still: 60.0..160.0, ..DECODING }), None);
    // The first request of a short prompt waits for compilation.
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
