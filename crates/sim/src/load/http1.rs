//! An HTTP/1.1 connection: one request after another.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::body::{Delimiter, Progress};
use crate::load::client::Measured;
use crate::load::events::Found;
use crate::load::request::Request;
use crate::load::settings::{Inspect, Settings};
use crate::load::summary::End;

/// Maximum size of the response headers in bytes.
const HEAD_BYTES: usize = 64 * 1024;

/// Size of the read buffer in bytes.
const READ_BYTES: usize = 4 * 1024;
const BULK_READ_BYTES: usize = 256 * 1024;

/// A connection, opened on first use.
#[derive(Debug)]
pub(crate) struct Connection {
    address: SocketAddr,
    request: Vec<u8>,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

/// Response headers.
struct Head {
    status: u16,
    delimiter: Delimiter,
    close: bool,
    content_type: Vec<u8>,
    length: usize,
}

impl Connection {
    pub(crate) fn new(address: SocketAddr, request: &Request, settings: &Settings) -> Connection {
        let size = if settings.inspect == Inspect::Bytes { BULK_READ_BYTES } else { READ_BYTES };
        let request = render(request, settings);
        Connection { address, request, stream: None, buffer: vec![0; size] }
    }

    /// Closes the connection; the next request opens a new one.
    pub(crate) fn close(&mut self) {
        self.stream = None;
    }

    /// Sends the request and reads the response until it ends or the client aborts it.
    ///
    /// A server may close a reused connection at any time, and llama.cpp does so after each stream. A request on a
    /// reused connection that closes before the response begins is retried on a new one (RFC 9112, 9.3.1).
    pub(crate) async fn round_trip(&mut self, measured: &mut Measured<'_>) -> io::Result<End> {
        if let Some(used) = self.stream.take()
            && let Some(end) = self.ask(used, measured, true).await?
        {
            return Ok(end);
        }
        let Ok(stream) = TcpStream::connect(self.address).await else { return Ok(End::Refused) };
        stream.set_nodelay(true)?;
        Ok(self.ask(stream, measured, false).await?.unwrap_or(End::Truncated))
    }

    /// One attempt on this connection; `None` if it was `used` and closed before a response began.
    async fn ask(&mut self, mut stream: TcpStream, measured: &mut Measured<'_>, used: bool) -> io::Result<Option<End>> {
        let length = match self.first(&mut stream, measured).await {
            Ok(0) | Err(_) if used => return Ok(None),
            Ok(0) => return Ok(Some(End::Truncated)),
            length => length?,
        };
        self.read(stream, measured, length).await.map(Some)
    }

    /// Sends the request and waits for the first bytes of the response; returns their number.
    async fn first(&mut self, stream: &mut TcpStream, measured: &mut Measured<'_>) -> io::Result<usize> {
        stream.write_all(&self.request).await?;
        measured.asked();
        stream.read(&mut self.buffer).await
    }

    /// Reads a response whose first `filled` bytes are in the buffer.
    async fn read(&mut self, mut stream: TcpStream, measured: &mut Measured<'_>, mut filled: usize) -> io::Result<End> {
        let head = loop {
            match parse_head(self.buffer.get(..filled).unwrap_or_default()) {
                Ok(Some(head)) => break head,
                Ok(None) => {}
                Err(()) => return Ok(End::Malformed),
            }
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
        };
        measured.head(head.status, &head.content_type);
        let mut delimiter = head.delimiter;
        let mut range = head.length..filled;
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
            let mut found = Found::default();
            let progress = delimiter.take(bytes, |body| measured.body(body, &mut found));
            measured.read(bytes.len(), found, now);
            range = 0..0;
            match progress {
                Progress::More => {}
                Progress::End => last = true,
                Progress::Broken => return Ok(End::Malformed),
            }
            if measured.is_given_up() {
                return Ok(End::Aborted);
            }
        }
        if !head.close && delimiter != Delimiter::Close {
            self.stream = Some(stream);
        }
        Ok(measured.end())
    }
}

fn render(request: &Request, settings: &Settings) -> Vec<u8> {
    let mut head = format!("POST {} HTTP/1.1\r\nHost: {}\r\n", request.path, request.authority);
    for (name, value) in &request.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !settings.keep_alive {
        head.push_str("Connection: close\r\n");
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", request.body.len()));
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&request.body);
    bytes
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
    let close = response.version == Some(0);
    let mut head = Head { status, delimiter: Delimiter::Close, close, content_type: Vec::new(), length };
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
            head.content_type = value.to_vec();
        }
    }
    if matches!(status, 204 | 304) {
        head.delimiter = Delimiter::Length(0);
    }
    Ok(Some(head))
}
