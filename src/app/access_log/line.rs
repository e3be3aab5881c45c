//! Formats the values of a request record as one line.

use std::time::SystemTime;

use serde_json::Value;

use crate::app::fields::{Member, escaped, members, object};
use tokometer_observe::measure::Record;

/// One line, including its line break. JSON: an object in which absent values are null. Text: `name=value` separated by
/// spaces, without absent values.
pub(super) fn format(record: &Record, started: SystemTime, json: bool) -> String {
    let time = ("time", Value::from(rfc3339(started)));
    let fields = std::iter::once(time).chain(members(record).into_iter().map(rounded));
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
pub(in crate::app) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Converts days to a Gregorian date. Each year starts on 1 March, so that the leap day is its last day.
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
