//! User settings of listeners in rewrite mode: the block `rewrite` of the configuration. These comments are the block's
//! documentation.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokometer_settings as form;

/// What listeners with `mode: rewrite` change (docs/how-to/rewrite.md), and the limits of their HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// If true, tokometer sets `stream_options.include_usage` in streamed chat and completions requests that do not
    /// request token counts. It removes these counts from the responses.
    pub include_usage: bool,
    /// If true, the server receives a `traceparent` with tokometer's own span, so that the engine's spans become
    /// children of this span. The client's trace is continued.
    pub traceparent: bool,
    /// If true, an `x-request-id` is added to requests that have none, and to their responses.
    pub request_id: bool,
    /// Maximum size of a request body that `include_usage` changes. Larger bodies pass unmodified, and so do bodies for
    /// which `observe.memory` has no room.
    #[schemars(extend("x-range" = ["1KiB", "256MiB"]))]
    pub max_body: form::Size,
    /// Time after which an idle connection to the server is closed instead of being reused. Keep it below the server's
    /// keep-alive timeout (vLLM, SGLang and llama.cpp: 5 s). 0: a new connection for each request.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "1h"]))]
    pub upstream_idle_timeout: Option<Duration>,
    /// Maximum wait for the next bytes of the response, after which the request fails. 0: no limit. Use a value above
    /// the longest time to first token, because the server may send nothing during that time.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "168h"]))]
    pub upstream_read_timeout: Option<Duration>,
    /// Number of times that a request is resent if a reused connection to the server fails before the response begins.
    /// If the server has already started to process the request, it generates the response twice.
    #[schemars(range(min = 0, max = 10))]
    pub upstream_retries: u32,
    /// Time after which a client connection is closed if it is idle, or if its next request's headers are incomplete.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["1s", "168h"]))]
    pub client_idle_timeout: Duration,
    /// Maximum wait for the next bytes of a request body, after which the request ends. On HTTP/2, this applies only to
    /// bodies that `include_usage` may change.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["1s", "168h"]))]
    pub client_read_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            include_usage: false,
            traceparent: false,
            request_id: false,
            max_body: form::Size(16 << 20),
            upstream_idle_timeout: Some(Duration::from_secs(4)),
            upstream_read_timeout: None,
            upstream_retries: 0,
            client_idle_timeout: Duration::from_secs(60),
            client_read_timeout: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// True if any rewrite is enabled.
    pub fn is_any(&self) -> bool {
        self.include_usage || self.traceparent || self.request_id
    }
}
