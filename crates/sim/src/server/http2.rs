//! HTTP/2 with prior knowledge (RFC 9113, 3.3). Each stream is forwarded as one request on an in-memory HTTP/1.1
//! connection, as by a gateway in front of a real engine. If that connection is cut, the stream is reset.

use std::sync::Arc;

use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::server::engine::Engine;
use crate::server::http::Client;
use crate::server::request;

/// Maximum concurrent streams per connection; the client has to wait before opening more.
const STREAMS: u32 = 1000;

/// Flow-control window in bytes for request bodies.
const WINDOW: u32 = 1 << 20;

/// Buffer in bytes between a stream and its HTTP/1.1 connection.
const BUFFER_BYTES: usize = 64 * 1024;

/// Serves a connection until either side closes it.
pub(crate) async fn serve(client: Client, engine: Arc<Engine>) {
    let (stream, inbox) = client.into_parts();
    let (read, write) = tokio::io::split(stream);
    let stream = tokio::io::join(std::io::Cursor::new(inbox).chain(read), write);
    let (sender, mut opened) = mpsc::unbounded_channel();
    let service = service_fn(|request| {
        let (gateway, server) = tokio::io::duplex(BUFFER_BYTES);
        // The receiver outlives the connection that calls this service.
        sender.send(server).ok();
        forward(gateway, request)
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(STREAMS).auto_date_header(false);
    builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            // The connection's error is returned on its streams, so it is not handled here.
            _ = connection.as_mut() => return,
            Some(stream) = opened.recv() => {
                let engine = Arc::clone(&engine);
                streams.spawn(async move { request::serve_requests(Client::new(Box::new(stream)), &engine).await });
            }
            Some(ended) = streams.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "simulated server stream panicked");
                }
            }
            () = tokio::time::sleep(engine.settings.idle_timeout), if streams.is_empty() => {
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Sends one request over an HTTP/1.1 connection.
async fn forward(stream: DuplexStream, request: Request<Incoming>) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // This task ends with the response. `send_request` and the response body also return the connection's errors.
    tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    head.version = Version::HTTP_11;
    head.uri = head.uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
    sender.send_request(Request::from_parts(head, body)).await
}
