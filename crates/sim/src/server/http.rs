//! Reads requests from one client and writes raw bytes to it, with full control over how the connection ends.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWrite;
use tokio::io::AsyncWriteExt;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;
use tokio::net::UnixStream;

use crate::server::spans::Caller;

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

/// The first bytes of HTTP/2 with prior knowledge (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum number of headers, size of the request headers, and size of a body (both in bytes).
const HEADERS: usize = 64;
const HEAD_BYTES: usize = 64 * 1024;
pub(crate) const BODY_BYTES: usize = 256 * 1024 * 1024;

/// The parts of the request headers that the server uses.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) method: String,
    pub(crate) path: String,
    /// The query, without `?`.
    pub(crate) query: String,
    /// `Connection: close`, or HTTP/1.0 without `keep-alive`.
    pub(crate) close: bool,
    pub(crate) request_id: Option<String>,
    pub(crate) caller: Option<Caller>,
    pub(crate) fault: Option<String>,
    /// Value of `x-sim-engine`.
    pub(crate) engine: Option<String>,
    pub(crate) content_type: Option<String>,
    /// `Upgrade: websocket`.
    pub(crate) upgrades: bool,
    pub(crate) websocket_key: Option<String>,
    content_length: usize,
    chunked: bool,
    expects_continue: bool,
}

/// Why no further request was read.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The client closed the connection, it failed, or it was idle for too long.
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
    /// Bytes that were read ahead.
    inbox: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: Box<dyn Wire>) -> Client {
        Client { stream, inbox: Vec::new() }
    }

    /// Reads the next request and its body.
    pub(crate) async fn request(&mut self, idle: Duration) -> Result<(Head, Vec<u8>), Ended> {
        let head = tokio::time::timeout(idle, self.next(parse)).await.unwrap_or(Err(Ended::Gone))?;
        if head.expects_continue {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body = if head.chunked { self.chunked_body().await? } else { self.take(head.content_length).await? };
        Ok((head, body))
    }

    /// Reads until `parse` finds an item at the start of the buffer; `parse` returns the item and its length.
    pub(crate) async fn next<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, Ended>,
    ) -> Result<T, Ended> {
        loop {
            if let Some((found, length)) = parse(&self.inbox)? {
                self.inbox.drain(..length);
                return Ok(found);
            }
            self.fill().await?;
        }
    }

    /// Reads the next `length` bytes.
    async fn take(&mut self, length: usize) -> Result<Vec<u8>, Ended> {
        if length > BODY_BYTES {
            return Err(Ended::Malformed);
        }
        let rest = self.inbox.split_off(length.min(self.inbox.len()));
        let mut body = std::mem::replace(&mut self.inbox, rest);
        let have = body.len();
        body.resize(length, 0);
        if let Some(missing) = body.get_mut(have..) {
            self.stream.read_exact(missing).await?;
        }
        Ok(body)
    }

    async fn chunked_body(&mut self) -> Result<Vec<u8>, Ended> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let size = line.split(|byte| *byte == b';').next().and_then(|size| std::str::from_utf8(size).ok());
            let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok()).ok_or(Ended::Malformed)?;
            if size == 0 {
                while !self.line().await?.is_empty() {}
                return Ok(body);
            }
            if size > BODY_BYTES || body.len() + size > BODY_BYTES {
                return Err(Ended::Malformed);
            }
            body.append(&mut self.take(size).await?);
            if !self.line().await?.is_empty() {
                return Err(Ended::Malformed);
            }
        }
    }

    /// Reads the next line, without its line end.
    async fn line(&mut self) -> Result<Vec<u8>, Ended> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.inbox) {
                let mut line: Vec<u8> = self.inbox.drain(..=at).collect();
                line.truncate(at);
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(line);
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

    /// Writes all of `bytes`.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Runs `work` while the client is connected. Like uvicorn, it treats a half-closed connection as a disconnected
    /// client.
    pub(crate) async fn with<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Ended> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            gone = async {
                // Pipelined bytes are read up to the size of a request's headers; after that the client has to wait.
                while self.inbox.len() < HEAD_BYTES {
                    if let Err(gone) = self.fill().await {
                        return gone;
                    }
                }
                std::future::pending().await
            } => Err(gone),
        }
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(mut self) {
        self.stream.reset();
    }

    /// The connection with the bytes read so far put back.
    pub(crate) fn rewound(self) -> Rewound {
        Rewound { read: self.inbox, stream: self.stream }
    }
}

/// A connection whose first bytes were already read.
#[derive(Debug)]
pub(crate) struct Rewound {
    read: Vec<u8>,
    stream: Box<dyn Wire>,
}

impl AsyncRead for Rewound {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let length = self.read.len().min(buf.remaining());
        buf.put_slice(&self.read.drain(..length).collect::<Vec<u8>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Parses the request headers at the start of `bytes`; returns them with their length, or `None` if they are
/// incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Ended> {
    if bytes.starts_with(PREFACE) {
        return Err(Ended::Http2);
    }
    // No HTTP/1 method starts like this.
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
    let (path, query) =
        request.path.unwrap_or_default().split_once('?').unwrap_or((request.path.unwrap_or_default(), ""));
    let mut head = Head {
        method: request.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        close: request.version == Some(0),
        ..Head::default()
    };
    for header in request.headers.iter() {
        let value = String::from_utf8_lossy(header.value);
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            head.content_length = value.trim().parse().map_err(|_| Ended::Malformed)?;
        } else if is("transfer-encoding") {
            head.chunked = value.trim().eq_ignore_ascii_case("chunked");
        } else if is("connection") {
            head.close = value.trim().eq_ignore_ascii_case("close");
        } else if is("expect") {
            head.expects_continue = value.trim().eq_ignore_ascii_case("100-continue");
        } else if is("x-request-id") {
            head.request_id = Some(value.into_owned());
        } else if is("traceparent") {
            head.caller = Caller::parse(&value);
        } else if is("x-sim-fault") {
            head.fault = Some(value.trim().to_owned());
        } else if is("x-sim-engine") {
            head.engine = Some(value.trim().to_owned());
        } else if is("content-type") {
            head.content_type = Some(value.into_owned());
        } else if is("upgrade") {
            head.upgrades = value.trim().eq_ignore_ascii_case("websocket");
        } else if is("sec-websocket-key") {
            head.websocket_key = Some(value.trim().to_owned());
        }
    }
    Ok(Some((head, length)))
}
