//! An HTTP/2 connection with prior knowledge (RFC 9113, 3.3), shared by many clients.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::load::client::Measured;
use crate::load::events::Found;
use crate::load::request::Request;
use crate::load::summary::End;

/// Clients per connection: the minimum that servers should allow (RFC 9113, 6.5.2).
pub(crate) const STREAMS: usize = 100;

/// Flow-control window in bytes, per stream and per connection.
const STREAM_WINDOW: u32 = 1 << 20;
const WINDOW: u32 = 1 << 26;

/// The crate's limit on buffered small frames, an attack defence; token streams consist of such frames.
const SMALL_FRAMES: usize = 1 << 24;

/// A connection, opened on first use.
#[derive(Debug)]
pub(crate) struct Connection {
    address: SocketAddr,
    request: Arc<Request>,
    live: Mutex<Option<Live>>,
}

/// An open connection.
#[derive(Debug)]
struct Live {
    sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    pub(crate) fn new(address: SocketAddr, request: Arc<Request>) -> Connection {
        Connection { address, request, live: Mutex::default() }
    }

    /// Returns a stream sender, on a new connection if there is no usable one.
    async fn sender(&self) -> Result<SendRequest<Bytes>, End> {
        let mut live = self.live.lock().await;
        if let Some(open) = live.as_ref()
            && let Ok(sender) = open.sender.clone().ready().await
        {
            return Ok(sender);
        }
        let stream = TcpStream::connect(self.address).await.map_err(|_| End::Refused)?;
        stream.set_nodelay(true).map_err(|_| End::Refused)?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(WINDOW);
        builder.data_frame_budget(SMALL_FRAMES).enable_push(false);
        let (sender, connection) = builder.handshake(stream).await.map_err(|error| end_of(&error))?;
        let driver = tokio::spawn(async move {
            // Each affected stream receives the error itself.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "load generator connection failed");
            }
        });
        let sender = live.insert(Live { sender, driver }).sender.clone();
        sender.ready().await.map_err(|error| end_of(&error))
    }

    /// Sends the request and reads the response until it ends or the client aborts it.
    pub(crate) async fn round_trip(&self, measured: &mut Measured<'_>) -> io::Result<End> {
        let mut sender = match self.sender().await {
            Ok(sender) => sender,
            Err(end) => return Ok(end),
        };
        match self.ask(&mut sender, measured).await {
            Ok(end) => Ok(end),
            Err(error) => Ok(end_of(&error)),
        }
    }

    async fn ask(&self, sender: &mut SendRequest<Bytes>, measured: &mut Measured<'_>) -> Result<End, h2::Error> {
        let Request { authority, path, headers, body, .. } = self.request.as_ref();
        let mut head = http::Request::post(format!("http://{authority}{path}"));
        for (name, value) in headers {
            head = head.header(name.to_ascii_lowercase(), value);
        }
        let Ok(head) = head.header("content-length", body.len()).body(()) else { return Ok(End::Malformed) };
        let (response, mut stream) = sender.send_request(head, false)?;
        stream.send_data(body.clone(), true)?;
        measured.asked();
        let response = response.await?;
        let content_type = response.headers().get(http::header::CONTENT_TYPE);
        measured.head(response.status().as_u16(), content_type.map(|value| value.as_bytes()).unwrap_or_default());
        let mut body = response.into_body();
        while let Some(bytes) = body.data().await {
            let bytes = bytes?;
            let now = Instant::now();
            let mut found = Found::default();
            measured.body(&bytes, &mut found);
            measured.read(bytes.len(), found, now);
            body.flow_control().release_capacity(bytes.len())?;
            if measured.is_given_up() {
                stream.send_reset(Reason::CANCEL);
                return Ok(End::Aborted);
            }
        }
        body.trailers().await?;
        Ok(measured.end())
    }
}

/// Maps an HTTP/2 error to the end of the request.
fn end_of(error: &h2::Error) -> End {
    match () {
        () if error.is_reset() => End::Reset,
        () if error.is_io() || error.is_go_away() => End::Truncated,
        () => End::Malformed,
    }
}
