//! Reads snapshots from the admin server.

use crate::client::Caller;
use crate::client::Failure;
use tokometer_telemetry::live::snapshot::Snapshot;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
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
pub(super) fn ask(caller: &mut Caller) -> Result<Snapshot, Trouble> {
    let target = caller.target();
    let admin = target.authority().to_owned();
    let request = format!(
        "GET {}/live/snapshot HTTP/1.1\r\nHost: {admin}\r\nUser-Agent: tokometer-top\r\nAccept: application/json\r\n\r\n",
        target.path()
    );
    let answer = match caller.ask(request.as_bytes()) {
        Ok(answer) => answer,
        Err(source) => return Err(Trouble::Silent { admin, source }),
    };
    match answer.status() {
        200 => serde_json::from_slice(&answer.body()).map_err(|source| Trouble::Unreadable { admin, source }),
        status => Err(Trouble::Status { admin, status }),
    }
}
