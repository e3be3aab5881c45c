//! Heads and whole bodies, as uvicorn and vLLM 0.32.0 write them.

use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use serde_json::Value;

use crate::sim::server::job::Refusal;

/// Seconds since the epoch.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// An HTTP date (RFC 9110, 5.6.7) of a Unix time, by the civil calendar.
fn http_date(time: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let (days, second) = (time / 86_400, time % 86_400);
    // Years are counted from 1 March of year 0, so that a leap day is the last of its year; 400 years repeat.
    let since = days + 719_468;
    let (era, day_of_era) = (since / 146_097, since % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    let weekday = DAYS.get((days % 7) as usize).copied().unwrap_or_default();
    let month = MONTHS.get(month as usize).copied().unwrap_or_default();
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// The reason phrase of a status.
fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Unknown")
}

/// The head of an event stream.
pub(crate) fn stream_head(close: bool) -> Vec<u8> {
    let close = if close { "connection: close\r\n" } else { "" };
    format!(
        "HTTP/1.1 200 OK\r\ndate: {}\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nvary: \
         Origin\r\n{close}transfer-encoding: chunked\r\n\r\n",
        http_date(unix_time())
    )
    .into_bytes()
}

/// A whole answer.
pub(crate) fn whole(status: u16, content_type: Option<&str>, extra: &str, body: &str, close: bool) -> Vec<u8> {
    let content_type = content_type.map(|value| format!("content-type: {value}\r\n")).unwrap_or_default();
    let close = if close { "connection: close\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status} {}\r\ndate: {}\r\nserver: uvicorn\r\n{extra}content-length: {}\r\n{content_type}vary: \
         Origin\r\n{close}\r\n{body}",
        reason(status),
        http_date(unix_time()),
        body.len()
    )
    .into_bytes()
}

/// A whole answer in JSON.
pub(crate) fn json_body(status: u16, body: &str, close: bool) -> Vec<u8> {
    whole(status, Some("application/json"), "", body, close)
}

/// vLLM's error envelope; `code` is a number.
pub(crate) fn refusal(refusal: &Refusal, close: bool) -> Vec<u8> {
    // Keys in vLLM's order, which a JSON map would not keep.
    let body = format!(
        r#"{{"error":{{"message":{},"type":"{}","param":{},"code":{}}}}}"#,
        Value::from(refusal.message.as_str()),
        refusal.kind,
        Value::from(refusal.param),
        refusal.status
    );
    json_body(refusal.status, &body, close)
}

/// What stands in for an answer when a fault asks for a status.
pub(crate) fn faulty(status: u16) -> Refusal {
    let kind = match status {
        400 => "BadRequestError",
        404 => "NotFoundError",
        429 => "TooManyRequestsError",
        503 => "ServiceUnavailableError",
        500..=599 => "InternalServerError",
        _ => "BadRequestError",
    };
    Refusal { status, kind, param: None, message: "The simulated server was asked to fail.".to_owned() }
}

/// The event with which vLLM ends a chat stream when its engine dies, blanks included.
pub(crate) const ERROR_EVENT: &[u8] = b"data: {\"error\": {\"message\": \"EngineCore encountered an issue. See stack \
trace (above) for the root cause.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http_date(1_795_208_785), "Fri, 20 Nov 2026 21:06:25 GMT");
    }
}
