//! Formats the values of a request record as one line.

use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

use crate::app::fields::{Member, escaped, members, object};
use tokometer_observe::measure::Record;

/// One line, including its line break. JSON: an object in which absent values are null. Text: `name=value` separated by
/// spaces, without absent values.
pub(super) fn format(record: &Record, started: SystemTime, json: bool) -> String {
    let time = ("time", Value::from(rfc3339(started)));
    let fields = std::iter::once(time).chain(members(record).map(rounded));
    let mut line = if json { object(fields) } else { text(fields) };
    line.push('\n');
    line
}

fn text(fields: impl Iterator<Item = Member>) -> String {
    let mut line = String::with_capacity(1024);
    for (name, value) in fields {
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
    line
}

/// Rounds fractions to three decimals: times in milliseconds are exact only to microseconds.
fn rounded((name, value): Member) -> Member {
    let fraction = value.as_f64().filter(|_| value.is_f64());
    (name, fraction.map_or(value, |number| Value::from((number * 1e3).round() / 1e3)))
}

/// Quotes text from the network (models, ids) unless it is plain, so that it cannot be parsed as another field or line.
fn bare(text: &str) -> String {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '=');
    if plain { text.to_owned() } else { escaped(&Value::from(text).to_string()) }
}

/// `2026-11-20T10:11:12.345Z` (RFC 3339). Times before 1970 become 1970.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let time = DateTime::from_timestamp(seconds, since.subsec_nanos());
    // A capture file can contain any time.
    time.unwrap_or(DateTime::<Utc>::MAX_UTC).to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn leap_days_and_year_ends_have_the_right_date() {
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
        assert_eq!(
            rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(1_735_689_600_007)),
            "2025-01-01T00:00:00.007Z"
        );
        assert!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(i64::MAX as u64 / 2)).ends_with("Z"));
    }

    #[test]
    fn foreign_text_cannot_look_like_another_field_or_line() {
        let table = [
            ("m", "m"),
            ("a b", "\"a b\""),
            ("a=b", "\"a=b\""),
            ("a\nb", "\"a\\nb\""),
            ("", "\"\""),
            ("é", "\"é\""),
            ("a\u{85}b\u{2028}c\u{2029}", "\"a\\u0085b\\u2028c\\u2029\""),
            ("\u{7f}", "\"\\u007f\""),
        ];
        for (text, expected) in table {
            assert_eq!(bare(text), expected);
        }
    }
}
