//! `/drain`: begins a drain, and waits for its end where it is asked to.

use std::time::Duration;
use std::time::Instant;

use hyper::Method;
use hyper::StatusCode;

use crate::admin::Control;
use crate::admin::duration;

/// Longest wait that can be asked for.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How long `/drain/wait` waits for a drain to begin: hooks of a pod's containers run at the same time, in no order.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);

/// Time between two looks at whether one has begun.
const LOOK: Duration = Duration::from_millis(20);

/// What `?wait` asks for: no wait, or one of this length.
///
/// `wait` and `wait=` are the default; `wait=30s` is as it says.
pub(super) fn wait(query: Option<&str>, default: Duration) -> Result<Option<Duration>, String> {
    let mut wait = None;
    for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=').unwrap_or((part, "")) {
            ("wait", "" | "true") => wait = Some(default),
            ("wait", text) => wait = Some(duration::parse(text)?.min(LONGEST)),
            (name, _) => return Err(format!("`{name}` is not known here; write ?wait or ?wait=30s")),
        }
    }
    Ok(wait)
}

/// Status and body of the answer.
///
/// - POST begins the drain; GET only tells how it stands, unless it is to wait: then it begins the drain too, since a
///   Kubernetes `preStop` hook can do nothing but GET.
/// - HEAD never begins one: it is what monitors and link checkers send.
/// - With a wait: 200 when no stream is open any more, 503 when the time was over before.
pub(super) async fn answer(
    method: &Method,
    wait: Option<Duration>,
    control: &dyn Control,
) -> (StatusCode, serde_json::Value) {
    if method == Method::POST || method == Method::GET && wait.is_some() {
        control.begin_drain();
    }
    let wait = wait.filter(|_| method != Method::HEAD);
    stands(wait, control).await
}

/// As [`answer`], but begins none: waits for the end of a drain that somebody else begins, and returns at once when there is
/// none. So whoever can reach the port can end nothing with it.
pub(super) async fn held(wait: Duration, control: &dyn Control) -> (StatusCode, serde_json::Value) {
    let begun = async {
        while !control.is_draining() {
            tokio::time::sleep(LOOK).await;
        }
    };
    let wait = tokio::time::timeout(BEGINS_WITHIN, begun).await.is_ok().then_some(wait);
    stands(wait, control).await
}

async fn stands(wait: Option<Duration>, control: &dyn Control) -> (StatusCode, serde_json::Value) {
    let began = Instant::now();
    if let Some(wait) = wait {
        // Being too late is not an error here: the figures below tell.
        tokio::time::timeout(wait, control.wait_until_idle()).await.ok();
    }
    let open = control.open_streams();
    let status = if wait.is_some() && open > 0 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let body = serde_json::json!({
        "draining": control.is_draining(),
        "open_streams": open,
        "waited_ms": wait.map(|_| u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)),
    });
    (status, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_from_the_query() {
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
