//! A simulated inference server: what engines do on the wire, without a model behind it.
//!
//! It answers the OpenAI, Anthropic and Cohere paths in the shapes that vLLM 0.32.0 was recorded with: the headers come at
//! once, also while a request waits in the queue; each event is one HTTP chunk; the role event comes with the first token;
//! the finish, usage and `[DONE]` events and the terminator come in one write. The native paths of SGLang, LMDeploy,
//! llama.cpp, TGI, Ollama, Triton and vLLM are answered as those engines do, heads and framing included; the setting
//! `imitate` or the request header `x-sim-engine` makes another engine answer chat. All of it is there over HTTP/2 with
//! prior knowledge too, on the same port, as a gateway would show it; and `/v1/realtime` is a WebSocket, vLLM's for who
//! connects without a model and OpenAI's for who names one. Faults come by chance, by the request header `x-sim-fault:
//! NAME[:ARG]`, or by asking for the model `fault/NAME[:ARG]`, and take each API's form.

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
    /// The address could not be listened on.
    #[error("the simulated server cannot listen on {address}: {source}; choose another address or port 0")]
    Listen {
        /// The address from the settings.
        address: Listen,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A running simulated server. Dropping it ends it, and every connection with it.
#[derive(Debug)]
pub struct Simulator {
    local_address: SocketAddr,
    engine: Arc<Engine>,
    accepting: JoinHandle<()>,
}

impl Simulator {
    /// Listens, and serves on the runtime of the caller from then on.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn start(settings: Settings) -> Result<Simulator, Error> {
        let listen = |source| Error::Listen { address: settings.listen.clone(), source };
        let listener = Listener::bind(&settings.listen).map_err(listen)?;
        let local_address = listener.local_address().map_err(listen)?;
        let (tracer, sending) = settings.traces.clone().map(Tracer::new).unzip();
        // It ends with the engine, after it has sent what there is.
        sending.map(tokio::spawn);
        let engine = Arc::new(Engine::new(settings, tracer));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&engine)));
        Ok(Simulator { local_address, engine, accepting })
    }

    /// Where it listens: the unspecified address when that is a Unix socket.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// What it did so far: the truth to hold measurements against.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Closes the listener and every connection, whatever state it is in, and returns when that is done.
    pub async fn stop(mut self) -> Stats {
        self.accepting.abort();
        // The only way for this task to end is the abort above.
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

/// Accepts until it is aborted; the connections live in the set, so that they end with it.
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
                // Out of file descriptors, or a client that was gone again: both pass.
                Err(error) => {
                    tracing::warn!(%error, "the simulated server could not accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            },
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection of the simulated server panicked");
                }
            }
        }
    }
}
