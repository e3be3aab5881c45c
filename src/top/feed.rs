//! Reads snapshots from the admin server.

use crate::client::Caller;
use crate::client::Failure;
use tokometer_telemetry::live::snapshot::Snapshot;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The admin server does not respond.
    #[error("the admin server at {admin} {source}; set its address with --admin")]
    Silent {
        /// The admin server's address.
        admin: String,
        /// The failure.
        source: Failure,
    },
    /// The server responds with an error status.
    #[error("{admin} returned status {status} for /live/snapshot: is it the admin server of this tokometer version?")]
    Status {
        /// The admin server's address.
        admin: String,
        /// The response status.
        status: u16,
    },
    /// The response is not a valid snapshot.
    #[error("{admin} returned an invalid snapshot ({source}): is it the admin server of this tokometer version?")]
    Unreadable {
        /// The admin server's address.
        admin: String,
        /// The parse error.
        source: serde_json::Error,
    },
}

/// Requests the current snapshot.
pub(super) fn fetch(caller: &mut Caller) -> Result<Snapshot, FeedError> {
    let target = caller.target();
    let admin = target.authority().to_owned();
    let request = format!(
        "GET {}/live/snapshot HTTP/1.1\r\nHost: {admin}\r\nUser-Agent: tokometer-top\r\nAccept: application/json\r\n\r\n",
        target.path()
    );
    let response = match caller.ask(request.as_bytes()) {
        Ok(response) => response,
        Err(source) => return Err(FeedError::Silent { admin, source }),
    };
    match response.status() {
        200 => serde_json::from_slice(&response.body()).map_err(|source| FeedError::Unreadable { admin, source }),
        status => Err(FeedError::Status { admin, status }),
    }
}
