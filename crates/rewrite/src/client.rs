//! A client's connection, plain or with TLS, as a pingora stream.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pingora::http::ResponseHeader;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokometer_wire::budget::{Exhausted, Share};

use crate::deferred::{DeferredInput, Input};
use tokometer_proxy::listen::{self, Route};
use tokometer_proxy::relay::{OpenRequests, Phase, Relay, Stream};

/// Smaller writes wait for the flush, so headers and a short body are sent in one write.
const WRITE_BYTES: usize = 2048;

/// The HTTP/2 connection preface (RFC 9113, section 3.4). A client with prior knowledge sends it first on a connection
/// without TLS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Properties of a client's connection, shared with its requests.
pub(crate) struct Connection {
    pub(crate) peer: Option<SocketAddr>,
    /// The server's address as text.
    pub(crate) upstream: Arc<str>,
    pub(crate) route: Route,
    pub(crate) http2: bool,
    pub(crate) requests: Arc<OpenRequests>,
    /// The last request on HTTP/1; its observer is notified when the client does not read. 0 before the first.
    last: AtomicU64,
    /// The headers that pingora flushes next may wait; see [`Connection::join_headers`].
    joins: AtomicBool,
    /// Bytes read since the last request on HTTP/1 ended; `IN_PROGRESS` after the headers of the next one.
    unparsed: AtomicUsize,
    /// Holds the headers of the request in progress on HTTP/1, if they are large.
    headers: Mutex<Option<Share>>,
}

/// Headers up to this size are not charged to the memory budget.
pub(crate) const SMALL_HEADERS: usize = 8 << 10;

/// pingora-core 0.9.1 rejects headers above 1 MiB after one more read of at most 64 KiB.
const LARGEST_HEADERS: usize = (1 << 20) + (64 << 10);

/// A value of [`Connection::unparsed`].
const IN_PROGRESS: usize = usize::MAX;

impl Connection {
    pub(crate) fn new(client: listen::Client) -> Self {
        let listen::Client { peer, upstream, route, http2, requests } = client;
        let (last, joins) = (AtomicU64::new(0), AtomicBool::new(false));
        let (unparsed, headers) = (AtomicUsize::new(0), Mutex::default());
        Connection { peer, upstream, route, http2, requests, last, joins, unparsed, headers }
    }

    /// Sets the request in progress, whose headers are complete.
    pub(crate) fn begin(&self, request: u64) {
        self.last.store(request, Ordering::Relaxed);
        self.joins.store(false, Ordering::Relaxed);
        self.unparsed.store(IN_PROGRESS, Ordering::Relaxed);
    }

    /// The request in progress has ended, and with it its headers.
    pub(crate) fn end(&self) {
        if self.unparsed.load(Ordering::Relaxed) == IN_PROGRESS {
            self.unparsed.store(0, Ordering::Relaxed);
            *self.headers() = None;
        }
    }

    fn headers(&self) -> MutexGuard<'_, Option<Share>> {
        self.headers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges bytes that pingora has read, if they are headers. pingora holds them twice: as read, and parsed.
    fn charge(&self, read: usize, relay: &Relay) -> Result<(), Exhausted> {
        let unparsed = self.unparsed.load(Ordering::Relaxed);
        if unparsed == IN_PROGRESS {
            return Ok(());
        }
        let unparsed = unparsed + read;
        self.unparsed.store(unparsed, Ordering::Relaxed);
        if unparsed <= SMALL_HEADERS {
            return Ok(());
        }
        if unparsed > LARGEST_HEADERS {
            // The rest of a body, which pingora discards after an early response.
            *self.headers() = None;
            return Ok(());
        }
        let new = || {
            let account = relay.budget().account(self.peer.map(|peer| peer.ip()), 0);
            account.set_incomplete(true);
            account.share()
        };
        self.headers().get_or_insert_with(new).hold(2 * unparsed)
    }

    /// Sends the headers of an HTTP/1 response in one write with an event that arrived with them.
    ///
    /// Only for requests whose body was read: pingora then reads from the client whenever it waits for the server. If
    /// no event arrived, that read sends the headers.
    pub(crate) fn join_headers(&self) {
        self.joins.store(true, Ordering::Relaxed);
    }
}

/// See the module.
pub(crate) struct Client {
    stream: Stream,
    /// Bytes written by pingora but not sent yet; allocates nothing while empty.
    waiting: Vec<u8>,
    /// Number of bytes in `waiting` that are already sent.
    sent: usize,
    /// Bytes read ahead to detect the protocol.
    peeked: Vec<u8>,
    relay: Arc<Relay>,
    deferred: Arc<DeferredInput>,
    connection: Arc<Connection>,
    digest: Arc<ProxyDigest>,
    /// When the client stopped accepting bytes.
    blocked: Option<Instant>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(
        stream: Stream,
        relay: Arc<Relay>,
        deferred: Arc<DeferredInput>,
        connection: Connection,
    ) -> Client {
        let connection = Arc::new(connection);
        // pingora passes this digest, and with it the connection, to HTTP/1 requests and HTTP/2 streams. The response
        // is a placeholder.
        let response = Box::new(ResponseHeader::build_no_case(200, Some(0)).expect("200 is a status"));
        let digest = Arc::new(ProxyDigest::new(response, Some(Box::new(Arc::clone(&connection)))));
        let (waiting, peeked) = (Vec::new(), Vec::new());
        Client { stream, waiting, sent: 0, peeked, relay, deferred, connection, digest, blocked: None }
    }

    /// Waits until the first bytes show which HTTP version they are; false if the client closes before its first byte.
    pub(crate) async fn begins(&mut self) -> io::Result<bool> {
        self.look(PREFACE.len()).await?;
        if self.connection.http2 || self.peeked.starts_with(PREFACE) {
            // Charged by request.
            self.connection.unparsed.store(IN_PROGRESS, Ordering::Relaxed);
        }
        Ok(!self.peeked.is_empty())
    }

    /// Reads ahead until this many bytes arrived, they differ from the HTTP/2 preface, or the client closes.
    async fn look(&mut self, bytes: usize) -> io::Result<()> {
        while self.peeked.len() < bytes && PREFACE.starts_with(&self.peeked) {
            if self.stream.read_buf(&mut self.peeked).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Sends the waiting bytes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.waiting.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.sent = 0;
        self.waiting = Vec::new();
        Poll::Ready(Ok(()))
    }

    /// Makes room for this many bytes; true if they should wait for the flush.
    fn poll_room(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<io::Result<bool>> {
        if self.waiting.len() + bytes > WRITE_BYTES {
            ready!(self.poll_send(cx))?;
        }
        let waits = bytes < WRITE_BYTES;
        if !waits {
            // Headers of this size are sent immediately, so no event can be joined with them.
            self.connection.joins.store(false, Ordering::Relaxed);
        }
        Poll::Ready(Ok(waits))
    }

    fn poll_buffered(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !ready!(self.poll_room(cx, bytes.len()))? {
            return Pin::new(&mut self.stream).poll_write(cx, bytes);
        }
        self.waiting.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    /// Writes a chunk with its framing. A small chunk is copied into `waiting`, which is faster than writing its parts;
    /// pingora flushes next.
    fn poll_vectored(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let length = parts.iter().map(|part| part.len()).sum();
        if !ready!(self.poll_room(cx, length))? {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        }
        self.waiting.reserve(length);
        parts.iter().for_each(|part| self.waiting.extend_from_slice(part));
        Poll::Ready(Ok(length))
    }

    /// Reports to the request in progress whether the client accepts bytes.
    fn wrote<T>(&mut self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match (&result, self.blocked) {
            (Poll::Pending, None) => {
                self.blocked = Some(Instant::now());
                self.push(Input::Waits);
            }
            (Poll::Ready(_), Some(since)) => {
                self.blocked = None;
                self.push(Input::Blocked(since));
            }
            _ => {}
        }
        result
    }

    fn push(&self, input: Input) {
        let request = self.connection.last.load(Ordering::Relaxed);
        if request > 0 {
            self.deferred.push(request, input);
        }
    }
}

/// The connection of a request.
pub(crate) fn connection(digest: Option<&pingora::protocols::Digest>) -> Option<Arc<Connection>> {
    let data = digest?.proxy_digest.as_ref()?.user_data.as_ref()?;
    data.downcast_ref::<Arc<Connection>>().cloned()
}

impl Drop for Client {
    /// Sends the rest of a response that the server did not finish. If the drain is forced, clients get a reset: a
    /// truncated response must not look complete.
    fn drop(&mut self) {
        if self.relay.drain().phase() == Phase::Forced {
            SockRef::from(&self.stream.socket()).set_linger(Some(Duration::ZERO)).ok();
        } else if !self.waiting.is_empty() {
            let mut cx = Context::from_waker(Waker::noop());
            let sent = self.poll_send(&mut cx).is_ready() && Pin::new(&mut self.stream).poll_flush(&mut cx).is_ready();
            if !sent {
                tracing::debug!("A client did not accept the rest of its response.");
            }
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // pingora does not flush the beginning of a response whose length is known. The waiting bytes are sent here,
        // because pingora reads from the client whenever it waits for the server.
        if !self.waiting.is_empty()
            && let Poll::Ready(sent) = self.as_mut().poll_flush(cx)
        {
            sent?;
        }
        if !self.peeked.is_empty() {
            let length = self.peeked.len().min(buf.remaining());
            buf.put_slice(&self.peeked[..length]);
            self.peeked.drain(..length);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let charged = self.connection.charge(buf.filled().len() - before, &self.relay);
        Poll::Ready(charged.map_err(|Exhausted| io::Error::other("no memory is free for large request headers")))
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = self.poll_buffered(cx, bytes);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = self.poll_vectored(cx, parts);
        self.wrote(result)
    }

    /// Small chunks are copied; the stream can write the others in parts.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Reads from `connection` only when headers are waiting: during a stream, its memory is not in the CPU cache.
        if self.waiting.starts_with(b"HTTP/1.") && self.connection.joins.swap(false, Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let result = match self.poll_send(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.stream).poll_flush(cx),
            other => other,
        };
        self.wrote(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx)).ok();
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[async_trait]
impl Peek for Client {
    /// pingora peeks only for the HTTP/2 preface.
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        self.look(buf.len()).await?;
        let length = buf.len().min(self.peeked.len());
        buf[..length].copy_from_slice(&self.peeked[..length]);
        Ok(true)
    }
}

#[async_trait]
impl Shutdown for Client {
    async fn shutdown(&mut self) {
        AsyncWriteExt::shutdown(self).await.ok();
    }
}

impl UniqueID for Client {
    fn id(&self) -> i32 {
        use std::os::fd::AsRawFd;
        self.stream.socket().as_raw_fd()
    }
}

impl Ssl for Client {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        let is_tls = self.stream.is_tls();
        is_tls.then(|| Arc::new(SslDigest::new("", "", None, None, Vec::new())))
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.connection.http2.then_some(ALPN::H2)
    }
}

impl GetTimingDigest for Client {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Client {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        Some(Arc::clone(&self.digest))
    }
}

impl GetSocketDigest for Client {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}
