//! A connection to the server: HTTP/1.1, or HTTP/2 with prior knowledge (RFC 9113, 3.3) that many clients share.

use std::error::Error;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::load::summary::End;

/// Clients per HTTP/2 connection: the number of concurrent streams that every server should allow (RFC 9113, 6.5.2).
pub(crate) const STREAMS: usize = 100;

/// HTTP/2 flow-control window in bytes, per stream and per connection.
const STREAM_WINDOW: u32 = 1 << 20;
const WINDOW: u32 = 1 << 26;

/// A connection, opened on first use.
#[derive(Debug)]
pub(crate) struct Connection {
    address: SocketAddr,
    http2: bool,
    idle: Mutex<Option<Sender>>,
}

/// Sends requests on an open connection, which closes when its last sender and its last response are dropped.
#[derive(Debug)]
pub(crate) enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    /// Sends a request and waits for the response headers.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Sender::Http1(sender) => sender.send_request(request).await,
            Sender::Http2(sender) => sender.send_request(request).await,
        }
    }

    async fn is_ready(&mut self) -> bool {
        let ready = match self {
            Sender::Http1(sender) => sender.ready().await,
            Sender::Http2(sender) => sender.ready().await,
        };
        ready.is_ok()
    }

    fn shared(&self) -> Option<Sender> {
        match self {
            Sender::Http1(_) => None,
            Sender::Http2(sender) => Some(Sender::Http2(sender.clone())),
        }
    }
}

impl Connection {
    pub(crate) fn new(address: SocketAddr, http2: bool) -> Connection {
        Connection { address, http2, idle: Mutex::default() }
    }

    /// Returns a sender, and whether it reuses an HTTP/1.1 connection. Opens a connection if there is no usable one.
    ///
    /// # Errors The end to record for the request, if no connection can be opened.
    pub(crate) async fn sender(&self) -> Result<(Sender, bool), End> {
        let mut idle = self.idle.lock().await;
        let mut sender = idle.take();
        if let Some(used) = &mut sender
            && !used.is_ready().await
        {
            sender = None;
        }
        let reused = sender.is_some() && !self.http2;
        let sender = match sender {
            Some(sender) => sender,
            None => self.open().await?,
        };
        *idle = sender.shared();
        Ok((sender, reused))
    }

    /// Keeps the connection of a sender for the next request.
    pub(crate) async fn keep(&self, sender: Sender) {
        *self.idle.lock().await = Some(sender);
    }

    async fn open(&self) -> Result<Sender, End> {
        let stream = TcpStream::connect(self.address).await.map_err(|_| End::Refused)?;
        stream.set_nodelay(true).map_err(|_| End::Refused)?;
        let stream = TokioIo::new(stream);
        // The spawned tasks end with the connection. Its errors are returned to the affected requests.
        if self.http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(WINDOW);
            let (sender, connection) = builder.handshake(stream).await.map_err(|error| end_of(&error))?;
            tokio::spawn(connection);
            Ok(Sender::Http2(sender))
        } else {
            let (sender, connection) = http1::handshake(stream).await.map_err(|error| end_of(&error))?;
            tokio::spawn(connection);
            Ok(Sender::Http1(sender))
        }
    }
}

/// Classifies the end of a request that failed with this error.
pub(crate) fn end_of(error: &hyper::Error) -> End {
    if error.is_parse() {
        return End::Malformed;
    }
    let mut cause = error.source();
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => return End::Reset,
            // Invalid chunked transfer coding.
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => return End::Malformed,
            _ => {}
        }
        if error.downcast_ref::<h2::Error>().is_some_and(h2::Error::is_reset) {
            return End::Reset;
        }
        cause = error.source();
    }
    End::Truncated
}
