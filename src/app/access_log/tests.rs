use tokometer_decode::{FinishReason, Route};
use tokometer_observe::measure::{Count, CountSource, Labels, Outcome};

use std::path::PathBuf;

use super::*;

fn record(started: Instant) -> Record {
    let ms = Duration::from_millis;
    let labels = Labels {
        listener: 1,
        route: Route::Chat,
        engine: Some("vllm"),
        request_model: Some("my model".into()),
        response_model: None,
        streaming: Some(true),
    };
    Record::new(labels, started, Outcome::Ok, ms(1040)).with(|r| {
        r.connection = 7;
        r.sequence = 2;
        r.response.status = Some(200);
        r.response.finish_reasons = vec![FinishReason::Stop, FinishReason::Length];
        r.response.id = Some("chatcmpl-1".into());
        r.request.stream = Some(true);
        r.times.requested = Some(ms(1));
        r.times.headers = Some(ms(11));
        r.times.first_event = Some(ms(21));
        r.times.first_token = Some(ms(31));
        r.times.last_token = Some(ms(1031));
        r.tokens.output = Some(Count { tokens: 101, source: CountSource::Usage });
        r.tokens.first = Some(1);
        r.rate.exact = Some(100.0);
        r.tokens.chunks = 101;
        r.response.events = 103;
        r.gaps.longest = Some(ms(12));
        r.request.max_tokens = Some(256);
        r.request.bytes = 300;
        r.response.bytes = 25_000;
    })
}

/// The line written for a record.
fn written(json: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let log = AccessLog::open(&Settings { path: Some(path.clone()), json, queue_lines: 8 }).unwrap();
    let now = Instant::now();
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    log.write(&record(now), now + Duration::from_secs(2), wall);
    assert!(log.flush(Duration::from_secs(10)));
    assert_eq!((log.dropped(), log.failed()), (0, 0));
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn json_line_uses_the_names_of_replay_and_null() {
    let line: serde_json::Value = serde_json::from_str(&written(true)).unwrap();
    let expected = serde_json::json!({
        "time": "2023-11-14T22:13:18.000Z", "outcome": "ok", "status": 200, "operation": "chat", "engine": "vllm",
        "model": "my model", "streaming": true, "finish_reasons": ["stop", "length"], "input_tokens": null,
        "input_tokens_source": null, "cached_tokens": null, "reasoning_tokens": null, "output_tokens": 101,
        "output_tokens_source": "usage", "time_to_headers_ms": 10.0, "time_to_first_event_ms": 20.0,
        "time_to_first_token_ms": 30.0, "time_to_first_visible_ms": null, "last_token_ms": 1030.0,
        "decode_tokens_per_second": 100.0, "chunks": 101, "queue_time_ms": null, "queue_time_source": null,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(line.get(name), Some(value), "{name}");
    }
}

#[test]
fn text_line_omits_absent_values() {
    let line = written(false);
    assert!(line.starts_with("time=2023-11-14T22:13:18.000Z outcome=ok status=200 operation=chat"), "{line}");
    assert!(line.contains(" model=\"my model\" ") && line.contains(" finish_reasons=stop,length "), "{line}");
    assert!(!line.contains("input_tokens=") && !line.contains("null"), "{line}");
    assert_eq!(line.matches('\n').count(), 1);
}

#[test]
fn unopenable_file_is_named() {
    let path = PathBuf::from("/nonexistent/access.log");
    let error = AccessLog::open(&Settings { path: Some(path), json: false, queue_lines: 1 }).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/access.log") && error.contains("access_log.path"), "{error}");
}
