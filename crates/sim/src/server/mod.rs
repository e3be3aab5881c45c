//! A simulated inference server: it imitates the responses of engines, without a model.
//!
//! The OpenAI, Anthropic and Cohere paths respond in the format that was recorded from vLLM 0.32.0: headers are sent
//! immediately, even while a request is queued; each event is one HTTP chunk; the role event is sent with the first
//! token; the finish, usage and `[DONE]` events and the terminating chunk are one write. The native paths of SGLang,
//! LMDeploy, llama.cpp, TGI, Ollama, Triton and vLLM respond like those engines, headers and framing included. The
//! setting `imitate` or the request header `x-sim-engine` selects the engine for chat.
//!
//! Everything is also available over HTTP/2 with prior knowledge on the same port, as a gateway would present it.
//! `/v1/realtime` is a WebSocket: vLLM's without a model in the query, OpenAI's with one.
//!
//! Faults are injected at random, by the request header `x-sim-fault: NAME[:ARG]`, or by the model name
//! `fault/NAME[:ARG]`, in the format of each API.

mod dialect;
mod engine;
mod fault;
mod generation;
mod http;
mod http2;
mod pacer;
mod realtime;
mod request;
mod settings;
mod spans;

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::task::{JoinHandle, JoinSet};

use crate::server::engine::Engine;
use crate::server::http::{Client, Wire};
use crate::server::spans::Tracer;

pub use crate::server::engine::Stats;
pub use crate::server::fault::Fault;
pub use crate::server::settings::{Imitation, Listen, Pace, STAMP_DIGITS, Settings, Text, Traces};

/// The simulated server could not listen.
#[derive(Debug, thiserror::Error)]
#[error("the simulated server cannot listen on {address}: {source}; use another address or port 0")]
pub struct Error {
    address: Listen,
    source: io::Error,
}

/// A running simulated server. Dropping it stops it and closes every connection.
#[derive(Debug)]
pub struct Simulator {
    local_address: SocketAddr,
    engine: Arc<Engine>,
    accepting: JoinHandle<()>,
}

impl Simulator {
    /// Listens, and serves on the caller's runtime.
    ///
    /// # Errors
    /// If listening on the address fails.
    pub async fn start(settings: Settings) -> Result<Simulator, Error> {
        let listen = |source| Error { address: settings.listen.clone(), source };
        let listener = Listener::bind(&settings.listen).map_err(listen)?;
        let local_address = listener.local_address().map_err(listen)?;
        let (tracer, sending) = settings.traces.clone().map(Tracer::new).unzip();
        // This task ends with the engine, after it has sent the remaining spans.
        sending.map(tokio::spawn);
        let engine = Arc::new(Engine::new(settings, tracer));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&engine)));
        Ok(Simulator { local_address, engine, accepting })
    }

    /// The listen address; the unspecified address for a Unix socket.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Counters so far: the ground truth for measurements.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Closes the listener and every connection, in any state; returns when all are closed.
    pub async fn stop(mut self) -> Stats {
        self.accepting.abort();
        // The task can only end by the abort above.
        if let Err(error) = (&mut self.accepting).await {
            debug_assert!(error.is_cancelled(), "the accept loop panicked: {error}");
        }
        self.stats()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Accepts connections until aborted. Their tasks are in a `JoinSet`, so that they are aborted with it.
async fn accept(listener: Listener, engine: Arc<Engine>) {
    let mut connections = JoinSet::new();
    if let Some(pacer) = engine.pacer.clone() {
        connections.spawn(async move { pacer.spin().await });
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    connections.spawn(serve(stream, Arc::clone(&engine)));
                }
                // Out of file descriptors, or the client already disconnected: both are temporary.
                Err(error) => {
                    tracing::warn!(%error, "simulated server failed to accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            },
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "simulated server connection panicked");
                }
            }
        }
    }
}

/// A listening socket; the file of a Unix socket is removed on drop.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self
            && let Err(error) = std::fs::remove_file(&*path)
        {
            tracing::debug!(%error, path = %path.display(), "simulated server socket file was already removed");
        }
    }
}

impl Listener {
    fn bind(listen: &Listen) -> io::Result<Listener> {
        match listen {
            Listen::Tcp(address) => {
                let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                // Load tests open thousands of connections at once.
                Ok(Listener::Tcp(socket.listen(4096)?))
            }
            Listen::Unix(path) => Ok(Listener::Unix(UnixListener::bind(path)?, path.clone())),
        }
    }

    /// The TCP address; the unspecified address for a Unix socket.
    fn local_address(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Unix(..) => Ok((Ipv6Addr::UNSPECIFIED, 0).into()),
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Wire>> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Listener::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Serves a connection until either side closes it.
async fn serve(stream: Box<dyn Wire>, engine: Arc<Engine>) {
    if let Some(client) = request::serve_requests(Client::new(stream), &engine).await {
        http2::serve(client, engine).await;
    }
}
