//! Scripted request records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokometer_decode::{EngineTiming, FinishReason, Route};
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Listener, Points, Value};
use tokometer_observe::input::Network;
use tokometer_observe::measure::{
    Blocked, Count, CountSource, Detach, Gap, Labels, Outcome, Phase, QueueSource, QueueTime, Record, Sink,
};
use tokometer_telemetry::export::{Error, Exporters, Settings};

/// Constant values for the collected metrics, and one observation of the event loop delay.
#[derive(Default)]
pub(crate) struct ConstantValues(AtomicBool);

impl Collect for ConstantValues {
    fn collect(&self, points: &mut Points<'_>) {
        let text = |text: &str| Value::Text(text.into());
        let mut put = |id, attributes: &[(Key, Value)], value: f64| points.put_at(0, id, attributes, value);
        put(Id::ConnectionsOpened, &[], 9.0);
        put(Id::ConnectionsOpen, &[], 2.0);
        put(Id::ConnectionsRefused, &[(Key::Reason, "descriptors".into())], 2.0);
        put(Id::ConnectionsRefused, &[(Key::Reason, "max_connections".into())], 1.0);
        put(Id::HandshakeFailures, &[], 1.0);
        put(Id::ConnectFailures, &[(Key::Reason, "refused".into())], 1.0);
        put(Id::ConnectFailures, &[(Key::Reason, "timeout".into())], 0.0);
        put(Id::RewriteRequests, &[(Key::Rewrite, "include_usage".into()), (Key::Result, "changed".into())], 3.0);
        put(Id::RelayIo, &[(Key::Direction, "request".into())], 12_000.0);
        put(Id::RelayIo, &[(Key::Direction, "response".into())], 340_000.0);
        put(Id::Interception, &[(Key::Mode, "address_split".into()), (Key::Result, "closed".into())], 1.0);
        put(Id::InFlightMeanAge, &[(Key::Phase, "streaming".into())], 1.5);
        put(Id::InFlightOldest, &[(Key::Phase, "streaming".into())], 2.5);
        put(Id::InFlightWaited, &[(Key::Phase, "streaming".into())], 1.25);
        put(Id::InFlightStalled, &[], 1.0);
        put(Id::InFlightBlocked, &[], 1.0);
        put(Id::EngineSilence, &[], 1.25);
        put(Id::EngineSilenceBound, &[], 60.0);
        put(Id::EngineWedged, &[], 0.0);
        let mut put = |id, attributes: &[(Key, Value)], value: f64| points.put(id, attributes, value);
        put(Id::InFlightUntracked, &[], 0.0);
        put(Id::RecentRequests, &[], 7.0);
        put(Id::RecentMemory, &[], 9000.0);
        put(Id::RecentDropped, &[], 0.0);
        put(Id::RecordsDropped, &[], 6.0);
        put(Id::AccessLogDropped, &[(Key::Reason, "queue_full".into())], 2.0);
        put(Id::AccessLogDropped, &[(Key::Reason, "write_failed".into())], 1.0);
        put(Id::ObserverConnections, &[], 2.0);
        put(Id::ObserverTime, &[], 1.5);
        put(Id::ObserverDecoded, &[], 4096.0);
        put(Id::ObserverMemory, &[], 1024.0);
        put(Id::ObserverMemoryLimit, &[], 65_536.0);
        put(Id::ObserverMemoryRefused, &[], 2.0);
        put(Id::EventLoopLag, &[], 0.000_25);
        if !self.0.swap(true, Ordering::Relaxed) {
            put(Id::EventLoopDelay, &[(Key::Thread, text("relay-0"))], 0.0015);
        }
        put(Id::TokenizerUncounted, &[(Key::Reason, "queue_full".into())], 3.0);
        put(Id::LabelsFolded, &[(Key::Kind, "tenant".into())], 4.0);

        let tenant = || (Key::Tenant, text("acme"));
        for (class, ended) in [("success", 5.0), ("client_abort", 0.0), ("failure", 3.0), ("unobserved", 0.0)] {
            put(Id::TenantRequests, &[tenant(), (Key::OutcomeClass, class.into())], ended);
        }
        put(Id::TenantInputTokens, &[tenant(), (Key::Source, "usage".into())], 500.0);
        put(Id::TenantCachedTokens, &[tenant()], 100.0);
        put(Id::TenantOutputTokens, &[tenant(), (Key::Source, "usage".into())], 50.0);
        put(Id::TenantOutputTokens, &[tenant(), (Key::Source, "deltas_lower_bound".into())], 7.0);
        let model = || (Key::Model, text("llama"));
        put(Id::Cost, &[model(), tenant(), (Key::Currency, text("USD")), (Key::Source, "exact".into())], 0.125);
        put(Id::Unpriced, &[model(), (Key::Reason, "no_price".into())], 2.0);
        let budget = [(Key::Budget, text("daily")), (Key::Unit, text("tokens"))];
        put(Id::BudgetSpent, &budget, 550.0);
        put(Id::BudgetLimit, &budget, 1e6);

        let slo = || (Key::Slo, text("ttft"));
        put(Id::SloObjective, &[slo()], 0.99);
        put(Id::SloThreshold, &[slo(), (Key::Threshold, "ttft_seconds".into())], 2.0);
        put(Id::SloEvents, &[slo(), model(), (Key::Verdict, "good".into())], 9.0);
        for (reason, bad) in [("late_first_token", 1.0), ("no_first_token", 0.0)] {
            put(Id::SloEvents, &[slo(), model(), (Key::Verdict, "bad".into()), (Key::Reason, reason.into())], bad);
        }
        put(Id::SloExcluded, &[slo(), model(), (Key::Reason, "not_streamed".into())], 3.0);
        put(Id::SloGoodTokens, &[slo(), model(), (Key::Source, "usage".into())], 900.0);

        put(Id::EngineSpansReceived, &[], 40.0);
        put(Id::EngineSpansForwarded, &[], 30.0);
        put(Id::EngineSpansDropped, &[(Key::Reason, "refused".into())], 6.0);
        put(Id::EngineSpansDropped, &[(Key::Reason, "given_up".into())], 4.0);
        put(Id::EngineMessagesRefused, &[(Key::Reason, "busy".into())], 2.0);
        put(Id::EngineMessagesWaiting, &[], 2048.0);
        put(Id::SpanJoins, &[(Key::Result, "joined_by_id".into())], 12.0);
        put(Id::SpanJoins, &[(Key::Result, "no_span".into())], 3.0);
        put(Id::EngineSpansUnjoined, &[(Key::Reason, "no_exchange".into())], 5.0);
        put(Id::SpanJoinsHeld, &[], 1.0);

        put(Id::Cpu, &[], 12.34);
        put(Id::ResidentMemory, &[], f64::from(9 << 20));
        put(Id::VirtualMemory, &[], f64::from(99 << 20));
        put(Id::OpenFds, &[], 21.0);
        put(Id::MaxFds, &[], 1024.0);
        put(Id::Threads, &[], 5.0);
        put(Id::StartTime, &[], 1.7e9);
    }
}

/// Starts the exporters with the constant values of `ConstantValues`.
pub(crate) fn start(settings: &Settings) -> Result<Arc<Exporters>, Error> {
    let exporters = Exporters::start(settings)?;
    exporters.add(Arc::new(ConstantValues::default()));
    Ok(exporters)
}

/// A listener with this name, whose server is on this port of 127.0.0.1.
pub(crate) fn listener(name: &str, port: u16) -> Listener {
    Listener { name: name.to_owned(), address: "127.0.0.1".to_owned(), port: Some(port) }
}

pub(crate) fn settings() -> Settings {
    Settings {
        listeners: vec![listener("0.0.0.0:8000", 8001)],
        resource: [("service.name", "tokometer"), ("k8s.pod.name", "vllm-0")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..Settings::default()
    }
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn labels(model: &str) -> Labels {
    Labels {
        listener: 0,
        route: Route::Chat,
        engine: Some("vllm"),
        request_model: Some(model.into()),
        response_model: Some(model.into()),
        streaming: Some(true),
    }
}

/// A request whose response has headers but no body data.
fn asked(labels: Labels, outcome: Outcome, ended: Duration) -> Record {
    Record::new(labels, Instant::now(), outcome, ended).with(|r| {
        r.connection = 1;
        r.response.status = Some(200);
        r.response.id = Some("chatcmpl-1".into());
        r.request.id = Some("req-1".into());
        r.request.stream = Some(true);
        r.times.requested = Some(ms(10));
        r.times.headers = Some(ms(60));
        r.request.max_tokens = Some(256);
        r.request.bytes = 4000;
    })
}

/// A successful streamed response of 101 tokens: the first 200 ms after the request, then one every 10 ms.
pub(crate) fn good(model: &str) -> Record {
    asked(labels(model), Outcome::Ok, ms(1220)).with(|r| {
        r.response.finish_reasons = vec![FinishReason::Stop];
        r.times.first_event = Some(ms(110));
        r.times.first_token = Some(ms(210));
        r.times.first_visible = Some(ms(310));
        r.times.last_token = Some(ms(1210));
        r.tokens.input = Some(Count { tokens: 1000, source: CountSource::Usage });
        r.tokens.cached = Some(600);
        r.tokens.output = Some(Count { tokens: 101, source: CountSource::Usage });
        r.tokens.reasoning = Some(20);
        r.tokens.first = Some(1);
        r.rate.exact = Some(100.0);
        r.tokens.chunks = 101;
        r.response.events = 104;
        r.gaps.longest = Some(ms(12));
        r.gaps.longest_tokens = Some(1);
        r.gaps.longest_pause = Some(ms(12));
        r.gaps.usual = Some(ms(10));
        r.network = Network { rtt: Some(ms(4)), retransmits: Some(3), zero_window: Some(ms(20)) };
        r.engine.queue = Some(QueueTime { value: ms(40), source: QueueSource::InBand });
        r.engine.timing = EngineTiming {
            queue_ms: Some(40.0),
            prefill_ms: Some(150.0),
            decode_ms: Some(1000.0),
            ..EngineTiming::default()
        };
        r.response.bytes = 25_000;
    })
}

/// The client disconnected 5 s after its request, before any token.
pub(crate) fn gave_up(model: &str) -> Record {
    let labels = Labels { response_model: None, ..labels(model) };
    asked(labels, Outcome::ClientAbortBeforeFirstToken, ms(5010))
}

/// The stream was truncated after 5 events, so the count is a lower bound.
pub(crate) fn cut(model: &str) -> Record {
    asked(labels(model), Outcome::Truncated, ms(260)).with(|r| {
        r.times.first_event = Some(ms(110));
        r.times.first_token = Some(ms(210));
        r.times.first_visible = Some(ms(310));
        r.times.last_token = Some(ms(250));
        r.tokens.output = Some(Count { tokens: 5, source: CountSource::Deltas });
        r.rate.at_least = Some(125.0);
        r.tokens.chunks = 101;
        r.response.events = 104;
        r.gaps.longest = Some(ms(12));
        r.gaps.longest_tokens = Some(1);
        r.blocked = Blocked { decoding: ms(4), intervals: vec![(ms(215), ms(219))], ..Blocked::default() };
        r.response.bytes = 25_000;
    })
}

/// The server was overloaded and responded with 429.
pub(crate) fn busy(model: &str) -> Record {
    gave_up(model).with(|r| {
        r.labels = Arc::new(Labels { response_model: None, streaming: Some(false), ..labels(model) });
        r.outcome = Outcome::RejectedBusy;
        r.response.status = Some(429);
        r.times.headers = Some(ms(12));
        r.times.ended = ms(12);
        r.response.bytes = 90;
    })
}

/// A request on a path whose bodies are not parsed.
pub(crate) fn other() -> Record {
    gave_up("unused").with(|r| {
        r.labels = Arc::new(Labels { listener: 0, route: Route::Other, ..Labels::default() });
        r.response.bytes = 2;
        r.request.bytes = 0;
        r.times.ended = ms(15);
    })
}

/// Passes the whole script of records and events to the exporters.
pub(crate) fn play(exporters: &Exporters) {
    let live = exporters.live(&labels("llama")).expect("exporters provide live counts");
    let gap = |millis, tokens| Gap { gap: ms(millis), tokens };
    live.progress(&[gap(10, None), gap(10, Some(1)), gap(30, Some(3))], 5);
    live.progress(&[], 2);
    live.stalled();
    live.reconcile(94);
    exporters.in_flight(0, Phase::WaitingFirstToken, 3);
    exporters.in_flight(0, Phase::WaitingFirstToken, -1);
    exporters.in_flight(0, Phase::Streaming, 1);
    exporters.detached(0, Detach::NotHttp);
    for record in [good("llama"), good("llama"), gave_up("llama"), cut("llama"), busy("llama"), other()] {
        exporters.record(&Arc::new(record));
    }
}
