//! Response headers and body framing, as each engine's HTTP server writes them.

use std::io::Write;
use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use crate::server::api::Imitation;

/// Time since the Unix epoch.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// Year, month and day (Gregorian calendar) of a number of days since the epoch.
fn date(days: u64) -> (u64, u64, u64) {
    // Years are counted from 1 March of year 0, so that a leap day is the last day of its year; the cycle is 400 years.
    let since = days + 719_468;
    let (era, day_of_era) = (since / 146_097, since % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    (era * 400 + year_of_era + u64::from(month >= 10), (month + 2) % 12 + 1, day)
}

/// The HTTP date (RFC 9110, 5.6.7) of a Unix time.
fn http_date(time: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day) = date(time / 86_400);
    let second = time % 86_400;
    let weekday = DAYS.get((time / 86_400 % 7) as usize).copied().unwrap_or_default();
    let month = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// The RFC 3339 timestamp of a Unix time with nanoseconds, as Go prints it: without trailing zeros.
pub(crate) fn timestamp(time: Duration) -> String {
    let (year, month, day) = date(time.as_secs() / 86_400);
    let second = time.as_secs() % 86_400;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let nanos = format!(".{:09}", time.subsec_nanos());
    let nanos = nanos.trim_end_matches('0').trim_end_matches('.');
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{nanos}Z")
}

/// The reason phrase of a status.
fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Unknown")
}

/// When the headers of a stream are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadTime {
    /// Before the request is queued.
    AtOnce,
    /// When the request is scheduled.
    Scheduled,
    /// In one write with the first token.
    FirstToken,
}

/// Format of a streamed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// Server-sent events.
    Events,
    /// A JSON object on each line.
    Lines,
}

/// An engine's HTTP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    engine: Imitation,
    /// Whether the connection closes after this response.
    pub(crate) close: bool,
}

impl Front {
    pub(crate) fn new(engine: Imitation, close: bool) -> Front {
        Front { engine, close }
    }

    /// When the engine sends the headers of a stream (from recordings; from engines.md of each engine's source for
    /// those without one).
    pub(crate) fn head_time(self, openai: bool) -> HeadTime {
        match self.engine {
            Imitation::LlamaCpp => HeadTime::Scheduled,
            Imitation::Ollama | Imitation::Triton => HeadTime::FirstToken,
            Imitation::Sglang if openai => HeadTime::FirstToken,
            _ => HeadTime::AtOnce,
        }
    }

    /// Whether it writes chunk sizes in uppercase hexadecimal, as hyper does.
    fn shouts(self) -> bool {
        matches!(self.engine, Imitation::Tgi | Imitation::Dynamo)
    }

    /// Whether the connection closes after a stream, even if the headers announce keep-alive.
    pub(crate) fn closes_after_stream(self) -> bool {
        self.close || self.engine == Imitation::LlamaCpp
    }

    /// The headers of a stream.
    pub(crate) fn stream(self, media: Media) -> Vec<u8> {
        let date = http_date(unix_time().as_secs());
        let close = if self.close { "connection: close\r\n" } else { "" };
        let head = match self.engine {
            Imitation::LlamaCpp => {
                let keep = if self.close { "Connection: close" } else { "Keep-Alive: timeout=5, max=100" };
                format!(
                    "Server: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nX-Accel-Buffering: no\r\nContent-Type: \
                     text/event-stream\r\nTransfer-Encoding: chunked\r\n{keep}\r\n"
                )
            }
            Imitation::Ollama => {
                let media = if media == Media::Lines { "application/x-ndjson" } else { "text/event-stream" };
                let close = if self.close { "Connection: close\r\n" } else { "" };
                format!("Content-Type: {media}\r\nDate: {date}\r\n{close}Transfer-Encoding: chunked\r\n")
            }
            Imitation::Tgi => format!(
                "content-type: text/event-stream\r\ncache-control: no-cache\r\nx-compute-type: cpu\r\n\
                 x-compute-characters: 0\r\nx-accel-buffering: no\r\nvary: origin, access-control-request-method, \
                 access-control-request-headers\r\naccess-control-allow-origin: *\r\n{close}transfer-encoding: \
                 chunked\r\ndate: {date}\r\n"
            ),
            Imitation::Dynamo => format!(
                "content-type: text/event-stream\r\ncache-control: no-cache\r\n{close}transfer-encoding: \
                 chunked\r\ndate: {date}\r\n"
            ),
            Imitation::Triton => format!(
                "Content-Type: text/event-stream; charset=utf-8\r\n{}Transfer-Encoding: chunked\r\n",
                if self.close { "Connection: close\r\n" } else { "Connection: keep-alive\r\n" }
            ),
            Imitation::Vllm | Imitation::Sglang | Imitation::LmDeploy | Imitation::TensorRtLlm => {
                let coding = if self.engine == Imitation::Sglang { "Transfer-Encoding" } else { "transfer-encoding" };
                format!(
                    "date: {date}\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nvary: \
                     Origin\r\n{close}{coding}: chunked\r\n"
                )
            }
        };
        format!("HTTP/1.1 200 OK\r\n{head}\r\n").into_bytes()
    }

    /// A non-streamed response; `extra` is header lines with their line ends.
    pub(crate) fn whole(self, status: u16, content_type: Option<&str>, extra: &str, body: &str) -> Vec<u8> {
        let (date, length, reason) = (http_date(unix_time().as_secs()), body.len(), reason(status));
        let media = |name: &str| content_type.map(|value| format!("{name}: {value}\r\n")).unwrap_or_default();
        let close = if self.close { "connection: close\r\n" } else { "" };
        let head = match self.engine {
            Imitation::LlamaCpp => {
                let keep =
                    if self.closes_after(status) { "Connection: close" } else { "Keep-Alive: timeout=5, max=100" };
                let media = media("Content-Type").replace("json\r\n", "json; charset=utf-8\r\n");
                format!(
                    "Server: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n{media}{extra}Content-Length: \
                     {length}\r\n{keep}\r\n"
                )
            }
            Imitation::Ollama => {
                let media = media("Content-Type").replace("json\r\n", "json; charset=utf-8\r\n");
                let close = if self.close { "Connection: close\r\n" } else { "" };
                format!("{media}Date: {date}\r\n{extra}{close}Content-Length: {length}\r\n")
            }
            Imitation::Tgi | Imitation::Dynamo => {
                format!("{}{extra}content-length: {length}\r\n{close}date: {date}\r\n", media("content-type"))
            }
            Imitation::Triton => {
                let keep = if self.close { "close" } else { "keep-alive" };
                format!("{}{extra}Connection: {keep}\r\nContent-Length: {length}\r\n", media("Content-Type"))
            }
            _ => format!(
                "date: {date}\r\nserver: uvicorn\r\n{extra}content-length: {length}\r\n{}vary: Origin\r\n{close}",
                media("content-type")
            ),
        };
        format!("HTTP/1.1 {status} {reason}\r\n{head}\r\n{body}").into_bytes()
    }

    /// Whether the connection closes after a response with this status.
    pub(crate) fn closes_after(self, status: u16) -> bool {
        self.close || (self.engine == Imitation::LlamaCpp && status >= 400)
    }

    /// A non-streamed JSON response.
    pub(crate) fn json(self, status: u16, extra: &str, body: &str) -> Vec<u8> {
        self.whole(status, Some("application/json"), extra, body)
    }
}

/// Rendered chunks of a streamed body, not sent yet.
#[derive(Debug)]
pub(crate) struct Chunks {
    pub(crate) bytes: Vec<u8>,
    /// The chunk being built; its length must be known before it is framed.
    payload: Vec<u8>,
    shouts: bool,
}

impl Chunks {
    pub(crate) fn new(front: Front) -> Chunks {
        Chunks { bytes: Vec::new(), payload: Vec::new(), shouts: front.shouts() }
    }

    /// Appends one chunk with the bytes that `write` appends.
    pub(crate) fn chunk(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.payload.clear();
        write(&mut self.payload);
        let length = self.payload.len();
        // Writing to a `Vec` cannot fail.
        let written = match self.shouts {
            true => write!(self.bytes, "{length:X}\r\n"),
            false => write!(self.bytes, "{length:x}\r\n"),
        };
        debug_assert!(written.is_ok());
        self.bytes.extend_from_slice(&self.payload);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Appends the terminating chunk.
    pub(crate) fn terminate(&mut self) {
        self.bytes.extend_from_slice(b"0\r\n\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_dates_match_the_calendar() {
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http_date(1_795_208_785), "Fri, 20 Nov 2026 21:06:25 GMT");
        assert_eq!(timestamp(Duration::new(1_795_208_785, 120_000_000)), "2026-11-20T21:06:25.12Z");
        assert_eq!(timestamp(Duration::new(951_782_400, 0)), "2000-02-29T00:00:00Z");
    }
}
