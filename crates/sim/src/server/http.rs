//! Reads requests from one client and writes raw bytes to it, with full control over how the connection ends.
//!
//! Why not hyper: it would change the order and case of the engines' headers, the chunks of each write, and the response
//! to malformed requests.

use std::future::Future;
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

/// The transport of a client connection.
pub(crate) trait Wire: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {
    /// Makes the connection end with a reset.
    fn reset(&mut self);
}

impl Wire for TcpStream {
    fn reset(&mut self) {
        // A linger time of zero makes the kernel send RST instead of FIN.
        if let Err(error) = socket2::SockRef::from(&*self).set_linger(Some(Duration::ZERO)) {
            tracing::warn!(%error, "simulated server failed to reset a connection");
        }
    }
}

impl Wire for UnixStream {
    /// Unix sockets have no reset: the connection just closes.
    fn reset(&mut self) {}
}

/// An HTTP/2 stream, which is reset if its response is incomplete.
impl Wire for DuplexStream {
    fn reset(&mut self) {}
}

/// The first bytes of HTTP/2 with prior knowledge (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum number of headers, bytes of the request headers, and bytes of a body.
const HEADERS: usize = 64;
const HEAD_BYTES: usize = 64 * 1024;
const BODY_BYTES: usize = 256 * 1024 * 1024;

/// The headers of a request.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: String,
    pub(crate) path: String,
    /// The query, without `?`.
    pub(crate) query: String,
    /// `Connection: close`, or HTTP/1.0 without `keep-alive`.
    pub(crate) close: bool,
    headers: Vec<(String, String)>,
}

impl Head {
    /// The last header with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().rev().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Whether a header has this value (case-insensitive).
    pub(crate) fn header_is(&self, name: &str, value: &str) -> bool {
        self.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
    }
}

/// Why no further request was read.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The client closed the connection, the connection failed, or it was idle for too long.
    Gone,
    /// The bytes are not an HTTP/1 request.
    Malformed,
    /// The bytes are the start of HTTP/2.
    Http2,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Ended {
        Ended::Gone
    }
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Box<dyn Wire>,
    /// Bytes that were read but not processed yet.
    inbox: Vec<u8>,
    /// First digit of the last response's status.
    class: Option<char>,
}

impl Client {
    pub(crate) fn new(stream: Box<dyn Wire>) -> Client {
        Client { stream, inbox: Vec::new(), class: None }
    }

    /// Reads the next request and its body.
    pub(crate) async fn request(&mut self, idle: Duration) -> Result<(Head, Vec<u8>), Ended> {
        let head = tokio::time::timeout(idle, self.head()).await.unwrap_or(Err(Ended::Gone))?;
        let length = head.get("content-length").unwrap_or("0").parse().map_err(|_| Ended::Malformed)?;
        if head.header_is("expect", "100-continue") {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body = match head.header_is("transfer-encoding", "chunked") {
            true => self.chunked_body().await?,
            false => self.take(length).await?,
        };
        Ok((head, body))
    }

    async fn head(&mut self) -> Result<Head, Ended> {
        loop {
            if let Some((head, length)) = parse(&self.inbox)? {
                self.inbox.drain(..length);
                return Ok(head);
            }
            self.fill().await?;
        }
    }

    /// Reads the next `length` bytes.
    async fn take(&mut self, length: usize) -> Result<Vec<u8>, Ended> {
        if length > BODY_BYTES {
            return Err(Ended::Malformed);
        }
        while self.inbox.len() < length {
            self.fill().await?;
        }
        let rest = self.inbox.split_off(length);
        Ok(std::mem::replace(&mut self.inbox, rest))
    }

    async fn chunked_body(&mut self) -> Result<Vec<u8>, Ended> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).map_err(|_| Ended::Malformed)?;
            if size == 0 {
                // The trailers.
                while !self.line().await?.is_empty() {}
                return Ok(body);
            }
            body.extend_from_slice(&self.take(size).await?);
            if body.len() > BODY_BYTES || !self.line().await?.is_empty() {
                return Err(Ended::Malformed);
            }
        }
    }

    /// Reads a line; returns it without its end.
    async fn line(&mut self) -> Result<String, Ended> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.inbox) {
                let line = self.inbox.drain(..=end).collect::<Vec<u8>>();
                return Ok(String::from_utf8_lossy(&line).trim_ascii().to_owned());
            }
            if self.inbox.len() > HEAD_BYTES {
                return Err(Ended::Malformed);
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), Ended> {
        match self.stream.read_buf(&mut self.inbox).await? {
            0 => Err(Ended::Gone),
            _ => Ok(()),
        }
    }

    /// Writes all of `bytes`. The first bytes of a response must contain the status, from which the class is read.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        if let Some(status) = bytes.strip_prefix(b"HTTP/1.1 ") {
            self.class = status.first().map(|digit| char::from(*digit));
        }
        Ok(self.stream.write_all(bytes).await?)
    }

    /// First digit of the last response's status; `None` if no response began since the last call.
    pub(crate) fn take_class(&mut self) -> Option<char> {
        self.class.take()
    }

    /// Runs `work` while the client is connected. As in uvicorn, a client that half-closes its connection counts as
    /// disconnected.
    pub(crate) async fn with<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Ended> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            gone = async {
                // Pipelined bytes are buffered up to the maximum size of request headers; then the client is blocked.
                while self.inbox.len() < HEAD_BYTES {
                    if let Err(gone) = self.fill().await {
                        return gone;
                    }
                }
                std::future::pending().await
            } => Err(gone),
        }
    }

    /// Makes the connection end with a reset.
    pub(crate) fn reset(&mut self) {
        self.stream.reset();
    }

    /// The connection, and the bytes that were read ahead from it.
    pub(crate) fn into_parts(self) -> (Box<dyn Wire>, Vec<u8>) {
        (self.stream, self.inbox)
    }
}

/// Parses the request headers at the start of `bytes`; returns them with their length, or `None` if they are
/// incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Ended> {
    if bytes.starts_with(PREFACE) {
        return Err(Ended::Http2);
    }
    // No HTTP/1 method starts with `PRI`, so this is an incomplete preface.
    if bytes.len() > 2 && PREFACE.starts_with(bytes) {
        return Ok(None);
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_BYTES => return Ok(None),
        _ => return Err(Ended::Malformed),
    };
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let text = |header: &httparse::Header<'_>| String::from_utf8_lossy(header.value).trim().to_owned();
    let headers = request.headers.iter().map(|header| (header.name.to_owned(), text(header)));
    let mut head = Head {
        method: request.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        close: false,
        headers: headers.collect(),
    };
    head.close = head.get("connection").map_or(request.version == Some(0), |value| value.eq_ignore_ascii_case("close"));
    Ok(Some((head, length)))
}
