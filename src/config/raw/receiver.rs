//! The block `queue`: the receiver of the engine's spans.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Queue times from the engine's own spans: tokometer receives the engine's OTLP traces, finds each exchange's span, and
/// passes every message on, unchanged, to where its own traces go (`otlp.traces`). Off until addresses are set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// Where OTLP traces are received, gRPC and HTTP (protobuf) on each: `127.0.0.1:4317`, `localhost:4318`. The engine's
    /// `--otlp-traces-endpoint` points there. Empty: off. Whoever reaches these addresses can send spans: keep them on
    /// the loopback interface.
    pub otlp_listen: Vec<String>,
    /// Milliseconds that the record of an exchange without a queue time waits for its span: the engine sends spans in
    /// batches (vLLM: every 5 s). Where no spans come, few wait.
    #[schemars(range(min = 100, max = 600_000))]
    pub wait_ms: u64,
    /// Most records that wait; further ones go on without their span.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_held: u64,
    /// Most bytes of one message, compression undone; larger ones are refused.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub max_message_bytes: u64,
    /// Most bytes of messages that wait for the collector; when they are that many, the engine is told to send again later.
    #[schemars(range(min = 1024, max = 4_294_967_296_u64))]
    pub max_waiting_bytes: u64,
    /// Most connections at a time; further ones are closed.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_connections: u64,
    /// Milliseconds that a client may take for a request, and be silent before one.
    #[schemars(range(min = 100, max = 600_000))]
    pub read_timeout_ms: u64,
    /// Seconds for which a message is tried to be passed on, before its spans are dropped and counted.
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
