//! The relay in front of the simulated server: its records equal what the server generated and the client received.

use std::sync::Arc;
use std::time::Duration;

use tokometer::app::DataPath;
use tokometer::replay::Notebook;
use tokometer_observe::measure::{CountSource, Outcome};
use tokometer_observe::observer;
use tokometer_proxy::listen::{Address, Listener};
use tokometer_proxy::relay;
use tokometer_sim::load;
use tokometer_sim::server::{self, Simulator};

use crate::listener::listener_to;

/// A relay on a free port in front of `upstream`, and its URL.
pub(crate) fn relay_to(upstream: std::net::SocketAddr, notebook: &Notebook) -> (DataPath, String) {
    data_path(listener_to(upstream), notebook)
}

/// Like `relay_to`, for any listener.
pub(crate) fn data_path(listener: Listener, notebook: &Notebook) -> (DataPath, String) {
    let sink = Arc::new(notebook.clone());
    let path = DataPath::start(&[listener], relay::Settings::default(), observer::Settings::default(), sink, 1)
        .expect("loopback has a free port");
    let Address::Tcp { host, port } = path.addresses()[0].clone() else { panic!("a TCP listener has a TCP address") };
    (path, format!("http://{host}:{port}"))
}

#[test]
fn relay_counts_the_tokens_generated_and_received() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let notebook = Notebook::default();
    let (summary, stats, path) = runtime.block_on(async {
        let pace = server::Pace {
            time_to_first_token: Duration::from_millis(5),
            tokens_per_second: 1000.0,
            tokens_per_chunk: 3,
            jitter: 0.5,
        };
        let simulator =
            Simulator::start(server::Settings { pace, ..server::Settings::default() }).await.expect("a free port");
        let (path, url) = relay_to(simulator.local_address(), &notebook);
        let settings = load::Settings {
            url,
            concurrency: 8,
            requests: Some(40),
            max_tokens: 60,
            include_usage: true,
            ..load::Settings::default()
        };
        let summary = load::run(settings, |_| {}).await.expect("the relay responds");
        (summary, simulator.stop().await, path)
    });
    // Ends every connection, so that every request is recorded.
    path.stop();
    let replayed = notebook.take();
    assert_eq!(summary.requests, 40);
    assert_eq!(replayed.records.len(), 40);
    assert_eq!(replayed.in_flight, 0);
    for record in &replayed.records {
        assert_eq!(record.outcome, Outcome::Ok, "{record:?}");
        assert_eq!(record.tokens.output.expect("usage was asked for").source, CountSource::Usage);
        // On a busy machine a whole response may arrive in one read; then there is no time span to divide by.
        let span = record.times.last_token.zip(record.times.first_token).map(|(last, first)| last - first);
        assert_eq!(
            record.rate.exact.is_some(),
            span.expect("tokens came") >= observer::Settings::default().min_rate_span
        );
    }
    let ours: u64 = replayed.records.iter().filter_map(|r| r.tokens.output).map(|n| n.tokens).sum();
    assert_eq!(ours, summary.tokens_from_usage);
    assert_eq!(ours, replayed.live_tokens);
    assert_eq!(ours, stats.generation_tokens);
}
