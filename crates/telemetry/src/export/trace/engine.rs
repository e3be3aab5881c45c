//! The engine's state at an exchange's first token, joined to its span: "slow because the cache was full and nine waited".

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::trace::SpanData;

use crate::export::ProcessStats;
use tokometer_engine::scrape::State;
use tokometer_observe::measure::Record;

/// Adds the state to the exchange's own span, the first. Called on the exporter's thread.
pub(super) fn join(spans: &mut [SpanData], record: &Record, process: &dyn ProcessStats) {
    let moment = record.started + record.first_token.unwrap_or(record.ended);
    // Health checks and the like wait for no token.
    if !record.labels.route.is_read() {
        return;
    }
    if let (Some(span), Some((state, age))) = (spans.first_mut(), process.engine_at(record.labels.pair, moment)) {
        span.attributes.extend(attributes(&state, age));
    }
}

/// Under the names of the metrics.
fn attributes(state: &State, age: Duration) -> impl Iterator<Item = KeyValue> {
    let count = |value: Option<f64>| value.map(|value| opentelemetry::Value::from(value.round() as i64));
    let figures = [
        ("tokometer.engine.requests.running", count(state.running)),
        ("tokometer.engine.requests.waiting", count(state.waiting)),
        ("tokometer.engine.kv_cache.usage", state.kv_usage.map(opentelemetry::Value::from)),
        ("tokometer.engine.preemptions", count(state.preemptions)),
        ("tokometer.engine.state.age", Some(age.as_secs_f64().into())),
    ];
    figures.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, value?)))
}
