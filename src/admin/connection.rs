//! A connection of the admin server.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use crate::admin::guard::Client;
use crate::admin::pages;
use crate::admin::pages::Site;
use crate::admin::slots::Slot;

/// Maximum size of the request headers in bytes; larger headers get 431. Scrapers and probes send a few hundred bytes.
const HEAD_BYTES: usize = 16 * 1024;

/// Serves requests until the client closes the connection or is idle for too long, the connection is evicted, or the
/// server stops.
pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: Client,
    slot: Arc<Slot>,
    timeout: Duration,
    site: Arc<Site>,
    mut stopped: watch::Receiver<bool>,
) {
    let io = TokioIo::new(TimedStream::new(stream, Arc::clone(&slot), timeout));
    let service = service_fn(|request| {
        slot.touch();
        let (site, slot) = (Arc::clone(&site), Arc::clone(&slot));
        async move { Ok::<_, Infallible>(pages::response(&request, &site, client, &slot).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(timeout)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(io, service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = slot.evicted() => return,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "A connection to the admin server ended early.");
    }
}

/// A socket with a time limit for the client to read each response.
///
/// The limit applies from the first blocked write until the response, or one event of a stream, is fully written. A
/// client that reads only a few bytes at a time does not extend the limit.
#[derive(Debug)]
struct TimedStream<S> {
    stream: S,
    slot: Arc<Slot>,
    timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> TimedStream<S> {
    fn new(stream: S, slot: Arc<Slot>, timeout: Duration) -> TimedStream<S> {
        TimedStream { stream, slot, timeout, deadline: None }
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let written = write(Pin::new(&mut self.stream), cx);
        if written.is_pending() {
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
            ready!(deadline.as_mut().poll(cx));
            let why = "the client did not read the response in time";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes only after it has written all buffered data, so a flush can complete a response.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.slot.flushed() {
            self.deadline = None;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
