//! Load on every API through the relay: counts of the client, the relay's records and the server are equal.

use std::time::Duration;

use tokometer::replay::{Notebook, Replayed};
use tokometer_observe::measure::{CountSource, Outcome};
use tokometer_sim::load::{Api, End, Summary};
use tokometer_sim::server::{Imitation, Simulator, Stats};
use tokometer_sim::{load, server};

use crate::end_to_end::relay_to;
use crate::sim::round_trip;

const REQUESTS: u64 = 6;

/// The results of one load run: from the client, the relay and the server.
struct Run {
    summary: Summary,
    replayed: Replayed,
    stats: Stats,
}

/// Sends `REQUESTS` requests through a new relay, three at a time.
fn through(settings: load::Settings, server: server::Settings) -> Run {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let notebook = Notebook::default();
    let (summary, stats, path) = runtime.block_on(async {
        let simulator = Simulator::start(server).await.unwrap();
        let (path, url) = relay_to(simulator.local_address(), &notebook);
        let settings =
            load::Settings { url, model: "tiny".to_owned(), concurrency: 3, requests: Some(REQUESTS), ..settings };
        let summary = load::run(settings, |_| {}).await.unwrap();
        // Waits, because the server notices a disconnected client with a delay.
        let asked = std::time::Instant::now();
        while simulator.stats().running > 0 && asked.elapsed() < crate::WAIT {
            tokio::task::yield_now().await;
        }
        (summary, simulator.stop().await, path)
    });
    path.stop();
    Run { summary, replayed: notebook.take(), stats }
}

/// The engine that the server imitates on a path that several engines use.
fn imitated(api: Api) -> Imitation {
    if api == Api::LmDeployGenerate { Imitation::LmDeploy } else { Imitation::Vllm }
}

fn hold(api: Api, http2: bool, stream: bool) {
    let name = format!("{api}, {}, {}", if http2 { "h2" } else { "h1" }, if stream { "streamed" } else { "whole" });
    // llama.cpp closes the connection after a stream. With keep-alive, a request sent at that moment would be retried
    // and recorded twice.
    let keep_alive = !matches!(api, Api::LlamaCompletion | Api::Infill);
    let settings =
        load::Settings { api: Some(api), http2, stream, max_tokens: 25, keep_alive, ..load::Settings::default() };
    let server = server::Settings {
        imitate: imitated(api),
        response_tokens: 5..=60,
        pace: server::Pace {
            // Slow enough that a stream does not arrive in a single read on a busy machine.
            tokens_per_second: if stream { 200.0 } else { 0.0 },
            time_to_first_token: Duration::from_millis(2),
            ..server::Pace::default()
        },
        ..round_trip::swift()
    };
    let Run { summary, replayed, stats } = through(settings, server);
    assert_eq!((summary.requests, summary.count(End::Complete)), (REQUESTS, REQUESTS), "{name}: {summary}");
    assert_eq!((replayed.detached.len(), replayed.in_flight), (0, 0), "{name}: {replayed:?}");
    assert_eq!(replayed.records.len() as u64, REQUESTS, "{name}");
    let mut counted = 0;
    for record in &replayed.records {
        assert_eq!((record.outcome, record.labels.streaming), (Outcome::Ok, Some(stream)), "{name}: {record:?}");
        assert_eq!(record.times.first_token.is_some(), stream, "{name}: {record:?}");
        counted += record.tokens.output.map_or(0, |count| count.tokens);
        // Triton reports no counts; a non-streamed transcription reports only seconds.
        let exact = match api {
            Api::TritonGenerate => false,
            Api::AudioTranscription | Api::AudioTranslation => stream,
            _ => true,
        };
        let reported = record.tokens.output.is_some_and(|count| count.source != CountSource::Deltas);
        assert_eq!(reported, exact, "{name}: {record:?}");
    }
    assert_eq!(stats.requests, REQUESTS, "{name}");
    let reported = summary.tokens_from_usage > 0;
    if reported {
        assert_eq!((summary.tokens, counted), (stats.generation_tokens, stats.generation_tokens), "{name}: {summary}");
    } else if stream {
        // Client and relay count the events with text, so they miss the end-of-text token of each stopped response.
        let ended = stats.stopped;
        assert_eq!(
            (summary.tokens, counted),
            (stats.generation_tokens - ended, stats.generation_tokens - ended),
            "{name}"
        );
    }
    if stream {
        assert_eq!(summary.time_to_first_token_ms.count, REQUESTS, "{name}: {summary}");
        assert!(summary.tokens_per_second.count > 0 && summary.inter_token_latency_ms.count > 0, "{name}: {summary}");
        assert!(summary.token_events > 0, "{name}");
    }
}

#[test]
fn client_relay_and_server_counts_agree_for_every_api() {
    for (_, api) in Api::NAMES {
        hold(*api, false, true);
        hold(*api, false, false);
    }
}

#[test]
fn counts_agree_for_every_api_over_http2() {
    for (_, api) in Api::NAMES {
        hold(*api, true, true);
        hold(*api, true, false);
    }
}

#[test]
fn http2_faults_agree_between_client_and_relay() {
    for (fault, end, outcome) in [
        ("error-event:2", End::ErrorEvent, Outcome::ErrorInStream),
        ("cut:2", End::Reset, Outcome::UpstreamReset),
        ("reset:2", End::Reset, Outcome::UpstreamReset),
        ("no-done", End::NoDone, Outcome::Ok),
        ("empty", End::NoTokens, Outcome::NoOutput),
        ("status:503", End::ErrorStatus, Outcome::RejectedBusy),
        ("status:400", End::ErrorStatus, Outcome::Http4xx),
        ("garbage", End::Reset, Outcome::UpstreamReset),
    ] {
        let headers = vec![("x-sim-fault".to_owned(), fault.to_owned())];
        let settings = load::Settings { http2: true, headers, ..load::Settings::default() };
        let Run { summary, replayed, stats } = through(settings, round_trip::swift());
        assert_eq!((summary.requests, summary.count(end)), (REQUESTS, REQUESTS), "{fault}: {summary}");
        let outcomes: Vec<Outcome> = replayed.records.iter().map(|record| record.outcome).collect();
        assert_eq!(outcomes, vec![outcome; REQUESTS as usize], "{fault}");
        assert_eq!(stats.faulted, REQUESTS, "{fault}");
    }
}

#[test]
fn aborted_http2_streams_are_aborted_on_all_sides() {
    let server = server::Settings {
        pace: server::Pace { tokens_per_second: 1000.0, ..round_trip::swift().pace },
        ..round_trip::swift()
    };
    let settings =
        load::Settings { http2: true, abort: 1.0, ignore_eos: true, max_tokens: 4000, ..load::Settings::default() };
    let Run { summary, replayed, stats } = through(settings, server);
    assert_eq!(summary.count(End::Aborted), REQUESTS, "{summary}");
    assert_eq!(stats.aborted, REQUESTS, "{stats:?}");
    assert_eq!(replayed.records.len() as u64, REQUESTS);
    for record in &replayed.records {
        assert_eq!(record.outcome, Outcome::ClientAbortMidStream, "{record:?}");
    }
}
