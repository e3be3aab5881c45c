//! Compares the evaluator with the reference implementation: for every recording, and for ten thousand requests to a
//! simulated server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokometer::app::{DataPath, Tee};
use tokometer::replay::{Notebook, Recording, replay};
use tokometer_observe::measure::{Record, Sink};
use tokometer_observe::observer;
use tokometer_proxy::listen::Address;
use tokometer_proxy::relay;
use tokometer_sim::load;
use tokometer_sim::server::{Fault, Pace, Settings as Simulated, Simulator};
use tokometer_telemetry::live;
use tokometer_telemetry::live::InFlight;
use tokometer_telemetry::slo::{Evaluator, Settings};

use super::naive;
use crate::listener::listener_to;
use crate::truth::captures;

/// Number of requests by objective and verdict.
type Stated = BTreeMap<(String, String), u64>;

fn by_the_evaluator(evaluate: &Evaluator) -> Stated {
    let mut stated = Stated::new();
    for one in evaluate.evaluated() {
        let mut add = |what: String, n| *stated.entry((one.objective.clone(), what)).or_default() += n;
        add("good".to_owned(), one.counts.good);
        one.counts.bad.iter().for_each(|(reason, n)| add(format!("bad: {}", reason.as_str()), *n));
        one.counts.excluded.iter().for_each(|(why, n)| add(format!("excluded: {}", why.as_str()), *n));
    }
    stated.retain(|_, n| *n > 0);
    stated
}

fn by_the_naive_one(records: &[Record]) -> Stated {
    let mut stated = Stated::new();
    for (objective, what) in records.iter().flat_map(naive::evaluate) {
        *stated.entry((objective.to_owned(), what)).or_default() += 1;
    }
    stated
}

fn table(stated: &Stated) -> String {
    stated.iter().map(|((objective, what), n)| format!("  {objective:<14} {what:<28} {n}\n")).collect()
}

#[test]
fn recordings_match_the_reference() {
    let evaluate = Evaluator::new(Settings::default());
    let mut records = Vec::new();
    for path in Recording::find(&captures()).unwrap() {
        let replayed = replay(&Recording::read(&path).unwrap(), &observer::Settings::default());
        records.extend(replayed.records);
    }
    records.iter().for_each(|record| evaluate.evaluate(record));
    let stated = by_the_evaluator(&evaluate);
    println!("{} records\n{}", records.len(), table(&stated));
    assert!(records.len() > 250);
    assert_eq!(stated, by_the_naive_one(&records));
    for objective in ["availability", "ttft", "decode_rate", "stall", "goodput"] {
        assert!(stated.contains_key(&(objective.to_owned(), "good".to_owned())), "{objective}");
    }
}

#[test]
fn ten_thousand_requests_match_the_reference() {
    let evaluate = Arc::new(Evaluator::new(Settings::default()));
    let notebook = Notebook::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let path = runtime.block_on(async {
        let faults = ["status:500", "status:429", "status:400", "error-event", "cut", "reset", "no-done", "empty"];
        let rare = ["stall:5.2", "hang"];
        let shares = faults.iter().map(|name| (*name, 0.02)).chain(rare.iter().map(|name| (*name, 0.002)));
        let simulator = Simulator::start(Simulated {
            pace: Pace {
                time_to_first_token: Duration::from_millis(5),
                tokens_per_second: 160.0,
                tokens_per_chunk: 4,
                jitter: 0.5,
            },
            max_concurrency: 150,
            response_tokens: 4..=60,
            faults: shares.map(|(name, share)| (name.parse::<Fault>().unwrap(), share)).collect(),
            ..Simulated::default()
        })
        .await
        .unwrap();
        let (path, url) =
            relay(simulator.local_address(), vec![Arc::new(notebook.clone()), Arc::clone(&evaluate) as Arc<dyn Sink>]);
        let load = |requests, more: load::Settings| {
            let own = load::Settings { url: url.clone(), requests: Some(requests), ..more };
            load::run(
                load::Settings { timeout: Some(Duration::from_secs(7)), concurrency: 50, max_tokens: 60, ..own },
                |_| {},
            )
        };
        let header = |name: &str, value: &str| load::Settings {
            headers: vec![(name.to_owned(), value.to_owned())],
            include_usage: true,
            ..load::Settings::default()
        };
        let done = tokio::join!(
            load(2500, header("x-slo-ttft-ms", "120")),
            load(2500, header("x-slo-tpot-ms", "6.25")),
            load(2000, load::Settings { include_usage: false, ..load::Settings::default() }),
            load(1000, load::Settings { stream: false, ..load::Settings::default() }),
            load(2000, load::Settings { abort: 0.3, include_usage: true, ..load::Settings::default() }),
        );
        for summary in [done.0, done.1, done.2, done.3, done.4] {
            summary.unwrap();
        }
        simulator.stop().await;
        path
    });
    // Ends every connection, so that every request is recorded.
    path.stop();
    let records = notebook.take().records;
    let stated = by_the_evaluator(&evaluate);
    println!("{} records\n{}", records.len(), table(&stated));
    assert_eq!(records.len(), 10_000);
    assert_eq!(stated, by_the_naive_one(&records));
    for (objective, what) in [
        ("availability", "bad: http_5xx"),
        ("availability", "bad: rejected_busy"),
        ("availability", "bad: error_in_stream"),
        ("availability", "bad: truncated"),
        ("availability", "excluded: client_abort"),
        ("ttft", "good"),
        ("ttft", "bad: late_first_token"),
        ("ttft", "bad: no_first_token"),
        ("ttft", "excluded: not_streamed"),
        ("decode_rate", "good"),
        ("decode_rate", "bad: slow_decode"),
        ("decode_rate", "excluded: too_few_tokens"),
        ("stall", "bad: stalled"),
        ("goodput", "good"),
    ] {
        assert!(stated.contains_key(&(objective.to_owned(), what.to_owned())), "{objective} {what} never happened");
    }
}

#[test]
fn concurrent_sweeps_count_each_miss_once() {
    let evaluate = Arc::new(Evaluator::new(Settings::default()));
    let notebook = Notebook::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let in_flight = InFlight::start(live::Settings::default(), &["a".to_owned()], std::time::Instant::now()).unwrap();
    let (looking, watched) = (Arc::clone(&evaluate), Arc::clone(&in_flight));
    // Sweeps are far more frequent than in production, so that some take place at every stage of a request.
    let looks = std::thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_millis(2)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            looking.look(&watched, std::time::Instant::now());
        }
    });
    let path = runtime.block_on(async {
        let pace = Pace { time_to_first_token: Duration::from_millis(60), tokens_per_second: 500.0, ..Pace::default() };
        let faults = vec![("hang".parse::<Fault>().unwrap(), 0.05), ("cut".parse().unwrap(), 0.05)];
        let settings = Simulated { pace, max_concurrency: 10, response_tokens: 4..=20, faults, ..Simulated::default() };
        let simulator = Simulator::start(settings).await.unwrap();
        let (path, url) = relay(
            simulator.local_address(),
            vec![in_flight, Arc::new(notebook.clone()), Arc::clone(&evaluate) as Arc<dyn Sink>],
        );
        let settings = load::Settings {
            url,
            requests: Some(400),
            concurrency: 25,
            timeout: Some(Duration::from_millis(400)),
            headers: vec![("x-slo-ttft-ms".to_owned(), "120".to_owned())],
            ..load::Settings::default()
        };
        load::run(settings, |_| {}).await.unwrap();
        simulator.stop().await;
        path
    });
    path.stop();
    drop(stop);
    looks.join().unwrap();
    let records = notebook.take().records;
    assert_eq!(records.len(), 400);
    // A sweep counts an overdue first token as late, but the reference counts a token that never arrives as
    // `no_first_token`. So both reasons are merged.
    let merged = |stated: Stated| {
        let mut merged = Stated::new();
        for ((objective, what), n) in stated.into_iter().filter(|((objective, _), _)| objective == "ttft") {
            *merged.entry((objective, what.replace("no_first_token", "late_first_token"))).or_default() += n;
        }
        merged
    };
    let stated = by_the_evaluator(&evaluate);
    println!("{}", table(&stated));
    assert!(stated[&("ttft".to_owned(), "bad: late_first_token".to_owned())] > 0);
    assert_eq!(merged(stated), merged(by_the_naive_one(&records)));
}

/// A relay with these sinks.
fn relay(upstream: std::net::SocketAddr, sinks: Vec<Arc<dyn Sink>>) -> (DataPath, String) {
    let targets = observer::TargetHeaders { speed: true, ..observer::TargetHeaders::default() };
    let observe = observer::Settings { targets, ..observer::Settings::default() };
    let path = DataPath::start(&[listener_to(upstream)], relay::Settings::default(), observe, Tee::of(sinks), 1)
        .expect("a free port");
    let Address::Tcp { host, port } = path.addresses()[0].clone() else { panic!("a TCP listener has a TCP address") };
    (path, format!("http://{host}:{port}"))
}
