//! File descriptor attacks: idle connections.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;

use super::CHAT;
use crate::attack::{Attack, Target};
use crate::options::REWRITES;
use crate::program::Launch;
use crate::upstream::FAST;
use crate::{Outcome, wire};

/// How long the attackers stay connected.
const STAY: Duration = Duration::from_secs(2);

/// Number of clients that never send anything.
const IDLE: usize = 600;

/// Maximum time for a new client to get a response while the idle clients are connected.
const SERVED: Duration = Duration::from_secs(5);

/// Number of clients that never complete a request: more than a container of the minimum size has memory for.
const INCOMPLETE: usize = 6000;

/// A request whose body does not arrive.
const BEGINNING: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{";

/// Number of connections that the server has half-closed.
const HALF_CLOSED: usize = 200;

/// Makes half-closed connections time out during the attack. The timeout begins when the reset watch confirms, after
/// one second, that a connection stays half-closed.
const TIMEOUT: &str = "--set=relay.half_close_timeout=1s";

/// The same in rewrite mode, where a client with a half-closed connection counts as idle.
const REWRITE_TIMEOUT: &str = "--set=rewrite.client_idle_timeout=1s";

/// Maximum time until half-closed connections are closed, on a busy machine, and the interval between two checks.
const CLOSED: Duration = Duration::from_secs(6);
const CHECK: Duration = Duration::from_millis(50);

pub(super) fn attacks() -> Vec<Attack> {
    let limited = |name, ulimit| {
        let steps = |target: Target| async move { idle(target).await };
        Attack { launch: Launch { ulimit: Some(ulimit), ..Launch::default() }, ..Attack::new(name, IDLE, steps) }
    };
    vec![
        // 600 clients need more descriptors than the hard limit allows.
        limited("idle-clients-hard-limit", "-n 1024"),
        // Only the soft limit is low, and tokometer raises it.
        Attack {
            steps: Box::new(|target| Box::pin(idle_and_served(target))),
            ..limited("idle-clients-soft-limit", "-Sn 1024")
        },
        Attack::new("incomplete-requests", incomplete(), incomplete_and_served),
        Attack {
            launch: Launch { arguments: vec![TIMEOUT.to_owned(), REWRITE_TIMEOUT.to_owned()], ..Launch::default() },
            ..Attack::new("half-closed", HALF_CLOSED, half_closed)
        },
    ]
}

/// Number of connections with incomplete requests. A connection in rewrite mode needs three times as much memory, and
/// only a container's memory limit bounds it.
fn incomplete() -> usize {
    if REWRITES.load(Relaxed) { INCOMPLETE / 3 } else { INCOMPLETE }
}

/// Expects another client to be served, because tokometer closes the oldest of these connections.
async fn incomplete_and_served(target: Target) -> Outcome<()> {
    for _ in 0..incomplete() {
        let mut stream = target.connect().await?;
        // Fails if the connection was refused.
        stream.stream.write_all(BEGINNING).await.ok();
        stream.hold();
    }
    let request = wire::post(CHAT, &[], b"{}");
    let begun = Instant::now();
    let mut served = false;
    while !served && begun.elapsed() < SERVED {
        let mut client = target.connect().await?;
        served = matches!(tokio::time::timeout(SERVED, client.ask(&request, FAST.len())).await, Ok(Ok(_)));
    }
    target.expect(served, || format!("a client alongside {INCOMPLETE} incomplete requests was not served"));
    Ok(())
}

/// The server closes its side, and the clients keep their sockets open.
async fn half_closed(target: Target) -> Outcome<()> {
    let before = descriptors(&target);
    let request = wire::post(CHAT, &[("x-kind", "close")], b"{}");
    for _ in 0..HALF_CLOSED {
        let mut stream = target.connect().await?;
        stream.request(&request).await?;
        stream.hold();
    }
    let (opened, most) = (Instant::now(), before + HALF_CLOSED / 10);
    let mut after = descriptors(&target);
    while after >= most && opened.elapsed() < CLOSED {
        tokio::time::sleep(CHECK).await;
        after = descriptors(&target);
    }
    target.expect(after < most, || {
        format!("{before} descriptors before {HALF_CLOSED} half-closed connections, {after} after their timeout")
    });
    Ok(())
}

/// Open file descriptors of the program.
fn descriptors(target: &Target) -> usize {
    let folder = format!("/proc/{}/fd", target.process.as_raw_nonzero());
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

async fn idle(target: Target) -> Outcome<()> {
    target
        .on_all(IDLE, |stream, _| async move {
            stream.hold();
            Ok(())
        })
        .await?;
    tokio::time::sleep(STAY).await;
    Ok(())
}

/// Expects another client to be served, because tokometer can raise the limit.
async fn idle_and_served(target: Target) -> Outcome<()> {
    idle(target.clone()).await?;
    let mut client = target.connect().await?;
    let request = wire::post(CHAT, &[], b"{}");
    let served = tokio::time::timeout(SERVED, client.ask(&request, FAST.len())).await;
    target.expect(matches!(served, Ok(Ok(_))), || format!("a client alongside {IDLE} idle ones: {served:?}"));
    Ok(())
}
