//! The relay in front of every dialect of the simulated server: the record must match the server's counts.

use std::net::SocketAddr;
use std::time::Instant;

use tokometer::app::DataPath;
use tokometer::replay::{Notebook, Replayed};
use tokometer_decode::FinishReason;
use tokometer_observe::measure::{Outcome, Record};
use tokometer_sim::server::{Settings, Simulator, Stats};

use crate::end_to_end::relay_to;
use crate::sim::cases::{CASES, Case};
use crate::sim::round_trip;

/// The result of one request through the relay.
struct Seen {
    record: Record,
    stats: Stats,
}

/// Sends a case's request through its own relay, with an optional fault.
fn through(case: &Case, body: &str, fault: &str) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let notebook = Notebook::default();
    let mut replayed = Replayed::default();
    let (stats, path): (Stats, DataPath) = runtime.block_on(async {
        let settings = Settings { cached_share: 0.5, prompt_tokens_details: true, ..round_trip::swift() };
        let simulator = Simulator::start(settings).await.expect("a free port");
        let (path, url) = relay_to(simulator.local_address(), &notebook);
        let address: SocketAddr = url.trim_start_matches("http://").parse().expect("an address");
        let fault = if fault.is_empty() { String::new() } else { format!("x-sim-fault: {fault}\r\n") };
        round_trip::post(address, case.path, &format!("{}{fault}", case.headers), body).await;
        // The observer of the relay is notified of the end of the connection later than the client.
        let deadline = Instant::now() + crate::WAIT;
        while replayed.records.is_empty() && Instant::now() < deadline {
            tokio::task::yield_now().await;
            let more = notebook.take();
            replayed.records.extend(more.records);
            replayed.in_flight += more.in_flight;
        }
        (simulator.stop().await, path)
    });
    path.stop();
    assert_eq!((replayed.records.len(), replayed.in_flight), (1, 0), "{} {fault}: {replayed:?}", case.path);
    Seen { record: replayed.records.remove(0), stats }
}

/// The name of a case in messages.
fn name(case: &Case) -> String {
    format!("{} {}", case.path, case.headers.trim_end())
}

#[test]
fn stream_counts_match_the_server() {
    let mut wrong = Vec::new();
    for case in CASES {
        let Seen { record, stats } = through(case, case.body, "");
        let name = name(case);
        assert_eq!(stats.generation_tokens, 9, "{name}");
        let input = record.tokens.input.map(|count| count.tokens).filter(|_| case.tells_input);
        let finishes = if case.tells_finish { record.response.finish_reasons.as_slice() } else { &[] };
        // Triton (empty `count`) reports neither counts nor an end, so the output count is a lower bound.
        let reported = (
            record.outcome,
            record.tokens.output.map(|count| (count.tokens, count.source.is_exact())),
            input,
            finishes,
            record.times.first_token.is_some(),
            record.labels.streaming,
        );
        let expected = (
            Outcome::Ok,
            Some((stats.generation_tokens, !case.count.is_empty())),
            case.tells_input.then_some(stats.prompt_tokens),
            if case.tells_finish { &[FinishReason::Length][..] } else { &[] },
            true,
            Some(true),
        );
        if reported != expected {
            wrong.push(format!("{name}: {reported:?}, expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn body_counts_match_the_server() {
    let mut wrong = Vec::new();
    for case in CASES.iter().filter(|case| !case.path.ends_with("generate_stream")) {
        // Ollama streams by default.
        let body = case.body.replace(r#","stream":true"#, "");
        let body = format!("{},\"stream\":false}}", body.trim_end().trim_end_matches('}').to_owned() + closing(&body));
        let Seen { record, stats } = through(case, &body, "");
        let reported = (
            record.outcome,
            record.tokens.output.map(|count| (count.tokens, count.source.is_exact())),
            record.labels.streaming,
        );
        assert_eq!(stats.generation_tokens, 9, "{} {body}", name(case));
        // TGI always reports a count in its headers; in the body only if the request sets `details`.
        if reported != (Outcome::Ok, Some((9, true)), Some(false)) {
            wrong.push(format!("{}: {reported:?}", name(case)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Restores a brace that `trim_end_matches` removed in excess.
fn closing(body: &str) -> &'static str {
    if body.trim_end().ends_with("}}") { "}" } else { "" }
}

#[test]
fn pooling_apis_report_input_tokens_only() {
    for (path, body) in [
        ("/v1/embeddings", r#"{"input":["12345678","1234"]}"#),
        ("/pooling", r#"{"input":"123456789012"}"#),
        ("/v1/rerank", r#"{"query":"1234","documents":["1234","1234"]}"#),
        ("/v1/score", r#"{"text_1":"1234","text_2":["1234","1234"]}"#),
        ("/classify", r#"{"input":"123456789012"}"#),
        ("/api/embed", r#"{"input":["12345678","1234"]}"#),
    ] {
        let case = Case { path, body, ..DEFAULT_CASE };
        let Seen { record, stats } = through(&case, body, "");
        assert_eq!(stats.prompt_tokens, 3, "{path}");
        assert_eq!((record.outcome, record.tokens.input.map(|count| count.tokens)), (Outcome::Ok, Some(3)), "{path}");
        assert_eq!(record.tokens.output, None, "{path}");
    }
}

/// Default values for the cases above.
const DEFAULT_CASE: Case = Case {
    path: "",
    headers: "",
    body: "",
    mark: "",
    error: "",
    count: "",
    tells_input: true,
    tells_finish: false,
    unmarked: Outcome::Ok,
};

#[test]
fn each_fault_yields_its_outcome() {
    let mut wrong = Vec::new();
    for case in CASES {
        let name = name(case);
        let breaks = if case.error.is_empty() { Outcome::Truncated } else { Outcome::ErrorInStream };
        for (fault, outcome, tokens) in [
            ("error-event:2", breaks, Some(2)),
            ("cut:2", Outcome::Truncated, Some(2)),
            ("reset:2", Outcome::UpstreamReset, Some(2)),
            ("empty", Outcome::NoOutput, None),
            ("status:503", Outcome::RejectedBusy, None),
            ("status:400", Outcome::Http4xx, None),
            ("no-done", case.unmarked, Some(9)),
            ("bad-json:2", Outcome::Ok, Some(9)),
        ] {
            let Seen { record, stats } = through(case, case.body, fault);
            assert_eq!(stats.generation_tokens, tokens.unwrap_or(0), "{name} {fault}");
            let counted = record.tokens.output.map(|count| count.tokens);
            if (record.outcome, counted) != (outcome, tokens) {
                wrong.push(format!("{name} {fault}: {:?} {:?}", record.outcome, record.tokens.output));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
