//! Asks the admin server for snapshots.

use crate::client::Caller;
use crate::client::Failure;
use tokometer_telemetry::live::snapshot::Snapshot;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The admin server does not answer.
    #[error("the admin server at {admin} {source}; --admin gives its address")]
    Silent {
        /// Where it was looked for.
        admin: String,
        /// What happened.
        source: Failure,
    },
    /// It answers, and has no feed.
    #[error(
        "{admin} answers /live/snapshot with status {status}: is it the admin server of this version of tokometer?"
    )]
    Status {
        /// Where it was looked for.
        admin: String,
        /// What it answered.
        status: u16,
    },
    /// What it answers is no snapshot.
    #[error("{admin} answers /live/snapshot with what is no snapshot ({source}): is it of this version of tokometer?")]
    Unreadable {
        /// Where it was looked for.
        admin: String,
        /// Where in the answer.
        source: serde_json::Error,
    },
}

/// The state of this moment.
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
