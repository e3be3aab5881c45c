//! Scripted request records.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use tokometer_decode::EngineTiming;
use tokometer_decode::FinishReason;
use tokometer_decode::Route;
use tokometer_observe::measure::Blocked;
use tokometer_observe::measure::Count;
use tokometer_observe::measure::CountSource;
use tokometer_observe::measure::Detach;
use tokometer_observe::measure::Gap;
use tokometer_observe::measure::Labels;
use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Phase;
use tokometer_observe::measure::QueueSource;
use tokometer_observe::measure::QueueTime;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_observe::measure::Uncounted;
use tokometer_telemetry::export::AccessLogStats;
use tokometer_telemetry::export::BudgetFigures;
use tokometer_telemetry::export::BudgetStats;
use tokometer_telemetry::export::CostStats;
use tokometer_telemetry::export::EngineSpans;
use tokometer_telemetry::export::Exporters;
use tokometer_telemetry::export::JudgedStats;
use tokometer_telemetry::export::LedgerStats;
use tokometer_telemetry::export::ObjectiveStats;
use tokometer_telemetry::export::PairStats;
use tokometer_telemetry::export::PhaseStats;
use tokometer_telemetry::export::ProcessFigures;
use tokometer_telemetry::export::ProcessStats;
use tokometer_telemetry::export::Settings;
use tokometer_telemetry::export::SloStats;
use tokometer_telemetry::export::Snapshot;
use tokometer_telemetry::export::TenantStats;
use tokometer_telemetry::export::UnpricedStats;

/// Constant process statistics.
pub(crate) struct Still;

impl ProcessStats for Still {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            pairs: vec![PairStats {
                interception: Some(("address_split", "closed")),
                opened: 9,
                open: 2,
                turned_away: [2, 1],
                refused: 1,
                timed_out: 0,
                request_bytes: 12_000,
                response_bytes: 340_000,
                phases: [
                    PhaseStats::default(),
                    PhaseStats { mean_age: Some(ms(1500)), oldest: Some(ms(2500)), waited: Some(ms(1250)) },
                ],
                stalled: 1,
                held_up: 1,
                silence: ms(1250),
                silence_bound: Some(ms(60_000)),
                wedged: false,
            }],
            engines: Vec::new(),
            observed_connections: 2,
            observer_time: Duration::from_millis(1500),
            observer_budget: Some(BudgetFigures { decoded: 4096, held: 1024, limit: 65_536, refused: 2 }),
            event_loop_lag: Some(Duration::from_micros(250)),
            slo: SloStats {
                objectives: vec![ObjectiveStats {
                    name: "ttft".into(),
                    target: 0.99,
                    thresholds: vec![("ttft_seconds", 2.0)],
                }],
                judged: vec![JudgedStats {
                    objective: "ttft".into(),
                    model: Some("llama".into()),
                    good: 9,
                    bad: vec![("late_first_token", 1), ("no_first_token", 0)],
                    excluded: vec![("not_streamed", 3)],
                    good_tokens: vec![("usage", 900)],
                }],
            },
            ledger: LedgerStats {
                tenants: vec![TenantStats {
                    tenant: Some("acme".into()),
                    ended: vec![(Outcome::Ok, 5), (Outcome::Drained, 1), (Outcome::Http4xx, 2)],
                    input: vec![("usage", 500)],
                    cached: 100,
                    output: vec![("usage", 50), ("deltas_lower_bound", 7)],
                }],
                folded: Some(4),
                costs: vec![CostStats {
                    model: Some("llama".into()),
                    tenant: Some("acme".into()),
                    currency: "USD".into(),
                    by_source: vec![("exact", 0.125)],
                }],
                unpriced: vec![UnpricedStats { model: Some("llama".into()), by_reason: vec![("no_price", 2)] }],
                budgets: vec![BudgetStats { budget: "daily".into(), unit: "tokens".into(), limit: 1e6, spent: 550.0 }],
            },
            uncounted: vec![(Uncounted::QueueFull, 3)],
            untracked: 0,
            recent: 7,
            recent_bytes: 9_000,
            recent_dropped: 0,
            records_dropped: 6,
            engine_spans: Some(EngineSpans {
                received: 40,
                forwarded: 30,
                dropped: vec![("refused", 6), ("given_up", 4)],
                refused: vec![("busy", 2)],
                waiting_bytes: 2048,
                joins: vec![("joined_by_id", 12), ("no_span", 3)],
                unjoined: vec![("no_exchange", 5)],
                held: 1,
            }),
            access_log: Some(AccessLogStats { dropped: 2, failed: 1 }),
            process: ProcessFigures {
                cpu: Some(Duration::from_millis(12_340)),
                resident_bytes: Some(9 << 20),
                virtual_bytes: Some(99 << 20),
                open_fds: Some(21),
                max_fds: Some(1024),
                threads: Some(5),
                started: Some(std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
            },
        }
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        servers: vec![("127.0.0.1".to_owned(), Some(8001))],
        resource: vec![
            ("service.name".to_owned(), "tokometer".to_owned()),
            ("k8s.pod.name".to_owned(), "vllm-0".to_owned()),
        ],
        ..Settings::default()
    }
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn labels(model: &str) -> Labels {
    Labels {
        pair: 0,
        route: Route::Chat,
        engine: Some("vllm"),
        request_model: Some(model.into()),
        response_model: Some(model.into()),
        streaming: Some(true),
    }
}

/// A request with its response headers, but without further response data.
fn asked(labels: Labels, outcome: Outcome, ended: Duration) -> Record {
    Record {
        connection: 1,
        status: Some(200),
        response_id: Some("chatcmpl-1".into()),
        request_id: Some("req-1".into()),
        asked_stream: Some(true),
        requested: Some(ms(10)),
        headers: Some(ms(60)),
        max_tokens: Some(256),
        request_bytes: 4000,
        ..Record::new(labels, Instant::now(), outcome, ended)
    }
}

/// A successful streamed response: 101 tokens, the first after 200 ms, then one every 10 ms.
pub(crate) fn good(model: &str) -> Record {
    Record {
        finish_reasons: vec![FinishReason::Stop],
        first_event: Some(ms(110)),
        first_token: Some(ms(210)),
        first_visible: Some(ms(310)),
        last_token: Some(ms(1210)),
        input_tokens: Some(Count { tokens: 1000, source: CountSource::Usage }),
        cached_tokens: Some(600),
        output_tokens: Some(Count { tokens: 101, source: CountSource::Usage }),
        reasoning_tokens: Some(20),
        first_tokens: Some(1),
        decode_rate: Some(100.0),
        chunks: 101,
        events: 104,
        longest_gap: Some(ms(12)),
        longest_gap_tokens: Some(1),
        queue: Some(QueueTime { value: ms(40), source: QueueSource::InBand }),
        timing: Some(EngineTiming {
            queue_ms: Some(40.0),
            prefill_ms: Some(150.0),
            decode_ms: Some(1000.0),
            ..EngineTiming::default()
        }),
        response_bytes: 25_000,
        ..asked(labels(model), Outcome::Ok, ms(1220))
    }
}

/// The client disconnected 5 s after its request, before any token.
pub(crate) fn gave_up(model: &str) -> Record {
    let labels = Labels { response_model: None, ..labels(model) };
    asked(labels, Outcome::ClientAbortBeforeFirstToken, ms(5010))
}

/// The stream was truncated after 5 events: the count is a lower bound.
pub(crate) fn cut(model: &str) -> Record {
    Record {
        first_event: Some(ms(110)),
        first_token: Some(ms(210)),
        first_visible: Some(ms(310)),
        last_token: Some(ms(250)),
        output_tokens: Some(Count { tokens: 5, source: CountSource::Deltas }),
        decode_rate: Some(125.0),
        chunks: 101,
        events: 104,
        longest_gap: Some(ms(12)),
        longest_gap_tokens: Some(1),
        delivery_blocked: ms(30),
        blocked: Blocked { decoding: ms(30), intervals: vec![(ms(215), ms(245))], ..Blocked::default() },
        response_bytes: 25_000,
        ..asked(labels(model), Outcome::Truncated, ms(260))
    }
}

/// The server was overloaded.
pub(crate) fn busy(model: &str) -> Record {
    Record {
        labels: Arc::new(Labels { response_model: None, streaming: Some(false), ..labels(model) }),
        outcome: Outcome::RejectedBusy,
        status: Some(429),
        headers: Some(ms(12)),
        ended: ms(12),
        response_bytes: 90,
        ..gave_up(model)
    }
}

/// A path that is not parsed.
pub(crate) fn other() -> Record {
    Record {
        labels: Arc::new(Labels { pair: 0, route: Route::Other, ..Labels::default() }),
        response_bytes: 2,
        request_bytes: 0,
        ended: ms(15),
        ..gave_up("unused")
    }
}

/// Plays the whole script into the exporters.
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
        exporters.record(&record);
    }
}
