//! One client: a connection, and one request after the other on it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::sim::load::Run;
use crate::sim::load::body::Delimiter;
use crate::sim::load::body::Progress;
use crate::sim::load::events::Brought;
use crate::sim::load::events::Events;
use crate::sim::load::recorder::Outcome;
use crate::sim::load::recorder::Recorder;
use crate::sim::load::settings::Inspect;
use crate::sim::load::settings::Settings;
use crate::sim::load::summary::End;
use crate::sim::load::url::Url;

/// Most bytes of an answer's head.
const HEAD_BYTES: usize = 64 * 1024;

/// How much is read at once.
const READ_BYTES: usize = 4 * 1024;
const BULK_READ_BYTES: usize = 256 * 1024;

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    request: Vec<u8>,
    run: Arc<Run>,
    recorder: Arc<Recorder>,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
    events: Events,
}

/// An answer's head.
struct Head {
    status: u16,
    delimiter: Delimiter,
    close: bool,
    event_stream: bool,
    length: usize,
}

/// A request that is open: whatever ends it is recorded, also that the run was over.
struct Open<'a> {
    recorder: &'a Recorder,
    outcome: Outcome,
    timed: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.recorder.end(self.outcome, self.timed);
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr, url: &Url, run: Arc<Run>, recorder: Arc<Recorder>) -> Client {
        let settings = &run.settings;
        let request = render_request(url, settings);
        let size = if settings.inspect == Inspect::Bytes { BULK_READ_BYTES } else { READ_BYTES };
        let events = Events::new(settings.stamp.is_some());
        Client { address, request, run, recorder, stream: None, buffer: vec![0; size], events }
    }

    /// Makes requests until the run has no more of them.
    pub(crate) async fn work(mut self) {
        let run = Arc::clone(&self.run);
        let recorder = Arc::clone(&self.recorder);
        while let Some(number) = run.next() {
            recorder.begin();
            let outcome = Outcome {
                end: End::Unfinished,
                status: None,
                usage: None,
                token_events: 0,
                sent: None,
                headers: None,
                first: None,
                last: None,
            };
            let mut open = Open { recorder: &recorder, outcome, timed: recorder.is_warm(run.settings.warm_up) };
            let exchange = self.exchange(number, &mut open.outcome);
            let end = match run.settings.timeout {
                Some(limit) => tokio::time::timeout(limit, exchange).await.unwrap_or(Ok(End::Timeout)),
                None => exchange.await,
            };
            open.outcome.end = end.unwrap_or_else(|error| match error.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => End::Reset,
                _ => End::Truncated,
            });
            if open.outcome.end != End::Complete || !run.settings.keep_alive {
                self.stream = None;
            }
            if open.outcome.end == End::Refused {
                // A server that is down is not asked again at once.
                drop(open);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn exchange(&mut self, number: u64, outcome: &mut Outcome) -> io::Result<End> {
        let run = Arc::clone(&self.run);
        let settings = &run.settings;
        let aborts_after = abort_after(settings, number);
        let reused = self.stream.is_some();
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => match TcpStream::connect(self.address).await {
                Ok(stream) => stream,
                Err(_) => return Ok(End::Refused),
            },
        };
        if !reused {
            stream.set_nodelay(true)?;
        }
        stream.write_all(&self.request).await?;
        outcome.sent = Some(Instant::now());

        let mut filled = 0;
        let head = loop {
            let Some(space) = self.buffer.get_mut(filled..).filter(|space| !space.is_empty()) else {
                if self.buffer.len() >= HEAD_BYTES {
                    return Ok(End::Malformed);
                }
                self.buffer.resize(self.buffer.len() * 2, 0);
                continue;
            };
            let length = stream.read(space).await?;
            if length == 0 {
                return Ok(End::Truncated);
            }
            filled += length;
            match parse_head(self.buffer.get(..filled).unwrap_or_default()) {
                Ok(Some(head)) => break head,
                Ok(None) => {}
                Err(()) => return Ok(End::Malformed),
            }
        };
        outcome.status = Some(head.status);
        outcome.headers = Some(Instant::now());
        self.events.restart();
        let mut delimiter = head.delimiter;
        let mut range = head.length..filled;
        let bytes_only = settings.inspect == Inspect::Bytes || !head.event_stream;
        let mut last = delimiter == Delimiter::Length(0);
        while !last {
            if range.is_empty() {
                let length = stream.read(&mut self.buffer).await?;
                range = 0..length;
            }
            let now = Instant::now();
            let bytes = self.buffer.get(range.clone()).unwrap_or_default();
            if bytes.is_empty() {
                last = delimiter == Delimiter::Close;
                if !last {
                    return Ok(End::Truncated);
                }
                break;
            }
            let mut brought = Brought::default();
            let progress = delimiter.take(bytes, |body| {
                if !bytes_only {
                    self.events.take(body, &mut brought);
                }
            });
            self.note(outcome, settings, bytes.len(), brought, now);
            range = 0..0;
            match progress {
                Progress::More => {}
                Progress::End => last = true,
                Progress::Broken => return Ok(End::Malformed),
            }
            if aborts_after.is_some_and(|events| outcome.token_events >= events) {
                return Ok(End::Aborted);
            }
        }
        outcome.usage = self.events.usage;
        if !head.close && delimiter != Delimiter::Close {
            self.stream = Some(stream);
        }
        Ok(match head.status {
            200..=299 if self.events.error => End::ErrorEvent,
            200..=299 if bytes_only => End::Complete,
            200..=299 if outcome.token_events == 0 && self.events.usage.unwrap_or(0) == 0 => End::NoTokens,
            200..=299 if !self.events.done => End::NoDone,
            200..=299 => End::Complete,
            _ => End::ErrorStatus,
        })
    }

    fn note(&self, outcome: &mut Outcome, settings: &Settings, bytes: usize, brought: Brought, now: Instant) {
        let warm = self.recorder.is_warm(settings.warm_up);
        let mut gap = None;
        if brought.token_events > 0 {
            outcome.first.get_or_insert(now);
            gap = outcome.last.map(|last| now - last).filter(|_| warm);
            outcome.last = Some(now);
            outcome.token_events += brought.token_events;
        }
        let transit = settings.stamp.zip(brought.stamp).filter(|_| warm);
        let transit = transit.map(|(epoch, stamp)| (now - epoch).saturating_sub(Duration::from_nanos(stamp)));
        self.recorder.read(bytes, brought.token_events, gap, transit);
    }
}

/// After how many events with tokens the request of this number is given up, if it is.
fn abort_after(settings: &Settings, number: u64) -> Option<u64> {
    let mut chance = fastrand::Rng::with_seed(settings.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (chance.f64() < settings.abort).then(|| chance.u64(1..=(settings.max_tokens / 2).max(1)))
}

fn render_request(url: &Url, settings: &Settings) -> Vec<u8> {
    let body = settings.body.clone().unwrap_or_else(|| {
        let mut body = serde_json::json!({
            "model": settings.model, "max_tokens": settings.max_tokens, "stream": settings.stream,
        });
        match url.path.contains("/chat/") {
            true => body["messages"] = serde_json::json!([{"role": "user", "content": settings.prompt}]),
            false => body["prompt"] = settings.prompt.as_str().into(),
        }
        if settings.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        if settings.stream && settings.include_usage {
            body["stream_options"] = serde_json::json!({"include_usage": true});
        }
        body.to_string().into_bytes()
    });
    let mut head = format!("POST {} HTTP/1.1\r\nHost: {}\r\n", url.path, url.authority);
    head.push_str("User-Agent: tokometer-load\r\nAccept: */*\r\nContent-Type: application/json\r\n");
    for (name, value) in &settings.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !settings.keep_alive {
        head.push_str("Connection: close\r\n");
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    let mut request = head.into_bytes();
    request.extend_from_slice(&body);
    request
}

fn parse_head(bytes: &[u8]) -> Result<Option<Head>, ()> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(()),
    };
    let status = response.code.ok_or(())?;
    let mut head =
        Head { status, delimiter: Delimiter::Close, close: response.version == Some(0), event_stream: false, length };
    for header in response.headers.iter() {
        let value = header.value.trim_ascii();
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") && head.delimiter == Delimiter::Close {
            let length = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()).ok_or(())?;
            head.delimiter = Delimiter::Length(length);
        } else if is("transfer-encoding") && value.eq_ignore_ascii_case(b"chunked") {
            head.delimiter = Delimiter::chunked();
        } else if is("connection") {
            head.close |= value.eq_ignore_ascii_case(b"close");
        } else if is("content-type") {
            head.event_stream = value.starts_with(b"text/event-stream");
        }
    }
    if matches!(status, 204 | 304) {
        head.delimiter = Delimiter::Length(0);
    }
    Ok(Some(head))
}
