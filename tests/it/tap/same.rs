//! The same traffic, observed by the proxy and by captures on both sides of it, gives equal records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer::app::DataPath;
use tokometer::replay::{Notebook, Replayed};
use tokometer_observe::measure::{Labels, Outcome, QueueSource, Record, RequestTimes};
use tokometer_observe::observer;
use tokometer_proxy::relay;
use tokometer_sim::load;
use tokometer_sim::server::{self, Simulator};

use super::Captured;
use crate::http2::messages::{framed, vllm, vllm_chunk, vllm_end, vllm_prompt};
use crate::listener::listener_to;
use crate::relay::peer::{self, Script, Step};
use crate::relay::rig::tcp;
use crate::relay::{captures, corpus};
use crate::websocket::model::{self as websocket, FIN};
use crate::websocket::observed::{COMMIT, DELTA, DONE};
use crate::websocket::{HANDSHAKE, SWITCHED, of_client, of_server};
use crate::wire::http2::frames::{self, END_STREAM};

/// A proxy, and a capture on both sides of it: listener 0 is the client's side, listener 1 the server's.
struct Both {
    path: DataPath,
    proxied: Notebook,
    captured: Captured,
}

/// Differences between times of the capture and of the proxy, for one side of the proxy.
#[derive(Default)]
struct Differences(BTreeMap<&'static str, Vec<Duration>>);

impl Both {
    fn of(upstream: std::net::SocketAddr) -> Option<(Both, std::net::SocketAddr)> {
        let proxied = Notebook::default();
        let sink = Arc::new(proxied.clone());
        let (relay, observe) = (relay::Settings::default(), observer::Settings::default());
        let path = DataPath::start(&[listener_to(upstream)], relay, observe, sink, 1).unwrap();
        let address = tcp(&path.addresses()[0]);
        let captured = Captured::start(&[address.port(), upstream.port()])?;
        Some((Both { path, proxied, captured }, address))
    }

    /// Ends both and compares their records. Returns the number of the proxy's records, and the time differences by
    /// side.
    fn end(self, connections: u64, titles: &[(Instant, String)]) -> (usize, [Differences; 2]) {
        // Every connection is captured twice.
        self.captured.until("all connections end", |stats| stats.ended.get() >= 2 * connections);
        self.path.stop();
        let stats = Arc::clone(&self.captured.stats);
        let of_capture = self.captured.end();
        assert_eq!((stats.kernel_drops.get(), stats.gaps.get(), stats.malformed.get()), (0, 0, 0), "{stats:#?}");
        assert_eq!((stats.truncated.get(), stats.attached.get()), (0, 0), "{stats:#?}");
        let sorted = |mut records: Vec<Record>| {
            records.sort_by_key(|record| record.started);
            records
        };
        let of_proxy = self.proxied.take();
        let proxied = sorted(of_proxy.records.clone());
        let mut differences = [Differences::default(), Differences::default()];
        for side in [0, 1] {
            let of_side = of_capture.records.iter().filter(|record| record.labels.listener == side).cloned().collect();
            let of_side = sorted(of_side);
            for (proxied, captured) in pairs(&proxied, &of_side) {
                let title =
                    titles.iter().rev().find(|(begin, _)| *begin <= proxied.started).map_or("", |(_, title)| title);
                if side == 1 && proxied.outcome == Outcome::ClientAbortMidStream {
                    // The server may have sent another token, which the proxy no longer read.
                    assert_eq!(captured.outcome, proxied.outcome, "{title}");
                    continue;
                }
                assert_eq!(values(proxied), values(captured), "side {side}, {title}");
                differences[side].add((&of_proxy, proxied), (&of_capture, captured));
            }
            assert_eq!(proxied.len(), of_side.len(), "side {side}");
        }
        (proxied.len(), differences)
    }
}

/// Pairs the records of the same request, because requests of concurrent connections may be in a different order.
fn pairs<'a>(proxied: &'a [Record], captured: &'a [Record]) -> Vec<(&'a Record, &'a Record)> {
    let id = |record: &Record| record.response.id.clone();
    let mut rest: Vec<&Record> = captured.iter().collect();
    let pair = |proxied: &'a Record| {
        let at = rest.iter().position(|captured| id(captured) == id(proxied)).unwrap_or_default();
        (at < rest.len()).then(|| (proxied, rest.remove(at)))
    };
    proxied.iter().filter_map(pair).collect()
}

/// All values of a record except times, as text.
fn values(record: &Record) -> String {
    let Record { labels, sequence, outcome, unread, capture_loss, request, response, tokens, engine, times, .. } =
        record;
    let labels = Labels { listener: 0, ..Labels::clone(labels) };
    // This source depends on times, that is, on whether headers and first event arrive in the same read.
    let queue = engine.queue.map(|queue| queue.source).filter(|source| *source != QueueSource::HeaderTiming);
    let RequestTimes { requested, headers, first_event, first_token, first_visible, last_token, .. } = times;
    let known = [requested, headers, first_event, first_token, first_visible, last_token].map(|time| time.is_some());
    let connection = (labels, sequence, outcome, unread, capture_loss, known);
    format!("{connection:?} {:?}", (request, response, tokens, queue, engine.timing))
}

impl Differences {
    fn add(&mut self, proxied: (&Replayed, &Record), captured: (&Replayed, &Record)) {
        let difference = |a: Duration, b: Duration| a.max(b) - a.min(b);
        let ((all, proxied), (all_captured, captured)) = (proxied, captured);
        let mut add = |what, a, b| self.0.entry(what).or_default().push(difference(a, b));
        // The time to first token is measured from the last byte of the request.
        let ttft = |record: &Record| Some(record.times.first_token? - record.times.requested?);
        if let (Some(a), Some(b)) = (ttft(proxied), ttft(captured)) {
            add("time to first token", a, b);
        }
        let gaps = |all: &Replayed, record: &Record| {
            let points: Vec<_> = all.line(record).into_iter().flat_map(|line| line.points()).collect();
            points.windows(2).map(|pair| pair[1].at - pair[0].at).collect::<Vec<_>>()
        };
        for (a, b) in gaps(all, proxied).into_iter().zip(gaps(all_captured, captured)) {
            add("gap between tokens", a, b);
        }
        add("duration", proxied.times.ended, captured.times.ended);
        let start = proxied.started.max(captured.started) - proxied.started.min(captured.started);
        add("start", start, Duration::ZERO);
    }

    /// Prints the distribution, and checks that the median is small, which holds even on a busy machine.
    fn check(self, side: &str) {
        for (what, mut of) in self.0 {
            of.sort();
            let at = |share: usize| of[(of.len() * share / 100).min(of.len() - 1)];
            println!("{side}, {what}: p50 {:?}, p90 {:?}, p99 {:?}, {} times", at(50), at(90), at(99), of.len());
            assert!(at(50) < Duration::from_millis(5), "{what}");
        }
    }
}

fn check(differences: [Differences; 2]) {
    let [client, server] = differences;
    client.check("client's side");
    server.check("server's side");
}

/// All scripts: recordings of real servers, unusual HTTP, WebSocket and gRPC.
fn scripts() -> Vec<Script> {
    let mut scripts: Vec<Script> = captures::all().iter().map(|case| captures::script(case)).collect();
    let recordings = scripts.len();
    assert!(recordings >= 200, "only {recordings} recordings");
    scripts.extend(corpus::scripts());
    scripts.extend([websocket(), grpc()]);
    scripts
}

/// A WebSocket session with two responses.
fn websocket() -> Script {
    let asks = of_client(COMMIT);
    let responds = [of_server(DELTA), of_server(DELTA), of_server(DONE)];
    let close = websocket::frame(FIN | 8, Some([5; 4]), &[0x03, 0xe8]);
    let (mut client, mut server) = (vec![Step::Send(HANDSHAKE.to_vec())], Vec::new());
    let (mut to_client, mut to_server) = (SWITCHED.len(), HANDSHAKE.len());
    server.extend([Step::Read(to_server), Step::Send(SWITCHED.to_vec())]);
    for _ in 0..2 {
        client.extend([Step::Read(to_client), Step::Send(asks.clone())]);
        to_server += asks.len();
        server.push(Step::Read(to_server));
        server.extend(responds.clone().map(Step::Send));
        to_client += responds.concat().len();
    }
    client.extend([Step::Read(to_client), Step::Send(close.clone()), Step::ReadEnd]);
    server.extend([Step::Read(to_server + close.len()), Step::Close]);
    Script { name: "WebSocket".to_owned(), client, server }
}

/// A gRPC call with a stream of response messages.
fn grpc() -> Script {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/vllm.Inference/GenerateStream"),
        (":authority", "x"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    let asked = vllm::GenerateRequest { model: "tiny".to_owned(), text: "a prompt".to_owned(), ..Default::default() };
    let asks = [frames::opening(), frames::headers(1, 0, &fields), frames::data(1, END_STREAM, &framed(&asked))];
    let reply = |message| Step::Send(frames::data(1, 0, &framed(&message)));
    let responds = [
        Step::Send(frames::settings()),
        Step::Send(frames::headers(1, 0, &[(":status", "200"), ("content-type", "application/grpc")])),
        reply(vllm_prompt(300)),
        reply(vllm_chunk(0, "Hel", 1)),
        reply(vllm_chunk(0, "lo wor", 4)),
        reply(vllm_end(0, 5)),
        Step::Send(frames::headers(1, END_STREAM, &[("grpc-status", "0")])),
    ];
    let len =
        |steps: &[Step]| steps.iter().map(|step| if let Step::Send(bytes) = step { bytes.len() } else { 0 }).sum();
    let client = vec![Step::Send(asks.concat()), Step::Read(len(&responds)), Step::Finish, Step::ReadEnd];
    let server = [vec![Step::Read(asks.concat().len())], responds.to_vec(), vec![Step::ReadEnd]].concat();
    Script { name: "gRPC".to_owned(), client, server }
}

#[test]
fn every_recording_gives_equal_records_in_proxy_and_capture() {
    let (listener, server) = peer::listen();
    let Some((both, address)) = Both::of(server) else { return };
    let mut titles = Vec::new();
    for script in scripts() {
        titles.push((Instant::now(), script.name.clone()));
        peer::play_tcp(&script, address, &listener);
    }
    let connections = titles.len() as u64;
    let (records, differences) = both.end(connections, &titles);
    println!("{records} requests on {connections} connections");
    assert!(records >= 250, "{records}");
    check(differences);
}

/// Compares the records for requests of the load generator to the simulated server.
fn loaded(http2: bool, abort: f64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let pace = server::Pace {
        time_to_first_token: Duration::from_millis(20),
        tokens_per_second: 200.0,
        ..server::Pace::default()
    };
    let simulator =
        runtime.block_on(Simulator::start(server::Settings { pace, ..server::Settings::default() })).unwrap();
    let Some((both, address)) = Both::of(simulator.local_address()) else { return };
    let settings = load::Settings {
        url: format!("http://{address}"),
        http2,
        concurrency: 8,
        requests: Some(64),
        max_tokens: 40,
        abort,
        ..load::Settings::default()
    };
    let summary = runtime.block_on(load::run(settings, |_| {})).unwrap();
    runtime.block_on(simulator.stop());
    let connections = both.captured.stats.opened.get() / 2;
    let (records, differences) = both.end(connections, &[]);
    assert_eq!((records as u64, summary.requests), (64, 64));
    check(differences);
}

#[test]
fn http1_load_gives_equal_records() {
    loaded(false, 0.2);
}

#[test]
fn http2_load_gives_equal_records() {
    loaded(true, 0.0);
}
