//! How a request ended.

use tokometer_metrics::closed_enum;

closed_enum! {
    /// How a request ended. Each request has exactly one outcome, recorded once.
    pub enum Outcome {
        /// The response is complete and not empty. An empty response counts as `ok` if it is a redirect (300-399), or
        /// if the request only loads a model or asks for a background response.
        Ok = "ok",
        /// The client disconnected before the first token, or aborted the request with a call such as `/abort_request`.
        ClientAbortBeforeFirstToken = "client_abort_before_first_token",
        /// The client disconnected between the first token and the end of the response, or aborted the request with a
        /// call such as `/abort_request`.
        ClientAbortMidStream = "client_abort_mid_stream",
        /// The server could not be reached, or closed an HTTP/2 connection (GOAWAY) before it processed the request.
        UpstreamRefused = "upstream_refused",
        /// The server reset the connection or the HTTP/2 stream.
        UpstreamReset = "upstream_reset",
        /// The server did not accept the connection within the configured timeout, or no data arrived within the idle
        /// timeout.
        UpstreamTimeout = "upstream_timeout",
        /// The server closed the connection before the end of the message, or ended the stream without its end marker.
        Truncated = "truncated",
        /// After status 200, the stream contains an error event, or a finish reason that reports an error.
        ErrorInStream = "error_in_stream",
        /// A status from 400 to 499, except 429.
        Http4xx = "http_4xx",
        /// A status from 500 to 599, except 503 and 529.
        Http5xx = "http_5xx",
        /// The server is overloaded: status 429, 503 or 529, or a refused HTTP/2 stream.
        RejectedBusy = "rejected_busy",
        /// The response is complete, with status 200, but has no tokens.
        NoOutput = "no_output",
        /// The proxy closed the connection because the grace period of a drain had ended.
        Drained = "drained",
        /// The request was not observed to its end, because its connection could not be parsed further or a limit was
        /// reached. Its bytes were forwarded.
        Unobserved = "unobserved",
    }
}

impl Outcome {
    /// True for [`Outcome::Ok`] only.
    pub fn is_ok(self) -> bool {
        self == Outcome::Ok
    }

    /// True if the client cancelled the request.
    pub fn is_client_abort(self) -> bool {
        matches!(self, Outcome::ClientAbortBeforeFirstToken | Outcome::ClientAbortMidStream)
    }
}
