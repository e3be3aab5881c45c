//! A client's connection as pingora's stream, plain or with TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pingora::http::ResponseHeader;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter, ReadBuf};

use crate::relay::{Phase, Relay, Stream};
use crate::rewrite::message::Messages;
use tokometer_observe::input::Direction;

/// Size of the write buffer: headers, and the framing of a chunk with its event, leave in one write.
const WRITE_BYTES: usize = 2048;

/// What is known of a client's connection, shared with its requests.
pub(crate) struct Connection {
    pub(crate) peer: Option<SocketAddr>,
    /// The server's address as text, and as an address if it depends on the connection.
    pub(crate) upstream: Arc<str>,
    pub(crate) original: Option<SocketAddr>,
    pub(crate) http2: bool,
    /// The request in progress on HTTP/1: its observer learns when the client does not read.
    current: Mutex<Weak<Mutex<Messages>>>,
}

impl Connection {
    pub(crate) fn new(peer: Option<SocketAddr>, upstream: Arc<str>, original: Option<SocketAddr>, http2: bool) -> Self {
        Connection { peer, upstream, original, http2, current: Mutex::default() }
    }

    /// Sets the request in progress.
    pub(crate) fn begin(&self, messages: &Arc<Mutex<Messages>>) {
        *lock(&self.current) = Arc::downgrade(messages);
    }
}

/// No code can panic while it holds one of these locks: observers' panics are caught.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
pub(crate) struct Client {
    stream: BufWriter<Stream>,
    /// Bytes that were read to look at them.
    peeked: Vec<u8>,
    relay: Arc<Relay>,
    connection: Arc<Connection>,
    digest: Arc<ProxyDigest>,
    /// When the client stopped accepting bytes.
    blocked: Option<Instant>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("stream", self.stream.get_ref()).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(stream: Stream, relay: Arc<Relay>, connection: Connection) -> Client {
        let connection = Arc::new(connection);
        // pingora passes this value to HTTP/1 requests and HTTP/2 streams alike.
        let response = Box::new(ResponseHeader::build_no_case(200, Some(0)).expect("200 is a status"));
        let digest = Arc::new(ProxyDigest::new(response, Some(Box::new(Arc::clone(&connection)))));
        let stream = BufWriter::with_capacity(WRITE_BYTES, stream);
        Client { stream, peeked: Vec::new(), relay, connection, digest, blocked: None }
    }

    /// Waits for the first byte; false if the client closes before.
    pub(crate) async fn begins(&mut self) -> io::Result<bool> {
        Ok(self.stream.read_buf(&mut self.peeked).await? > 0)
    }

    /// Reports to the request in progress whether the client accepts bytes.
    fn wrote<T>(&mut self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match (&result, self.blocked) {
            (Poll::Pending, None) => {
                let since = Instant::now();
                self.blocked = Some(since);
                self.with_messages(|messages| messages.guard().waits(Direction::Response, since));
            }
            (Poll::Ready(_), Some(since)) => {
                self.blocked = None;
                self.with_messages(|messages| messages.guard().blocked(Direction::Response, since, Instant::now()));
            }
            _ => {}
        }
        result
    }

    fn with_messages(&self, what: impl FnOnce(&mut Messages)) {
        if let Some(messages) = lock(&self.connection.current).upgrade() {
            what(&mut lock(&messages));
        }
    }
}

/// The connection of a request.
pub(crate) fn connection(digest: Option<&pingora::protocols::Digest>) -> Option<Arc<Connection>> {
    let data = digest?.proxy_digest.as_ref()?.user_data.as_ref()?;
    data.downcast_ref::<Arc<Connection>>().cloned()
}

impl Drop for Client {
    /// At the end of a drain, clients see a reset: a response that was cut off must not look complete.
    fn drop(&mut self) {
        if self.relay.drain().phase() == Phase::Forced {
            SockRef::from(&self.stream.get_ref().socket()).set_linger(Some(Duration::ZERO)).ok();
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.peeked.is_empty() {
            let length = self.peeked.len().min(buf.remaining());
            buf.put_slice(&self.peeked[..length]);
            self.peeked.drain(..length);
            return Poll::Ready(Ok(()));
        }
        Pin::new(self.stream.get_mut()).poll_read(cx, buf)
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.wrote(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx)).ok();
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[async_trait]
impl Peek for Client {
    /// Reads ahead until `buf` is full or the bytes differ from HTTP/2's preface, which alone is looked for.
    async fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<bool> {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        while self.peeked.len() < buf.len() && PREFACE.starts_with(&self.peeked) {
            if self.stream.read_buf(&mut self.peeked).await? == 0 {
                break;
            }
        }
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
        self.stream.get_ref().socket().as_raw_fd()
    }
}

impl Ssl for Client {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        let is_tls = self.stream.get_ref().is_tls();
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
