//! Several listeners with one server, and several data-parallel ranks: every series is unique, and has the port of its
//! server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer::config::{Config, Environment, Flags};
use tokometer_decode::Route;
use tokometer_engine::scrape::{self, Tracker, Watch};
use tokometer_metrics::{Collect, Points};
use tokometer_observe::measure::{Detach, Opening, Requested, Sink};
use tokometer_telemetry::export::{Exporters, Settings};
use tokometer_telemetry::live::{self, InFlight};

use super::page;
use crate::export::records::listener;
use crate::export::text::{self, Form, Samples};

/// The engines of all listeners, read twice.
struct Engines(Vec<Watch>);

impl Engines {
    fn read(pages: &[&str]) -> Engines {
        let now = Instant::now();
        let watch = |text: &&str| {
            let watch = Watch::new(&scrape::Settings::default());
            watch.note(now, Duration::ZERO, Ok(&page(&super::zeros(text))));
            watch.note(now, Duration::ZERO, Ok(&page(text)));
            watch
        };
        Engines(pages.iter().map(watch).collect())
    }
}

impl Collect for Engines {
    fn collect(&self, points: &mut Points<'_>) {
        for (listener, watch) in self.0.iter().enumerate() {
            watch.measurements(Instant::now()).put(listener, points);
        }
    }
}

fn samples(exporters: &Exporters) -> Samples {
    let body = String::from_utf8(exporters.scrape(Some("application/openmetrics-text")).body).unwrap();
    // Panics if two series are the same.
    text::parse(&body, Form::OpenMetrics).samples
}

/// The values of a metric by the values of these labels, joined by spaces.
fn by(samples: &Samples, metric: &str, labels: &[&str]) -> BTreeMap<String, f64> {
    let own = |all: &BTreeMap<String, String>| {
        let values: Vec<&str> = labels.iter().map(|label| all.get(*label).map_or("", String::as_str)).collect();
        values.join(" ")
    };
    samples.iter().filter(|((name, _), _)| name == metric).map(|((_, all), value)| (own(all), *value)).collect()
}

fn map<const N: usize>(entries: [(&str, f64); N]) -> BTreeMap<String, f64> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[test]
fn server_behind_two_listeners_has_one_series_and_each_listener_its_own() {
    let listeners = vec![listener("first", 8001), listener("second", 8001), listener("third", 8002)];
    let exporters = Exporters::start(&Settings { listeners, ..Settings::default() }).unwrap();
    let names = ["first", "second", "third"].map(str::to_owned);
    let settings = live::Settings { servers: vec![0, 0, 2], ..live::Settings::default() };
    let began = Instant::now();
    let in_flight = InFlight::start(settings, &names, began).unwrap();
    exporters.add(Arc::clone(&in_flight) as Arc<dyn Collect>);
    let (one, two) = ("vllm:num_requests_running 3\n", "vllm:num_requests_running 5\n");
    exporters.add(Arc::new(Engines::read(&[one, one, two])));
    exporters.detached(1, Detach::NotHttp);
    let samples = samples(&exporters);
    let port = ["server_port"];
    assert_eq!(by(&samples, "tokometer_engine_requests_running", &port), map([("8001", 3.0), ("8002", 5.0)]));
    assert_eq!(by(&samples, "tokometer_engine_scrape_attempts_total", &port), map([("8001", 2.0), ("8002", 2.0)]));
    assert_eq!(by(&samples, "tokometer_engine_wedged", &port), map([("8001", 0.0), ("8002", 0.0)]));
    let blocked = by(&samples, "tokometer_in_flight_blocked", &["server_port", "listener"]);
    assert_eq!(blocked, map([("8001 first", 0.0), ("8001 second", 0.0), ("8002 third", 0.0)]));
    let detached = by(&samples, "tokometer_observer_detached_total", &["listener", "reason"]);
    assert_eq!((detached["first not_http"], detached["second not_http"]), (0.0, 1.0));
}

#[test]
fn engine_behind_two_listeners_is_silent_only_if_both_are() {
    let began = Instant::now();
    let in_flight = |servers| {
        let names = ["first", "second"].map(str::to_owned);
        InFlight::start(live::Settings { servers, ..live::Settings::default() }, &names, began).unwrap()
    };
    for (servers, states) in [(vec![0, 0], ["working"; 2]), (vec![0, 1], ["wedged", "working"])] {
        let in_flight = in_flight(servers);
        let sink = Arc::clone(&in_flight) as Arc<dyn Sink>;
        let open = |listener| {
            let opening = Opening { listener, route: Route::Chat, connection: 1, sequence: 0, started: began };
            let mut watch = sink.opened(&opening);
            watch.requested(&Requested { streaming: Some(true), ..Requested::default() }, Duration::ZERO);
            watch
        };
        let (_waiting, mut streams) = (open(0), open(1));
        streams.token(Duration::from_secs(299), 1);
        let stats = in_flight.stats(began + Duration::from_secs(300));
        assert_eq!([0, 1].map(|listener: usize| stats[listener].verdict.state.as_str()), states);
    }
}

#[test]
fn state_of_each_rank_is_exported() {
    let listeners = vec![listener("a", 8001), listener("b", 8002)];
    let exporters = Exporters::start(&Settings { listeners, ..Settings::default() }).unwrap();
    // The first server has two ranks, and one count for both ranks. The second server has one rank.
    let two = "vllm:num_requests_running{engine=\"0\"} 7\nvllm:num_requests_running{engine=\"1\"} 5\n\
               vllm:prefix_cache_hits_total{engine=\"0\"} 30\nvllm:prefix_cache_queries_total{engine=\"0\"} 40\n\
               vllm:prefix_cache_hits_total{engine=\"1\"} 0\nvllm:prefix_cache_queries_total{engine=\"1\"} 40\n\
               vllm:num_preemptions_total 2\n";
    let own = "sglang:num_running_reqs{dp_rank=\"3\",tp_rank=\"0\"} 2\nsglang:num_running_reqs{dp_rank=\"3\",tp_rank=\"1\"} 2\n";
    exporters.add(Arc::new(Engines::read(&[two, own])));
    let samples = samples(&exporters);
    let labels = ["server_port", "data_parallel_rank"];
    let running = by(&samples, "tokometer_engine_requests_running", &labels);
    assert_eq!(running, map([("8001 0", 7.0), ("8001 1", 5.0), ("8002 3", 2.0)]));
    let ratio = by(&samples, "tokometer_engine_prefix_cache_hit_ratio", &labels);
    assert_eq!(ratio, map([("8001 0", 0.75), ("8001 1", 0.0)]));
    assert_eq!(by(&samples, "tokometer_engine_preemptions_total", &labels), map([("8001 ", 2.0)]));
}

#[test]
fn ranks_are_counted_separately_and_bounded() {
    let rank = |rank: &str, value: u32| format!("vllm:num_preemptions_total{{engine=\"{rank}\"}} {value}\n");
    let mut tracker = Tracker::default();
    let mut preemptions = |text: &str| -> Vec<(u16, Option<f64>)> {
        let ranks = tracker.take_ranks(&page(text)).into_iter();
        ranks.map(|(rank, state)| (rank, state.preemptions)).collect()
    };
    assert_eq!(preemptions(&(rank("0", 10) + &rank("1", 100))), [(0, Some(0.0)), (1, Some(0.0))]);
    assert_eq!(preemptions(&(rank("0", 13) + &rank("1", 104))), [(0, Some(3.0)), (1, Some(4.0))]);
    // A restarted rank keeps its previous increases. A label value that is not a number is ignored.
    assert_eq!(preemptions(&(rank("0", 1) + &rank("1", 104) + &rank("+2", 1))), [(0, Some(4.0)), (1, Some(4.0))]);
    let many = |ranks: u32| (0..ranks).map(|number| rank(&number.to_string(), 1)).collect::<String>();
    assert_eq!(preemptions(&many(64)).len(), 64);
    assert_eq!(preemptions(&many(65)), []);
}

#[test]
fn server_of_two_listeners_is_scraped_once() {
    let text = "
listeners:
  - {listen: ':1', upstream: ':9', scrape: {enabled: false}}
  - {listen: ':2', upstream: ':9', scrape: {path: /own}}
  - {listen: ':3', upstream: ':8'}
";
    let config = Config::from_layers(Some((Path::new("t.yaml"), text)), &Flags::default(), &Environment::default());
    let settings = config.unwrap().settings;
    assert_eq!((&settings.scrape.servers, &settings.live.servers), (&vec![0, 0, 2], &vec![0, 0, 2]));
    let paths = settings.scrape.targets.iter().map(|target| target.as_ref().map(|target| target.path.as_deref()));
    assert_eq!(paths.collect::<Vec<_>>(), [Some(Some("/own")), None, Some(None)]);
}
