//! Health and drain state of tokometer, and the responses of `/drain` and `/drain/wait`.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use hyper::StatusCode;

use tokometer_settings::duration;

/// A drain that has started.
#[derive(Clone, Debug)]
pub struct Draining {
    /// Start time.
    pub began: Instant,
    /// What requested the drain: a signal, or a client's address.
    pub requested_by: String,
}

/// Health and drain of tokometer itself. Nothing here may depend on the inference server: its outage would fail
/// tokometer's probes and restart the container. `/engine/healthz` reports the engine's health.
#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// Stops accepting connections, possibly after a delay. Open streams continue; the process exits after the last
    /// one. Further calls do nothing.
    fn begin_drain(&self, requested_by: &str);

    /// The drain, if one was started by [`Control::begin_drain`] or a signal.
    fn draining(&self) -> Option<Draining>;

    /// Lines shown on the health pages: one per listener that accepts no clients, or a description of the packet
    /// capture. They do not make tokometer unhealthy.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Default wait of `/drain`, used if the request specifies no duration.
    fn grace_period(&self) -> Duration;

    /// Number of requests in flight.
    fn open_streams(&self) -> usize;

    /// Returns when no request is in flight and no new one can start.
    async fn wait_until_idle(&self);
}

/// Maximum wait that a request can specify.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Maximum time that `/drain/wait` waits for a drain to start: a pod's preStop hooks run concurrently, so the hook that
/// starts the drain may run later.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// Polling interval for the start of a drain.
const POLL: Duration = Duration::from_millis(20);

/// Parses the query parameter `wait`; `None` if it is absent.
///
/// `wait`, `wait=` and `wait=true` mean `default`; `wait=30s` sets the duration.
pub(super) fn wait(query: Option<&str>, default: Duration) -> Result<Option<Duration>, String> {
    let mut wait = None;
    for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=').unwrap_or((part, "")) {
            ("wait", "" | "true") => wait = Some(default),
            ("wait", text) => wait = Some(duration::parse(text)?.min(MAX_WAIT)),
            (name, _) => return Err(format!("unknown parameter `{name}`; write ?wait or ?wait=30s")),
        }
    }
    Ok(wait)
}

/// Waits for the end of a drain started by another request or a signal. If no drain starts, returns after
/// `START_TIMEOUT`. Never starts a drain, so any client may request this wait.
pub(super) async fn wait_for_other(control: &dyn Control) -> (StatusCode, serde_json::Value) {
    let begun = async {
        while control.draining().is_none() {
            tokio::time::sleep(POLL).await;
        }
    };
    let is_draining = tokio::time::timeout(START_TIMEOUT, begun).await.is_ok();
    state(is_draining.then(|| control.grace_period()), control).await
}

/// Waits for at most `wait`, then returns status and body of the response: 503 if streams are still open after a wait.
pub(super) async fn state(wait: Option<Duration>, control: &dyn Control) -> (StatusCode, serde_json::Value) {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let began = Instant::now();
    if let Some(wait) = wait {
        // A timeout needs no handling: the response reports the streams that are still open.
        tokio::time::timeout(wait, control.wait_until_idle()).await.ok();
    }
    let (open, draining) = (control.open_streams(), control.draining());
    let status = if wait.is_some() && open > 0 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let body = serde_json::json!({
        "draining": draining.is_some(),
        "draining_ms": draining.as_ref().map(|draining| milliseconds(draining.began.elapsed())),
        "requested_by": draining.map(|draining| draining.requested_by),
        "open_streams": open,
        "waited_ms": wait.map(|_| milliseconds(began.elapsed())),
    });
    (status, body)
}

/// The `/readyz` text during a drain.
pub(super) fn not_ready(draining: &Draining, open: usize) -> String {
    let streams = if open == 1 { "1 stream is" } else { &format!("{open} streams are") };
    format!(
        "draining for {} s, requested by {}; {streams} open; the process exits when all streams have ended",
        draining.began.elapsed().as_secs(),
        draining.requested_by
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_parses_from_the_query() {
        let default = Duration::from_secs(7);
        let table = [
            (None, Ok(None)),
            (Some(""), Ok(None)),
            (Some("wait"), Ok(Some(7))),
            (Some("wait="), Ok(Some(7))),
            (Some("wait=30s"), Ok(Some(30))),
            (Some("wait=2m"), Ok(Some(120))),
            (Some("wait=999h"), Ok(Some(86_400))),
            (Some("wait=soon"), Err("10s")),
            (Some("wiat=1s"), Err("?wait=30s")),
        ];
        for (query, expected) in table {
            match (wait(query, default), expected) {
                (Ok(wait), Ok(seconds)) => assert_eq!(wait, seconds.map(Duration::from_secs), "{query:?}"),
                (Err(message), Err(part)) => assert!(message.contains(part), "{query:?}: {message}"),
                (got, _) => panic!("{query:?}: {got:?}"),
            }
        }
    }
}
