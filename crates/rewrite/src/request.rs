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

/// What happens to the body of a request.
#[derive(Default)]
pub(crate) enum RequestBody {
    /// It is forwarded unchanged, as it arrives.
    #[default]
    Unchanged,
    /// `include_usage` may change it. Nothing has been read in this attempt.
    Candidate,
    /// It is forwarded unchanged, because it is too large. This part was read before the headers were sent.
    TooLarge(Body),
    /// It was read before the headers were sent, so its size is known. It may have been changed.
    Read {
        bytes: Bytes,
        /// It was decompressed.
        decoded: bool,
    },
    /// Its size is not known, so the headers are sent first. It is collected, and changed when it is complete.
    Collected(Body),
}

/// State of one request.
#[derive(Default)]
pub(crate) struct RequestState {
    pub(crate) connection: Option<Arc<Connection>>,
    pub(crate) messages: Option<Messages>,
    /// Sent to the server and added to the response.
    pub(crate) request_id: Option<String>,
    /// Sent to the server, and whether it is new, not the client's.
    pub(crate) trace: Option<(TraceParent, bool)>,
    pub(crate) body: RequestBody,
    /// A part of the body was read, or asked for with `100 Continue`, before the headers were sent. A request whose body
    /// is then forwarded as it arrives cannot be sent again.
    pub(crate) is_begun: bool,
    /// Charges memory that this request uses to the budget. Created when needed.
    pub(crate) account: Option<Account>,
    /// Memory that pingora holds for this request.
    pub(crate) shares: [Option<Share>; 3],
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
