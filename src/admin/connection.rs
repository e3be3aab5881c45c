//! A connection of the admin server.

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
use crate::admin::guard::Ends;
use crate::admin::paced::Paced;
use crate::admin::pages;
use crate::admin::pages::Site;
use crate::admin::places::Place;

/// Maximum bytes of the request headers; longer ones get 431. Scrapers and probes send a few hundred.
const HEAD_BYTES: usize = 16 * 1024;

/// Serves requests until the client closes the connection or is idle for too long, the connection is evicted, or the
/// server stops.
pub(super) async fn serve(
    stream: TcpStream,
    ends: Ends,
    place: Arc<Place>,
    settings: Arc<Settings>,
    site: Arc<Site>,
    mut stopped: watch::Receiver<bool>,
) {
    // Small responses must not wait for an acknowledgement; if this fails, they are only slower.
    stream.set_nodelay(true).ok();
    // Limits how long data stays in the socket buffer after the response is written.
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(settings.header_timeout)).ok();
    let io = TokioIo::new(Paced::new(stream, Arc::clone(&place), settings.header_timeout));
    let service = service_fn(|request| {
        place.touch();
        let (site, place) = (Arc::clone(&site), Arc::clone(&place));
        async move { Ok::<_, Infallible>(pages::answer(&request, &site, ends, &place).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(io, service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = place.evicted() => return,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "A connection to the admin server ended early.");
    }
}
