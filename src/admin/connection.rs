//! One connection of the admin server.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::admin::Settings;
use crate::admin::pages;
use crate::admin::pages::Site;

/// Most bytes of a request head; a longer one gets 431. Scrapers and probes send a few hundred.
const HEAD_BYTES: usize = 16 * 1024;

/// Serves requests until the client leaves, is silent for too long, or the server stops.
pub(super) async fn serve(
    stream: TcpStream,
    settings: Arc<Settings>,
    site: Arc<Site>,
    mut stopped: watch::Receiver<bool>,
) {
    // Small answers should not wait for an acknowledgement; without it they are only slower.
    stream.set_nodelay(true).ok();
    // A client that asks and does not read would hold its place for ever; enough of them would keep probes out.
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(settings.header_timeout)).ok();
    let service = service_fn(move |request| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(pages::answer(&request, &site).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "A connection to the admin server ended early.");
    }
}

/// Answers a connection for which there is no room, as far as the socket takes it at once, and closes it.
pub(super) fn refuse(stream: &TcpStream, most: usize) {
    let body = format!(
        "{{\"error\":{{\"message\":\"the admin server has {most} connections already; raise admin.max_connections\"}}}}\n"
    );
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.try_write(answer.as_bytes()).ok();
}
