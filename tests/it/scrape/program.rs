//! The whole program between the simulated engine and its clients. It must export the values that the engine reports.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokometer::app::Instrument;
use tokometer::config::Settings;
use tokometer_engine::scrape;
use tokometer_engine::scrape::Target;
use tokometer_proxy::listen::Address;
use tokometer_sim::server::{Listen, Simulator};
use tokometer_sim::{load, server};

use crate::listener::listener_to;

use super::reading::until;

/// The samples of a page by name, summed over all labels.
type Samples = BTreeMap<String, f64>;

fn get(address: SocketAddr) -> Samples {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let mut samples = Samples::new();
    for line in response.split_once("\r\n\r\n").unwrap().1.lines().filter(|line| !line.starts_with('#')) {
        // Lines with chunk lengths contain no space.
        let Some((series, value)) = line.trim_end().rsplit_once(' ') else { continue };
        let name = series.split('{').next().unwrap().to_owned();
        *samples.entry(name).or_default() += value.parse::<f64>().unwrap();
    }
    samples
}

fn instrument(upstream: Address) -> Instrument {
    let mut settings = Settings::with_listener(listener_to(upstream));
    settings.admin.listen = ([127, 0, 0, 1], 0).into();
    settings.threads = Some(1);
    settings.scrape = scrape::Settings {
        interval: Duration::from_millis(20),
        targets: vec![Some(Target::default())],
        ..scrape::Settings::default()
    };
    Instrument::start(&settings, None, Arc::new(String::new)).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn one_at_a_time() -> server::Settings {
    let pace = server::Pace {
        time_to_first_token: Duration::from_millis(10),
        tokens_per_second: 1000.0,
        ..server::Pace::default()
    };
    server::Settings { pace, max_concurrency: 1, ..server::Settings::default() }
}

#[test]
fn engine_queue_is_exported_and_scrapes_are_no_traffic() {
    const REQUESTS: u64 = 12;
    let runtime = runtime();
    let simulator = runtime.block_on(Simulator::start(one_at_a_time())).unwrap();
    let instrument = instrument(simulator.local_address().into());
    let page = || get(instrument.admin());
    let idle =
        until("a page was read", || Some(page()).filter(|page| page.contains_key("tokometer_engine_requests_running")));
    assert_eq!((idle["tokometer_engine_requests_running"], idle["tokometer_engine_queue_requests_total"]), (0.0, 0.0));
    assert_eq!(idle["tokometer_connections_opened_total"], 0.0, "it must not scrape through its own relay");
    assert!(!idle.contains_key("tokometer_queue_time_estimate_seconds"), "no request has waited");

    let Address::Tcp { host, port } = instrument.addresses()[0].clone() else { panic!("a TCP listener") };
    let load = load::Settings {
        url: format!("http://{host}:{port}"),
        concurrency: 4,
        requests: Some(REQUESTS),
        max_tokens: 20,
        ..load::Settings::default()
    };
    // Repeats the load until a scrape takes place during it.
    let seen = Arc::new(AtomicBool::new(false));
    let offered = runtime.spawn({
        let seen = Arc::clone(&seen);
        async move {
            let mut requests = 0;
            while !seen.load(Ordering::Relaxed) {
                requests += load::run(load.clone(), |_| {}).await.unwrap().requests;
            }
            requests
        }
    });
    // One request runs and three wait. Both values must be from the same page.
    until("the queue is seen", || {
        let page = page();
        (page["tokometer_engine_requests_running"] == 1.0 && page["tokometer_engine_requests_waiting"] == 3.0)
            .then_some(())
    });
    seen.store(true, Ordering::Relaxed);
    let requests = runtime.block_on(offered).unwrap();
    assert_eq!(requests % REQUESTS, 0);
    let requests = requests as f64;
    let after = until("all waits are counted", || {
        Some(page()).filter(|page| page["tokometer_engine_queue_requests_total"] == requests)
    });
    let engine = get(simulator.local_address());
    let (ours, own) =
        (after["tokometer_engine_queue_time_seconds_total"], engine["vllm:request_queue_time_seconds_sum"]);
    assert!((ours - own).abs() < 1e-9 && own > 0.0, "{ours} is not the engine's {own}");
    assert_eq!(after["tokometer_requests_total"], requests);
    assert_eq!(after["tokometer_engine_scrape_failures_total"], 0.0);

    runtime.block_on(simulator.stop());
    let gone =
        until("its end is seen", || Some(page()).filter(|page| page["tokometer_engine_scrape_failures_total"] > 0.0));
    // After the engine has stopped, values derived from traffic and connects remain.
    let of_traffic = ["_scrape_", "_silence_", "_wedged", "_reachable"];
    let of_page = |name: &&String| name.contains("_engine_") && !of_traffic.iter().any(|other| name.contains(other));
    let reported: Vec<&String> = gone.keys().filter(of_page).collect();
    assert!(reported.is_empty(), "{reported:?} of a stopped engine");
    assert_eq!(gone["tokometer_requests_total"], requests);
    instrument.stop();
}

#[test]
fn engine_on_a_unix_socket_is_scraped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("engine.sock");
    let runtime = runtime();
    let settings = server::Settings { listen: Listen::Unix(path.clone()), ..one_at_a_time() };
    let simulator = runtime.block_on(Simulator::start(settings)).unwrap();
    let instrument = instrument(Address::Unix(path));
    until("a page was read", || get(instrument.admin()).get("tokometer_engine_requests_waiting").copied());
    instrument.stop();
    runtime.block_on(simulator.stop());
}
