//! File descriptors: connections that do nothing.

use std::time::Duration;

use super::CHAT;
use crate::Outcome;
use crate::attack::Attack;
use crate::attack::Target;
use crate::program::Launch;
use crate::upstream::FAST;
use crate::wire;

/// How long the attackers stay.
const STAY: Duration = Duration::from_secs(2);

/// Clients that never send anything.
const IDLE: usize = 600;

/// How long a new client may wait for its response meanwhile.
const SERVED: Duration = Duration::from_secs(5);

pub(super) fn attacks() -> Vec<Attack> {
    let limited = |name, ulimit| {
        let steps = |target: Target| async move { idle(target).await };
        Attack { launch: Launch { ulimit: Some(ulimit), ..Launch::default() }, ..Attack::new(name, IDLE, steps) }
    };
    vec![
        // 600 clients need more descriptors than there are.
        limited("idle-clients-hard-limit", "-n 1024"),
        // The limit can be raised.
        Attack { steps: Box::new(|target| Box::pin(idle_and_served(target))), ..limited("idle-clients-soft-limit", "-Sn 1024") },
    ]
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

/// Everybody is served where the limit can be raised.
async fn idle_and_served(target: Target) -> Outcome<()> {
    idle(target.clone()).await?;
    let mut client = target.connect().await?;
    let asked = wire::post(CHAT, &[], b"{}");
    let served = tokio::time::timeout(SERVED, client.ask(&asked, FAST.len())).await;
    target.expect(matches!(served, Ok(Ok(_))), || format!("a client beside {IDLE} idle ones: {served:?}"));
    Ok(())
}
