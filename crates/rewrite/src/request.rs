//! State of a request in rewrite mode.

use std::sync::Arc;

use bytes::Bytes;
use tokometer_wire::budget::{Account, Share};

use crate::body::Body;
use crate::body::strip_usage::StripUsage;
use crate::client::Connection;
use crate::message::Messages;
use tokometer_observe::input::TraceParent;

/// Indices of [`RequestState::shares`]: large headers of the request on HTTP/2 and of the response, and pingora's copy
/// of the body.
pub(crate) const REQUEST: usize = 0;
pub(crate) const RESPONSE: usize = 1;
pub(crate) const COPY: usize = 2;

/// State of one request.
#[derive(Default)]
pub(crate) struct RequestState {
    pub(crate) connection: Option<Arc<Connection>>,
    pub(crate) messages: Option<Messages>,
    /// Sent to the server and added to the response.
    pub(crate) request_id: Option<String>,
    pub(crate) trace: Option<TraceParent>,
    /// The trace is new, not the client's.
    pub(crate) new_trace: bool,
    /// `include_usage` may change this request.
    pub(crate) candidate: bool,
    pub(crate) body: Option<Body>,
    /// The body, read before the headers were sent, so its size is known.
    pub(crate) read: Option<Bytes>,
    /// The part of the body that was read before the headers were sent, if the rest is forwarded as it arrives. After
    /// it is sent, there is no retry.
    pub(crate) begun: Option<Body>,
    pub(crate) is_begun: bool,
    /// Charges memory that this request uses to the budget. Created when needed.
    pub(crate) account: Option<Account>,
    /// Memory that pingora holds for this request.
    pub(crate) shares: [Option<Share>; 3],
    /// The body was decompressed.
    pub(crate) decoded: bool,
    /// `include_usage` was added to the body.
    pub(crate) injected: bool,
    pub(crate) strip: Option<StripUsage>,
    /// A connection to the server was established.
    pub(crate) connected: bool,
    pub(crate) upgraded: bool,
    /// Number of pieces of the request's body so far.
    pub(crate) pieces: u32,
    /// `passed`: bytes of the request's body passed to the server in this attempt. `shown`: bytes passed to the
    /// observer; a retry sends them again.
    pub(crate) passed: usize,
    pub(crate) shown: usize,
    /// The outcome for a body of unknown length was counted.
    pub(crate) counted: bool,
}

impl RequestState {
    /// Adds to the messages of this request.
    pub(crate) fn messages(&mut self, add: impl FnOnce(&mut Messages)) {
        if let Some(messages) = &mut self.messages {
            add(messages);
        }
    }
}
