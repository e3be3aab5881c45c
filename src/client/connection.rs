//! One HTTP/1.1 connection. hyper parses the responses; every received byte is also recorded as it was received.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::client::recording::Recording;

/// Maximum size of a response in bytes; the metrics page of a busy server has several megabytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Maximum number of headers of a response.
const MAX_HEADERS: usize = 128;

/// Maximum size of the response headers in bytes (Go's `DefaultMaxHeaderBytes`).
const MAX_HEAD_BYTES: usize = 1024 * 1024;

/// Why there is no complete response. Each message completes a sentence that begins "the relay at ...".
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The host name does not resolve.
    #[error("has no address: {0}")]
    Resolve(#[source] io::Error),
    /// The connection could not be opened.
    #[error("cannot be reached: {0}")]
    Connect(#[source] io::Error),
    /// The connection failed.
    #[error("failed: {0}")]
    Io(#[source] io::Error),
    /// The connection was closed too early.
    #[error("closed the connection before the response was complete")]
    Cut,
    /// The timeout expired.
    #[error("sent no complete response within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The response is not HTTP/1.1.
    #[error("sent a response that is not HTTP/1.1")]
    Malformed,
    /// The response is too large.
    #[error("sent more than {MAX_BYTES} bytes")]
    TooLong,
}

/// Connects to the first address that accepts within `limit`.
pub(super) async fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let mut last = Err(io::ErrorKind::NotFound.into());
    for address in addresses {
        let expired = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
        last = tokio::time::timeout(limit, TcpStream::connect(address)).await.unwrap_or_else(expired);
        if last.is_ok() {
            break;
        }
    }
    last.and_then(|stream| stream.set_nodelay(true).map(|()| stream))
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    received: Arc<Mutex<Received>>,
}

/// The bytes of the current response.
#[derive(Debug)]
struct Received {
    /// Start of the request.
    begun: Instant,
    bytes: Vec<u8>,
    /// Times of the first and of the last read since the start of the request.
    first: Option<Duration>,
    last: Duration,
}

impl Connection {
    /// A connection on this stream. The times of the first response begin at `begun`.
    pub(super) async fn new(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        begun: Instant,
    ) -> Result<Connection, Failure> {
        let received = Arc::new(Mutex::new(Received::since(begun)));
        let (reader, writer) = tokio::io::split(stream);
        let stream = tokio::io::join(Recorder { reader, received: Arc::clone(&received) }, writer);
        let mut builder = http1::Builder::new();
        builder.title_case_headers(true).max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failure)?;
        // `send` returns the errors of the connection.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Connection { sender, received })
    }

    /// Whether another request can be sent; its times begin now. Another task reads the connection: it must run before
    /// it can notice that the server has closed the connection.
    pub(super) async fn is_open(&mut self) -> bool {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let is_open = self.sender.ready().await.is_ok();
        *lock(&self.received) = Received::since(Instant::now());
        is_open
    }

    /// Sends a request and reads the response. With `most`, stops when the body is larger than `most` bytes; otherwise
    /// bytes after the response are an error.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        most: Option<usize>,
    ) -> Result<Recording, Failure> {
        let response = self.sender.send_request(request).await.map_err(|error| match failure(error) {
            Failure::Io(error) if self.is_silent() && error.kind() == io::ErrorKind::ConnectionReset => Failure::Cut,
            Failure::Io(error) if self.is_silent() && error.kind() == io::ErrorKind::BrokenPipe => Failure::Cut,
            other => other,
        })?;
        let (head, mut body) = response.into_parts();
        let first = lock(&self.received).first.unwrap_or_default();
        let (mut recording, mut size) = (Recording::new(head.status.as_u16(), head.headers, first), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(failure)?;
            let part = frame.data_ref().map_or(&[][..], Bytes::as_ref);
            // hyper reads on only after it has returned all parts of the last read.
            recording.push(part, lock(&self.received).last);
            size += part.len();
            if most.is_some_and(|most| size > most) {
                return Ok(recording);
            }
        }
        let is_exact = recording.end(std::mem::take(&mut lock(&self.received).bytes));
        if is_exact || most.is_some() { Ok(recording) } else { Err(Failure::Malformed) }
    }

    /// Whether no byte of the current response was received.
    pub(super) fn is_silent(&self) -> bool {
        lock(&self.received).first.is_none()
    }
}

impl Received {
    fn since(begun: Instant) -> Received {
        Received { begun, bytes: Vec::new(), first: None, last: Duration::ZERO }
    }
}

fn lock(received: &Mutex<Received>) -> MutexGuard<'_, Received> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failure(error: hyper::Error) -> Failure {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.map(|cause| (cause.kind(), cause.raw_os_error())) {
        _ if error.is_parse() => Failure::Malformed,
        None | Some((io::ErrorKind::UnexpectedEof, _)) => Failure::Cut,
        Some((io::ErrorKind::FileTooLarge, _)) => Failure::TooLong,
        // Invalid chunked transfer coding.
        Some((io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData, None)) => Failure::Malformed,
        Some((kind, code)) => Failure::Io(code.map_or(kind.into(), io::Error::from_raw_os_error)),
    }
}

/// Records what is read from a stream.
struct Recorder<R> {
    reader: R,
    received: Arc<Mutex<Received>>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Recorder<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let result = Pin::new(&mut self.reader).poll_read(context, into);
        let new = into.filled().get(before..).filter(|new| !new.is_empty());
        let Some(new) = new else { return result };
        let mut received = lock(&self.received);
        received.last = received.begun.elapsed();
        received.first = received.first.or(Some(received.last));
        received.bytes.extend_from_slice(new);
        if received.bytes.len() > MAX_BYTES { Poll::Ready(Err(io::ErrorKind::FileTooLarge.into())) } else { result }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// The response that is received in these reads on a connection that then ends.
    async fn received(reads: &[&str]) -> Result<Recording, Failure> {
        let (client, mut server) = tokio::io::duplex(4096);
        let mut connection = Connection::new(client, Instant::now()).await.unwrap();
        let reads: Vec<String> = reads.iter().map(|read| (*read).to_owned()).collect();
        tokio::spawn(async move {
            for read in reads {
                server.write_all(read.as_bytes()).await.unwrap();
                for _ in 0..9 {
                    tokio::task::yield_now().await;
                }
            }
        });
        connection.send(Request::new(Full::default()), None).await
    }

    const STREAM: &str = "HTTP/1.1 200 OK\r\nDate: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n12;e=1\r\n\
                          data: b\n\ndata: c\n\n\r\n0\r\n\r\n";

    #[tokio::test]
    async fn stream_split_at_any_read_has_the_same_chunks() {
        for cut in 1..STREAM.len() {
            let (head, tail) = STREAM.split_at(cut);
            let recording = received(&[head, tail]).await.unwrap();
            assert_eq!((recording.status(), recording.bytes()), (200, STREAM.as_bytes()));
            assert_eq!(recording.body(), b"data: a\n\ndata: b\n\ndata: c\n\n", "cut at {cut}");
            assert_eq!(recording.chunk_ends(), [9, 27]);
            let times: Vec<Duration> = recording.events().map(|event| event.at).collect();
            // The first and the last event arrive in the same read if the cut is before the first or after the last.
            let (first, last) = (STREAM.find("data: a").unwrap() + 8, STREAM.find("data: c").unwrap() + 8);
            assert_eq!(times[0] == times[2], cut < first || cut >= last, "cut at {cut}: {times:?}");
            assert_eq!(recording.first_byte() == times[2], cut >= last, "cut at {cut}: {times:?}");
        }
    }

    #[tokio::test]
    async fn bodies_end_according_to_their_framing() {
        for (response, status, body) in [
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", 404, "no"),
            ("HTTP/1.0 200 OK\r\n\r\nabc", 200, "abc"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n", 200, "x"),
            ("HTTP/1.1 204 No Content\r\n\r\n", 204, ""),
        ] {
            let recording = received(&[response]).await.unwrap();
            assert_eq!((recording.status(), recording.body()), (status, body.as_bytes()));
            let head: Vec<&[u8]> = recording.head().collect();
            assert!(head[0].starts_with(format!("HTTP/1.{} {status} ", &response[7..8]).as_bytes()), "{head:?}");
        }
    }

    #[tokio::test]
    async fn malformed_response_is_reported() {
        let head = "HTTP/1.1 200 OK\r\n";
        for wrong in [
            "\x16\x03\x01 no HTTP\r\n".to_owned(),
            format!("{head}Content-Length: x\r\n\r\n"),
            format!("{head}Content-Length: 1\r\n\r\nab"),
            format!("{head}Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
            format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore"),
        ] {
            let result = received(&[&wrong]).await;
            assert!(matches!(result, Err(Failure::Malformed)), "{wrong:?}: {result:?}");
        }
        for cut in ["", "HTTP/1.1 200 OK\r\nA", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na"] {
            let result = received(&[cut]).await;
            assert!(matches!(result, Err(Failure::Cut)), "{cut:?}: {result:?}");
        }
    }
}
