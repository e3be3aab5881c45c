//! User settings of listeners in rewrite mode: the block `rewrite` of the configuration, whose documentation these
//! comments are.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokometer_settings as form;

/// What listeners with `mode: rewrite` change (docs/how-to/rewrite.md), and the limits of their HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// True asks the engine for the token counts of streamed chat and completions requests
    /// (`stream_options.include_usage`) where the client does not, and removes them from the response.
    pub include_usage: bool,
    /// True sends a `traceparent` to the server whose span is tokometer's own, so that the engine's spans become its
    /// children. The client's trace is continued.
    pub traceparent: bool,
    /// True adds an `x-request-id` to requests without one, and to their responses.
    pub request_id: bool,
    /// Maximum size of a request body that `include_usage` changes. Larger ones pass unmodified.
    #[schemars(extend("x-range" = ["1KiB", "256MiB"]))]
    pub max_body: form::Size,
    /// Time after which an idle connection to the server is closed instead of being used again. Keep it below the
    /// server's own timeout (vLLM, SGLang and llama.cpp: 5 s). 0: a new connection for each request.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "1h"]))]
    pub upstream_idle_timeout: Option<Duration>,
    /// Time without a byte of the response after which a request ends with an error. 0: never, because a model may think
    /// for a long time.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "168h"]))]
    pub upstream_read_timeout: Option<Duration>,
    /// How often a request is sent again if a connection to the server that was used before fails before the response
    /// begins. The server may have begun to work on it: a generation is then paid for twice.
    #[schemars(range(min = 0, max = 10))]
    pub upstream_retries: u32,
    /// Time after which an idle connection of a client is closed, or one without complete headers of its next request.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["1s", "168h"]))]
    pub client_idle_timeout: Duration,
    /// Time without a byte of a request's body after which the request ends. On HTTP/2 only for bodies that
    /// `include_usage` may change.
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
    /// True if anything is changed.
    pub fn is_any(&self) -> bool {
        self.include_usage || self.traceparent || self.request_id
    }
}
