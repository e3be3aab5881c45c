//! The block `queue`: the receiver of the engine's spans.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Queue times from the engine's own spans: tokometer receives the engine's OTLP traces, matches their spans to
/// requests, and forwards every message unmodified to the destination of its own traces (`otlp.traces`). Off until
/// addresses are set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// Addresses that receive OTLP traces, gRPC and HTTP (protobuf) on each: `127.0.0.1:4317`, `localhost:4318`. Set
    /// the engine's `--otlp-traces-endpoint` to one of them. Empty: off. Anyone who can reach these addresses can send
    /// spans: keep them on the loopback interface.
    pub otlp_listen: Vec<String>,
    /// Milliseconds that the record of a request without a queue time waits for its span: engines send spans in batches
    /// (vLLM: every 5 s). If no spans arrive, only a few records wait.
    #[schemars(range(min = 100, max = 600_000))]
    pub wait_ms: u64,
    /// Maximum number of waiting records; further ones are recorded without their span.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_held: u64,
    /// Maximum bytes of one message after decompression; larger ones are rejected.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub max_message_bytes: u64,
    /// Maximum bytes of messages waiting for the collector; above it, the engine is asked to retry later.
    #[schemars(range(min = 1024, max = 4_294_967_296_u64))]
    pub max_waiting_bytes: u64,
    /// Maximum number of open connections; further ones are closed.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_connections: u64,
    /// Maximum milliseconds for a client to send a request, and for a connection to be idle before one.
    #[schemars(range(min = 100, max = 600_000))]
    pub read_timeout_ms: u64,
    /// Seconds during which forwarding of a message is retried; after that its spans are dropped and counted.
    #[schemars(range(min = 1, max = 86_400))]
    pub forward_secs: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            otlp_listen: Vec::new(),
            wait_ms: 8_000,
            max_held: 4_096,
            max_message_bytes: 4_194_304,
            max_waiting_bytes: 33_554_432,
            max_connections: 32,
            read_timeout_ms: 10_000,
            forward_secs: 300,
        }
    }
}
