//! Handles an accepted connection: TLS, the connection to the server, and the handover to the relay.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream as Accepted;
use pingora::server::ShutdownWatch;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::listen::descriptor;
use crate::listen::handler::{Client, Handler, Route};
use crate::listen::tls::Protocol;
use crate::listen::tls::rotation::Rotating;
use crate::listen::upstream::Upstream;
use crate::listen::upstream::own::canonical;
use crate::relay::{Evicted, Full, Phase, Relay, Stream, Unreached};
use tokometer_observe::input::{Close, Side};

/// Timeout of the TLS handshake with the client.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// The pingora application that serves the connections of one listener.
#[derive(Clone)]
pub(crate) struct Frontend {
    pub(crate) relay: Arc<Relay>,
    pub(crate) listener: usize,
    pub(crate) tls: Option<Arc<Rotating<TlsAcceptor>>>,
    pub(crate) upstream: Arc<Upstream>,
    /// Set in rewrite mode.
    pub(crate) rewrite: Option<Arc<dyn Handler>>,
}

#[async_trait]
impl ServerApp for Frontend {
    /// Takes the socket out of pingora's stream and serves it.
    async fn process_new(self: &Arc<Self>, accepted: Accepted, _: &ShutdownWatch) -> Option<Accepted> {
        let peer = accepted.get_socket_digest().and_then(|digest| digest.peer_addr()?.as_inet().copied());
        let peer = peer.map(canonical);
        if let Ok(socket) = descriptor::take(accepted) {
            // Once the server is connected, a separate task (`RelayedConnection`) handles the drain. This branch covers
            // the time before.
            tokio::select! {
                () = self.serve(socket, peer) => {}
                () = self.relay.drain().reached(Phase::Forced) => {}
            }
        }
        None
    }
}

impl Frontend {
    async fn serve(&self, socket: Stream, peer: Option<SocketAddr>) {
        let (upstream, route) = self.upstream.route(&socket, peer);
        if let Some(handler) = &self.rewrite {
            return Box::pin(self.rewrite(handler, socket, peer, upstream, route)).await;
        }
        let mut accepted = match self.relay.accept(self.listener, Arc::clone(&upstream), peer) {
            Ok(accepted) => accepted,
            Err(why) => return self.refuse(socket, why),
        };
        let opened = accepted.ticket.unless_evicted(self.open(socket, route)).await;
        let (client, why, error) = match opened {
            None => return accepted.evict(),
            Some(None) => return accepted.end(Close::Reset(Side::Client)),
            Some(Some((client, Ok(server)))) => {
                self.relay.stats_of(self.listener).connected.add(1);
                // Spawned as a separate task, so that this function's large future is freed while bytes are relayed.
                return drop(tokio::spawn(accepted.join(client, server)));
            }
            Some(Some((client, Err((why, error))))) => (client, why, error),
        };
        tracing::warn!(%upstream, reason = why.as_str(), error, "The server cannot be reached.");
        Box::pin(accepted.refuse(client, why, &upstream, &error)).await;
    }

    /// The client's stream and a connection to the server, or the reason why there is none. `None` if the client's
    /// handshake failed.
    async fn open(
        &self,
        socket: Stream,
        route: io::Result<Route>,
    ) -> Option<(Stream, Result<Stream, (Unreached, String)>)> {
        let (client, protocol) = self.handshake(socket).await?;
        let connect = async { self.upstream.connect(route?, protocol).await };
        let connected = match self.relay.settings().connect_timeout {
            None => Ok(connect.await),
            Some(limit) => timeout(limit, connect).await,
        };
        let server = match connected {
            Ok(Ok(server)) => Ok(server),
            Ok(Err(error)) => Err((Unreached::of(&error), error.to_string())),
            Err(_) => Err((Unreached::Timeout, "the connection timed out".to_owned())),
        };
        Some((client, server))
    }

    /// Serves the connection in rewrite mode. For each request, pingora opens a connection to the server or reuses an
    /// idle one.
    async fn rewrite(
        &self,
        handler: &Arc<dyn Handler>,
        socket: Stream,
        peer: Option<SocketAddr>,
        upstream: Arc<str>,
        route: io::Result<Route>,
    ) {
        let mut admitted = match self.relay.admit_for_requests(self.listener, peer) {
            Ok(admitted) => admitted,
            Err(why) => return self.refuse(socket, why),
        };
        let Ok(route) = route else { return socket.reset() };
        let Some(handshake) = admitted.ticket.unless_evicted(self.handshake(socket)).await else {
            return self.relay.stats_of(self.listener).evicted(Evicted::Incomplete).add(1);
        };
        if let Some((client, protocol)) = handshake {
            let http2 = protocol == Protocol::Http2;
            let requests = Arc::clone(&admitted.requests);
            let connection = Client { peer, upstream, route, http2, requests };
            // Spawned as a separate task: otherwise every event would also poll the futures around this one.
            drop(tokio::spawn(admitted.serve(Arc::clone(handler).serve(client, connection))));
        }
    }

    fn refuse(&self, socket: Stream, why: Full) {
        match self.tls {
            // With TLS, no response is possible before the handshake.
            Some(_) => socket.reset(),
            None => self.relay.refuse(socket, why),
        }
    }

    /// The client's stream, decrypted if TLS is configured, and the negotiated protocol. `None` if the handshake
    /// failed.
    async fn handshake(&self, socket: Stream) -> Option<(Stream, Protocol)> {
        let Some(acceptor) = &self.tls else { return Some((socket, Protocol::Http1)) };
        // Large and rare parts are boxed, here and above, because this future exists once per connection.
        let handshake = async { acceptor.get().await.accept(socket).await };
        match Box::pin(self.relay.drain().in_time(HANDSHAKE_TIMEOUT, handshake)).await {
            Some(Ok(stream)) => {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(Protocol::Http2.alpn());
                let protocol = if is_http2 { Protocol::Http2 } else { Protocol::Http1 };
                Some((Box::new(TlsStream::from(stream)), protocol))
            }
            _ => {
                self.relay.stats_of(self.listener).handshake_failures.add(1);
                None
            }
        }
    }
}
