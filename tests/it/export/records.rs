//! Scripted exchanges.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use tokometer::decode::EngineTiming;
use tokometer::decode::FinishReason;
use tokometer::decode::Route;
use tokometer::export::Exporters;
use tokometer::export::PairStats;
use tokometer::export::ProcessFigures;
use tokometer::export::ProcessStats;
use tokometer::export::Settings;
use tokometer::export::Snapshot;
use tokometer::measure::Count;
use tokometer::measure::CountSource;
use tokometer::measure::Detach;
use tokometer::measure::Gap;
use tokometer::measure::Labels;
use tokometer::measure::Outcome;
use tokometer::measure::Phase;
use tokometer::measure::QueueSource;
use tokometer::measure::QueueTime;
use tokometer::measure::Record;
use tokometer::measure::Sink;

/// Figures that do not move.
pub(crate) struct Still;

impl ProcessStats for Still {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            pairs: vec![PairStats {
                opened: 9,
                open: 2,
                refused: 1,
                timed_out: 0,
                request_bytes: 12_000,
                response_bytes: 340_000,
            }],
            observed_connections: 2,
            observer_time: Duration::from_millis(1500),
            event_loop_lag: Some(Duration::from_micros(250)),
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

/// A streamed answer that ended well: 101 tokens, the first after 200 ms, one each 10 ms.
pub(crate) fn good(model: &str) -> Record {
    Record {
        labels: Arc::new(labels(model)),
        connection: 1,
        sequence: 0,
        outcome: Outcome::Ok,
        status: Some(200),
        finish_reasons: vec![FinishReason::Stop],
        response_id: Some("chatcmpl-1".into()),
        error_type: None,
        request_id: Some("req-1".into()),
        trace: None,
        started: Instant::now(),
        requested: Some(ms(10)),
        headers: Some(ms(60)),
        first_event: Some(ms(110)),
        first_token: Some(ms(210)),
        first_visible: Some(ms(310)),
        last_token: Some(ms(1210)),
        ended: ms(1220),
        input_tokens: Some(Count { tokens: 1000, source: CountSource::Usage }),
        cached_tokens: Some(600),
        cache_creation_tokens: None,
        input_audio_tokens: None,
        input_image_tokens: None,
        output_tokens: Some(Count { tokens: 101, source: CountSource::Usage }),
        reasoning_tokens: Some(20),
        output_audio_tokens: None,
        first_tokens: Some(1),
        decode_rate: Some(100.0),
        decode_rate_at_least: None,
        chunks: 101,
        events: 104,
        longest_gap: Some(ms(12)),
        stalls: 0,
        delivery_blocked: Duration::ZERO,
        unread: false,
        queue: Some(QueueTime { value: ms(40), source: QueueSource::InBand }),
        timing: Some(EngineTiming {
            queue_ms: Some(40.0),
            prefill_ms: Some(150.0),
            decode_ms: Some(1000.0),
            ..EngineTiming::default()
        }),
        max_tokens: Some(256),
        choices: 1,
        request_bytes: 4000,
        response_bytes: 25_000,
    }
}

/// The client left 5 s after its request, before any token.
pub(crate) fn gave_up(model: &str) -> Record {
    Record {
        labels: Arc::new(Labels { response_model: None, ..labels(model) }),
        outcome: Outcome::ClientAbortBeforeFirstToken,
        finish_reasons: Vec::new(),
        first_event: None,
        first_token: None,
        first_visible: None,
        last_token: None,
        ended: ms(5010),
        input_tokens: None,
        cached_tokens: None,
        cache_creation_tokens: None,
        input_audio_tokens: None,
        input_image_tokens: None,
        output_tokens: None,
        reasoning_tokens: None,
        output_audio_tokens: None,
        first_tokens: None,
        decode_rate: None,
        chunks: 0,
        events: 0,
        longest_gap: None,
        queue: None,
        timing: None,
        response_bytes: 0,
        ..good(model)
    }
}

/// The stream was cut after 5 events: the count is a lower bound.
pub(crate) fn cut(model: &str) -> Record {
    Record {
        outcome: Outcome::Truncated,
        finish_reasons: Vec::new(),
        last_token: Some(ms(250)),
        ended: ms(260),
        input_tokens: None,
        cached_tokens: None,
        cache_creation_tokens: None,
        input_audio_tokens: None,
        input_image_tokens: None,
        output_tokens: Some(Count { tokens: 5, source: CountSource::Deltas }),
        reasoning_tokens: None,
        output_audio_tokens: None,
        first_tokens: None,
        decode_rate: Some(125.0),
        queue: None,
        timing: None,
        delivery_blocked: ms(30),
        ..good(model)
    }
}

/// The server had no room.
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

/// A path that is not read.
pub(crate) fn other() -> Record {
    Record {
        labels: Arc::new(Labels { pair: 0, route: Route::Other, ..Labels::default() }),
        response_bytes: 2,
        request_bytes: 0,
        ended: ms(15),
        ..gave_up("unused")
    }
}

/// Runs the whole script into the exporters.
pub(crate) fn play(exporters: &Exporters) {
    let live = exporters.live(&labels("llama"));
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
