//! The figures of a record as one line.

use std::time::Duration;
use std::time::SystemTime;

use serde_json::Value;

use crate::measure::Record;

/// One line, its line end included. JSON: an object in which absent figures are null. Text: `name=value` with spaces
/// between, absent figures left out.
pub(super) fn format(record: &Record, started: SystemTime, json: bool) -> String {
    let mut line = String::with_capacity(1024);
    if json {
        line.push('{');
        for (index, (name, value)) in fields(record, started).into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            line.push_str(&format!("{comma}\"{name}\":{value}"));
        }
        line.push('}');
    } else {
        for (name, value) in fields(record, started) {
            let text = match &value {
                Value::Null => continue,
                Value::String(text) => bare(text),
                Value::Array(items) if items.is_empty() => continue,
                Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
                value => value.to_string(),
            };
            let space = if line.is_empty() { "" } else { " " };
            line.push_str(&format!("{space}{name}={text}"));
        }
    }
    line.push('\n');
    line
}

/// Foreign text (models, ids) must not be able to look like another field or line.
fn bare(text: &str) -> String {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '=');
    if plain { text.to_owned() } else { Value::from(text).to_string() }
}

/// Names are those of `tokometer replay --json` where they are the same figure. Times are milliseconds from the last
/// byte of the request, except `duration_ms`, which is from its first byte.
fn fields(record: &Record, started: SystemTime) -> [(&'static str, Value); 44] {
    let labels = &record.labels;
    let since = |then| milliseconds(record.since_requested(then));
    let text = |text: Option<&str>| Value::from(text);
    let timing = record.timing.unwrap_or_default();
    [
        ("time", Value::from(rfc3339(started))),
        ("outcome", Value::from(record.outcome.as_str())),
        ("status", Value::from(record.status)),
        ("operation", Value::from(labels.route.operation())),
        ("engine", Value::from(labels.engine)),
        ("model", text(labels.response_model.as_deref().or(labels.request_model.as_deref()))),
        ("request_model", text(labels.request_model.as_deref())),
        ("streaming", Value::from(labels.streaming)),
        ("pair", Value::from(labels.pair)),
        ("connection", Value::from(record.connection)),
        ("sequence", Value::from(record.sequence)),
        ("request_id", text(record.request_id.as_deref())),
        ("response_id", text(record.response_id.as_deref())),
        ("trace_id", Value::from(record.trace.map(|trace| format!("{:032x}", trace.trace_id)))),
        ("finish_reasons", record.finish_reasons.iter().map(|reason| Value::from(reason.as_str())).collect()),
        ("input_tokens", Value::from(record.input_tokens.map(|count| count.tokens))),
        ("input_tokens_source", Value::from(record.input_tokens.map(|count| count.source.as_str()))),
        ("cached_tokens", Value::from(record.cached_tokens)),
        ("cache_creation_tokens", Value::from(record.cache_creation_tokens)),
        ("input_audio_tokens", Value::from(record.input_audio_tokens)),
        ("input_image_tokens", Value::from(record.input_image_tokens)),
        ("reasoning_tokens", Value::from(record.reasoning_tokens)),
        ("output_audio_tokens", Value::from(record.output_audio_tokens)),
        ("output_tokens", Value::from(record.output_tokens.map(|count| count.tokens))),
        ("output_tokens_source", Value::from(record.output_tokens.map(|count| count.source.as_str()))),
        ("time_to_headers_ms", since(record.headers)),
        ("time_to_first_event_ms", since(record.first_event)),
        ("time_to_first_token_ms", since(record.first_token)),
        ("time_to_first_visible_ms", since(record.first_visible)),
        ("last_token_ms", since(record.last_token)),
        ("duration_ms", milliseconds(Some(record.ended))),
        ("decode_tokens_per_second", Value::from(record.decode_rate.map(thousandths))),
        ("chunks", Value::from(record.chunks)),
        ("events", Value::from(record.events)),
        ("longest_gap_ms", milliseconds(record.longest_gap)),
        ("stalls", Value::from(record.stalls)),
        ("delivery_blocked_ms", milliseconds(Some(record.delivery_blocked))),
        ("queue_time_ms", milliseconds(record.queue.map(|queue| queue.value))),
        ("queue_time_source", Value::from(record.queue.map(|queue| queue.source.as_str()))),
        ("engine_prefill_ms", Value::from(timing.prefill_ms.or(timing.prompt_ms).map(thousandths))),
        ("max_tokens", Value::from(record.max_tokens)),
        ("choices", Value::from(record.choices)),
        ("request_bytes", Value::from(record.request_bytes)),
        ("response_bytes", Value::from(record.response_bytes)),
    ]
}

fn milliseconds(duration: Option<Duration>) -> Value {
    Value::from(duration.map(|duration| thousandths(duration.as_secs_f64() * 1e3)))
}

/// Microseconds are what clocks and sockets tell apart; more digits only make lines long.
fn thousandths(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// `2026-11-20T10:11:12.345Z` (RFC 3339). Before 1970 there were no exchanges: that is 1970.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days to a date of the Gregorian calendar, counted from 1 March of year 0 so that a leap day ends its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let day = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_on_leap_days_and_at_ends_of_years() {
        let table = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ];
        for (seconds, expected) in table {
            assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn foreign_text_cannot_look_like_another_field_or_line() {
        for (text, expected) in
            [("m", "m"), ("a b", "\"a b\""), ("a=b", "\"a=b\""), ("a\nb", "\"a\\nb\""), ("", "\"\"")]
        {
            assert_eq!(bare(text), expected);
        }
    }
}
