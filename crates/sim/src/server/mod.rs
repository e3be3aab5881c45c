//! A simulated inference server: the wire behaviour of engines, without a model.
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

mod api;
mod connection;
mod dialect;
mod engine;
mod exchange;
mod fault;
mod form;
mod front;
mod generation;
mod histogram;
mod http;
mod http2;
mod job;
mod listener;
mod metrics;
mod pacer;
mod prompt;
mod realtime;
mod schedule;
mod settings;
mod spans;
mod vocabulary;
mod websocket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio::task::JoinSet;

use crate::server::engine::Engine;
use crate::server::listener::Listener;
use crate::server::spans::Tracer;

pub use crate::server::api::Imitation;
pub use crate::server::api::UnknownImitation;
pub use crate::server::engine::Stats;
pub use crate::server::fault::Fault;
pub use crate::server::fault::UnknownFault;
pub use crate::server::settings::Listen;
pub use crate::server::settings::Pace;
pub use crate::server::settings::STAMP_DIGITS;
pub use crate::server::settings::Settings;
pub use crate::server::settings::Text;
pub use crate::server::spans::OtlpProtocol;
pub use crate::server::spans::Traces;

/// Why the simulated server could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Listening on the address failed.
    #[error("the simulated server cannot listen on {address}: {source}; use another address or port 0")]
    Listen {
        /// The address from the settings.
        address: Listen,
        /// The error from the kernel.
        source: io::Error,
    },
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
        let listen = |source| Error::Listen { address: settings.listen.clone(), source };
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

    /// Closes the listener and every connection in any state, and returns once that is done.
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

/// Accepts until aborted; the connections live in the task set, so that they end with it.
async fn accept(listener: Listener, engine: Arc<Engine>) {
    let mut connections = JoinSet::new();
    if engine.pacer.is_some() {
        let engine = Arc::clone(&engine);
        connections.spawn(async move {
            if let Some(pacer) = &engine.pacer {
                pacer.spin().await;
            }
        });
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    connections.spawn(connection::serve(stream, Arc::clone(&engine)));
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
