//! Adds the engine's state at the first token to a request's span, for example "slow because the cache was full and
//! nine requests waited".

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::trace::SpanData;

use crate::export::ProcessStats;
use tokometer_engine::scrape::State;
use tokometer_observe::measure::Record;

/// Adds the state to the first span, the request's own. Called on the exporter's thread.
pub(super) fn join(spans: &mut [SpanData], record: &Record, process: &dyn ProcessStats) {
    let moment = record.started + record.first_token.unwrap_or(record.ended);
    // Health checks and the like have no tokens.
    if !record.labels.route.is_read() {
        return;
    }
    if let (Some(span), Some((state, age))) = (spans.first_mut(), process.engine_at(record.labels.pair, moment)) {
        span.attributes.extend(attributes(&state, age));
    }
}

/// The state as attributes, named like the metrics.
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
