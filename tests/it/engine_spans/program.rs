//! The whole program in front of the simulated server, which sends spans like vLLM.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokometer::app::Instrument;
use tokometer::config::Settings;
use tokometer::replay::Notebook;
use tokometer_engine::engine_spans;
use tokometer_observe::measure::{CountSource, QueueSource, Record};
use tokometer_proxy::listen::{Address, Listener};
use tokometer_rewrite as rewrite;
use tokometer_sim::load;
use tokometer_sim::server::{self, Simulator, Traces};
use tokometer_telemetry::export::{Endpoint, Protocol};

use crate::export::collector::Collector;
use crate::listener::{listener_to, reserved};

use super::*;

const REQUESTS: u64 = 200;
const DELAY: Duration = Duration::from_millis(700);

struct Scene {
    instrument: Instrument,
    notebook: Notebook,
    collector: Collector,
    simulator: Simulator,
    url: String,
}

/// Receives the simulated engine's spans over gRPC and sends them to `receiver` over HTTP, as a collector does.
fn bridge(receiver: SocketAddr) -> SocketAddr {
    let Collector { port, got } = Collector::grpc_traces();
    // The thread ends with the test process.
    std::thread::spawn(move || {
        loop {
            let messages = std::mem::take(&mut got.lock().unwrap().traces);
            for message in messages {
                assert_eq!(post_traces(receiver, &message.encode_to_vec()), 200);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Starts simulator, program and collector. The simulator serves 16 requests at a time; others wait in its queue.
async fn scene(otlp: Protocol, engine: server::Settings) -> Scene {
    scene_of(otlp, engine, None).await
}

/// Like `scene`, in rewrite mode if `rewrite` has settings.
async fn scene_of(otlp: Protocol, engine: server::Settings, rewrite: Option<rewrite::Settings>) -> Scene {
    let receiver = reserved();
    let target = match otlp {
        Protocol::Grpc => receiver,
        Protocol::HttpProtobuf => bridge(receiver),
    };
    let simulator = Simulator::start(server::Settings {
        max_concurrency: 16,
        pace: server::Pace {
            time_to_first_token: Duration::from_millis(20),
            tokens_per_second: 1000.0,
            tokens_per_chunk: 1,
            jitter: 0.5,
        },
        traces: Some(Traces { endpoint: format!("http://{target}"), delay: DELAY }),
        ..engine
    })
    .await
    .unwrap();
    let collector = match otlp {
        Protocol::Grpc => Collector::grpc_traces(),
        Protocol::HttpProtobuf => Collector::http(),
    };
    let listener =
        Listener { rewrite: rewrite.map(|settings| Arc::new(settings) as _), ..listener_to(simulator.local_address()) };
    let mut settings = Settings::with_listener(listener);
    settings.admin.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    settings.engine_spans =
        Some(engine_spans::Settings { listen: vec![receiver], ..engine_spans::Settings::default() });
    settings.export.traces.endpoint = Some(Endpoint {
        url: match otlp {
            Protocol::Grpc => format!("http://127.0.0.1:{}", collector.port),
            Protocol::HttpProtobuf => format!("http://127.0.0.1:{}/v1/traces", collector.port),
        },
        protocol: otlp,
        headers: Vec::new(),
        gzip: false,
        timeout: Duration::from_secs(20),
        ca: None,
        identity: None,
    });
    let notebook = Notebook::default();
    let page = Arc::new(String::new);
    let instrument = Instrument::start(&settings, Some(Arc::new(notebook.clone())), page).unwrap();
    let Address::Tcp { host, port } = instrument.addresses()[0].clone() else { panic!("TCP") };
    Scene { instrument, notebook, collector, simulator, url: format!("http://{host}:{port}") }
}

/// Spans sent by the engine, by request id.
fn engine_spans(collector: &Collector) -> HashMap<String, Span> {
    let got = collector.got.lock().unwrap();
    let scopes = got.traces.iter().flat_map(|t| &t.resource_spans).flat_map(|r| &r.scope_spans);
    let engines = scopes.filter(|scope| scope.scope.as_ref().is_some_and(|scope| scope.name == "vllm.tracing.otel"));
    let spans = engines.flat_map(|scope| scope.spans.clone());
    spans
        .map(|span| match attribute(&span, "gen_ai.request.id") {
            Some(Value::StringValue(id)) => (id, span),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn attribute(span: &Span, key: &str) -> Option<Value> {
    span.attributes.iter().find(|listener| listener.key == key)?.value.clone()?.value
}

fn real(span: &Span, key: &str) -> f64 {
    match attribute(span, key) {
        Some(Value::DoubleValue(value)) => value,
        other => panic!("{key}: {other:?}"),
    }
}

/// Runs the requests; returns all records once they have arrived.
async fn run(scene: &Scene, requests: u64, include_usage: bool) -> Vec<Record> {
    let settings = load::Settings {
        url: scene.url.clone(),
        concurrency: requests as usize,
        requests: Some(requests),
        max_tokens: 20,
        include_usage,
        ..load::Settings::default()
    };
    load::run(settings, |_| {}).await.unwrap();
    let mut records = Vec::new();
    let begun = Instant::now();
    while records.len() < requests as usize {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} records", records.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
        let generated = |record: &Record| record.labels.route.generates();
        records.extend(scene.notebook.take().records.into_iter().filter(generated));
    }
    records
}

async fn every_queue_time_is_joined(otlp: Protocol) {
    let scene = scene(otlp, server::Settings::default()).await;
    let records = run(&scene, REQUESTS, false).await;
    let begun = Instant::now();
    while engine_spans(&scene.collector).len() < REQUESTS as usize {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} spans", engine_spans(&scene.collector).len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let spans = engine_spans(&scene.collector);
    let mut longest: f64 = 0.0;
    for record in &records {
        let span = &spans[record.response.id.as_deref().unwrap()];
        let (queue, reported) = (record.engine.queue.expect("joined"), real(span, "gen_ai.latency.time_in_queue"));
        assert_eq!(queue.source, QueueSource::EngineSpan);
        assert!((queue.value.as_secs_f64() - reported).abs() < 1e-6, "{queue:?} and {reported}");
        // Check against the wire: the observed time to first token minus the engine's prefill time is not less than the
        // queue time.
        let first = record.since_requested(record.times.first_token).unwrap().as_secs_f64();
        let by_wire = first - real(span, "gen_ai.latency.time_in_model_prefill");
        assert!(by_wire - reported > -0.01, "{by_wire} and {reported}");
        assert_eq!(record.tokens.output.unwrap().source, CountSource::EngineSpan);
        assert_eq!(
            attribute(span, "gen_ai.usage.completion_tokens"),
            record.tokens.output.map(|n| Value::IntValue(n.tokens as i64))
        );
        longest = longest.max(reported);
    }
    assert!(longest > 0.05, "there was a queue: {longest}");
    scene.simulator.stop().await;
    let instrument = scene.instrument;
    tokio::task::spawn_blocking(move || instrument.stop()).await.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn queue_times_of_200_concurrent_requests_join_over_grpc() {
    runtime().block_on(every_queue_time_is_joined(Protocol::Grpc));
}

#[test]
fn queue_times_of_200_concurrent_requests_join_over_http() {
    runtime().block_on(every_queue_time_is_joined(Protocol::HttpProtobuf));
}

/// The queue time in each response is compared with that in its span. A span joined to the wrong request would differ.
#[test]
fn in_band_queue_times_equal_those_of_the_spans() {
    runtime().block_on(async {
        let engine = server::Settings { per_request_metrics: true, ..server::Settings::default() };
        let scene = scene(Protocol::Grpc, engine).await;
        let records = run(&scene, REQUESTS, true).await;
        assert!(records.iter().all(|record| record.engine.queue.unwrap().source == QueueSource::InBand));
        let joins = |page: &str, result: &str| -> f64 {
            let label = format!("tokometer_span_joins_total{{result=\"{result}\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&label)).unwrap().parse().unwrap()
        };
        let admin = scene.instrument.admin();
        let scrape = move || {
            let mut stream = std::net::TcpStream::connect(admin).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            let mut page = String::new();
            stream.read_to_string(&mut page).unwrap();
            page
        };
        let begun = Instant::now();
        let page = loop {
            let page = tokio::task::spawn_blocking(scrape).await.unwrap();
            if joins(&page, "confirmed") >= REQUESTS as f64 || begun.elapsed() > Duration::from_secs(60) {
                break page;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!((joins(&page, "confirmed"), joins(&page, "differs")), (REQUESTS as f64, 0.0), "{page}");
        scene.simulator.stop().await;
        let instrument = scene.instrument;
        tokio::task::spawn_blocking(move || instrument.stop()).await.unwrap();
    });
}

/// Rewrite mode adds a `traceparent`: tokometer's span is the parent of the engine's span, although no client sent one.
#[test]
fn engine_spans_are_children_of_the_requests_spans_in_rewrite_mode() {
    const FEW: u64 = 40;
    runtime().block_on(async {
        let rewrite = rewrite::Settings { include_usage: true, traceparent: true, ..rewrite::Settings::default() };
        let scene = scene_of(Protocol::Grpc, server::Settings::default(), Some(rewrite)).await;
        let records = run(&scene, FEW, false).await;
        let requests = |collector: &Collector| -> HashMap<Vec<u8>, Span> {
            let got = collector.got.lock().unwrap();
            let scopes = got.traces.iter().flat_map(|t| &t.resource_spans).flat_map(|r| &r.scope_spans);
            let ours = scopes.filter(|scope| scope.scope.as_ref().is_some_and(|scope| scope.name == "tokometer"));
            let servers = ours.flat_map(|scope| scope.spans.clone()).filter(|span| span.kind == 2);
            servers.map(|span| (span.span_id.clone(), span)).collect()
        };
        let begun = Instant::now();
        while engine_spans(&scene.collector).len() < FEW as usize || requests(&scene.collector).len() < FEW as usize {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} spans", engine_spans(&scene.collector).len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let requests = requests(&scene.collector);
        for (id, engine) in engine_spans(&scene.collector) {
            let parent = requests.get(&engine.parent_span_id).unwrap_or_else(|| panic!("{id} has no parent"));
            assert_eq!(engine.trace_id, parent.trace_id);
            assert!(parent.parent_span_id.is_empty(), "the client sent no trace");
        }
        for record in &records {
            assert_eq!(record.tokens.output.unwrap().source, CountSource::Usage);
            assert_eq!(record.engine.queue.expect("joined").source, QueueSource::EngineSpan);
        }
        scene.simulator.stop().await;
        let instrument = scene.instrument;
        tokio::task::spawn_blocking(move || instrument.stop()).await.unwrap();
    });
}
