//! HTTP/2 with prior knowledge (RFC 9113, 3.3). Each stream is served as an HTTP/1.1 connection with one request, like
//! a gateway in front of a real engine does. A cut connection there becomes a reset stream here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;

use crate::body::{Delimiter, Progress};
use crate::server::engine::Engine;
use crate::server::http::{BODY_BYTES, Client, Wire};
use crate::server::request;

/// Concurrent streams per connection; a client has to wait with further ones.
const STREAMS: u32 = 1000;

/// Flow-control window in bytes for request bodies.
const WINDOW: u32 = 1 << 20;

/// Maximum number of headers in a response.
const HEADERS: usize = 32;

/// Serves a connection until either side closes it.
pub(crate) async fn serve(stream: Client, engine: Arc<Engine>) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(STREAMS).initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    streams.spawn(reply(request, respond, Arc::clone(&engine)));
                }
                Some(Err(_)) | None => return,
            },
            Some(ended) = streams.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "simulated server stream panicked");
                }
            }
            () = tokio::time::sleep(engine.settings.idle_timeout), if streams.is_empty() => connection.graceful_shutdown(),
        }
    }
}

async fn reply(request: Request<RecvStream>, respond: SendResponse<Bytes>, engine: Arc<Engine>) {
    let (head, body) = request.into_parts();
    // The client reset the stream, so no response is sent.
    let Some(body) = whole(body).await else { return };
    let is_head = head.method == http::Method::HEAD;
    let stream = Stream { request: rendered(&head, &body), respond, reply: Reply::Head, is_head };
    request::serve_requests(Client::new(Box::new(stream)), &engine).await;
}

/// Reads the whole request body.
async fn whole(mut body: RecvStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.ok()?;
        if bytes.len() + part.len() > BODY_BYTES {
            return None;
        }
        bytes.extend_from_slice(&part);
        body.flow_control().release_capacity(part.len()).ok()?;
    }
    Some(bytes)
}

/// Renders a request as HTTP/1.1.
fn rendered(head: &http::request::Parts, body: &[u8]) -> Bytes {
    let mut bytes = Vec::new();
    let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    bytes.extend_from_slice(format!("{} {path} HTTP/1.1\r\n", head.method).as_bytes());
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != http::header::CONTENT_LENGTH) {
        bytes.extend_from_slice(format!("{name}: ").as_bytes());
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(body);
    bytes.into()
}

/// A stream presented as an HTTP/1.1 connection: the request can be read and a response written.
#[derive(Debug)]
struct Stream {
    /// Request bytes not read yet.
    request: Bytes,
    respond: SendResponse<Bytes>,
    reply: Reply,
    is_head: bool,
}

/// State of the response.
#[derive(Debug)]
enum Reply {
    Head,
    Body(SendStream<Bytes>, Delimiter),
    Over,
}

fn broken(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, error)
}

impl Stream {
    /// Resets a stream whose response is incomplete.
    fn give_up(&mut self, reason: Reason) {
        match std::mem::replace(&mut self.reply, Reply::Over) {
            Reply::Head => self.respond.send_reset(reason),
            Reply::Body(mut stream, _) => stream.send_reset(reason),
            Reply::Over => {}
        }
    }

    /// Sends the headers, which arrive in one write; any bytes after them belong to the body.
    fn head(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        let Ok(httparse::Status::Complete(length)) = parsed.parse(bytes) else {
            self.give_up(Reason::INTERNAL_ERROR);
            return Ok(());
        };
        let mut response = Response::builder().status(parsed.code.unwrap_or_default());
        let mut delimiter = Delimiter::Close;
        for header in parsed.headers.iter() {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("transfer-encoding") {
                delimiter = Delimiter::chunked();
            }
            if is("content-length") {
                let length = std::str::from_utf8(header.value).ok().and_then(|value| value.parse().ok());
                delimiter = Delimiter::Length(length.unwrap_or(0));
            }
            // Connection-specific headers are not allowed in HTTP/2 (RFC 9113, 8.2.2).
            if !(is("transfer-encoding") || is("connection") || is("keep-alive")) {
                response = response.header(header.name.to_ascii_lowercase(), header.value);
            }
        }
        let response = response.body(()).map_err(io::Error::other)?;
        let empty = self.is_head || delimiter == Delimiter::Length(0);
        let stream = self.respond.send_response(response, empty).map_err(broken)?;
        self.reply = if empty { Reply::Over } else { Reply::Body(stream, delimiter) };
        self.body(bytes.get(length..).unwrap_or_default())
    }

    fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Reply::Body(stream, delimiter) = &mut self.reply else { return Ok(()) };
        let mut data = Vec::new();
        match delimiter.take(bytes, |part| data.extend_from_slice(part)) {
            Progress::More if data.is_empty() => Ok(()),
            Progress::More => stream.send_data(data.into(), false).map_err(broken),
            Progress::End => {
                let sent = stream.send_data(data.into(), true).map_err(broken);
                self.reply = Reply::Over;
                sent
            }
            Progress::Broken => {
                self.give_up(Reason::INTERNAL_ERROR);
                Ok(())
            }
        }
    }
}

impl AsyncRead for Stream {
    /// Stays pending after the request until the client disconnects or the response ends.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.request.is_empty() {
            let length = self.request.len().min(buf.remaining());
            buf.put_slice(&self.request.split_to(length));
            return Poll::Ready(Ok(()));
        }
        let this = &mut *self;
        let reset = match &mut this.reply {
            Reply::Head => this.respond.poll_reset(cx),
            Reply::Body(stream, _) => stream.poll_reset(cx),
            Reply::Over => return Poll::Ready(Ok(())),
        };
        reset.map(|_| Ok(()))
    }
}

impl AsyncWrite for Stream {
    /// Accepts all of the bytes as soon as the client accepts any.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = match &mut this.reply {
            Reply::Head => this.head(bytes),
            Reply::Body(stream, _) => {
                stream.reserve_capacity(bytes.len().max(1));
                if stream.capacity() == 0 {
                    match stream.poll_capacity(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Some(Ok(_))) => {}
                        Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(broken(error))),
                        Poll::Ready(None) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                    }
                }
                this.body(bytes)
            }
            Reply::Over => Err(io::ErrorKind::BrokenPipe.into()),
        };
        Poll::Ready(written.map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Wire for Stream {
    fn reset(&mut self) {
        self.give_up(Reason::CANCEL);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.give_up(Reason::INTERNAL_ERROR);
    }
}
