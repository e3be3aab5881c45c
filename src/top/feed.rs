//! Reads snapshots from the admin server.

use bytes::Bytes;
use http::{HeaderValue, Method, header};

use crate::client::{Caller, Failure};
use tokometer_telemetry::live::snapshot::Snapshot;

/// Why there is no snapshot. Each variant contains the admin server's address.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The admin server does not respond.
    #[error("the admin server at {0} {1}; set its address with --admin")]
    Silent(String, #[source] Failure),
    /// The server responds with an error status.
    #[error("{0} returned status {1} for /live/snapshot: is it the admin server of this tokometer version?")]
    Status(String, u16),
    /// The response is not a valid snapshot.
    #[error("{0} returned an invalid snapshot ({1}): is it the admin server of this tokometer version?")]
    Unreadable(String, #[source] serde_json::Error),
}

/// Requests the current snapshot.
pub(super) fn fetch(caller: &mut Caller) -> Result<Snapshot, FeedError> {
    let admin = caller.target().authority().to_owned();
    let headers = [(header::USER_AGENT, "tokometer-top"), (header::ACCEPT, "application/json")];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    match caller.ask(&caller.target().request(Method::GET, "/live/snapshot", headers, Bytes::new())) {
        Err(failure) => Err(FeedError::Silent(admin, failure)),
        Ok(response) if response.status() != 200 => Err(FeedError::Status(admin, response.status())),
        Ok(response) => serde_json::from_slice(response.body()).map_err(|error| FeedError::Unreadable(admin, error)),
    }
}
