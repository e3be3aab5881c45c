//! Process-level attacks: ports in use, and SIGTERM during an attack.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};

use super::{MB, coded};
use crate::attack::{Attack, Target};
use crate::program::{Launch, get, page, status};
use crate::{Outcome, limits, program};

/// Maximum time for a program that cannot start to exit.
const ENDS: Duration = Duration::from_secs(5);

/// Exit code for a configuration error.
const USAGE: Option<i32> = Some(2);

pub(super) fn attacks() -> Outcome<Vec<Attack>> {
    let flood = coded::worst(100 * MB)?;
    let terminated = Attack::flood("sigterm", 1, flood);
    let steps = terminated.steps;
    let under_attack = move |target: Target| {
        let attacking = steps(target.clone());
        async move {
            let attacking = tokio::spawn(attacking);
            tokio::time::sleep(Duration::from_millis(200)).await;
            drains(&target).await?;
            attacking.abort();
            Ok(())
        }
    };
    Ok(vec![
        Attack::new("data-port-in-use", 1, |target| async move { port_in_use(&target, "listen").await }),
        Attack::new("admin-port-in-use", 1, |target| async move { port_in_use(&target, "admin.listen").await }),
        Attack::new("two-programs", 1, two_programs),
        Attack { stops: true, ..Attack::new("sigterm-under-attack", 1, under_attack) },
    ])
}

/// Starts another process with these addresses and waits for its exit; `None` if it keeps running.
async fn start_another(listen: SocketAddr, admin: &str, upstream: SocketAddr) -> Outcome<Option<Output>> {
    let mut command: Command = program::command(&Launch::default());
    command.args([
        "run",
        &format!("--listen={listen}"),
        &format!("--admin={admin}"),
        &format!("--upstream={upstream}"),
    ]);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn()?;
    let begun = Instant::now();
    while begun.elapsed() < ENDS {
        if child.try_wait()?.is_some() {
            return Ok(Some(child.wait_with_output()?));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// The port is in use: expects exit code 2, and an error that names the key and does not suggest the same port.
async fn port_in_use(target: &Target, key: &str) -> Outcome<()> {
    let taken = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = taken.local_addr()?;
    let free: SocketAddr = ([127, 0, 0, 1], 0).into();
    let (listen, admin) = if key == "listen" { (address, free) } else { (free, address) };
    let Some(output) = start_another(listen, &admin.to_string(), target.upstream).await? else {
        target.expect(false, || format!("{key}: it runs with a port that is in use"));
        return Ok(());
    };
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    target.expect(output.status.code() == USAGE, || format!("{key}: {}, not exit code 2", output.status));
    target.expect(error.contains(key), || format!("the error does not name {key}: {error}"));
    let suggested = error.matches(&address.to_string()).count();
    target.expect(suggested <= 1, || format!("the error suggests the address that is in use: {error}"));
    Ok(())
}

/// A second process on the port of a running one.
async fn two_programs(target: Target) -> Outcome<()> {
    let output = start_another(target.listen, "127.0.0.1:0", target.upstream).await?;
    let code = output.and_then(|output| output.status.code());
    target.expect(code == USAGE, || format!("a second program on one port: exit code {code:?} (None: it runs)"));
    Ok(())
}

/// SIGTERM: expects new connections to be refused and readiness to be withdrawn.
async fn drains(target: &Target) -> Outcome<()> {
    rustix::process::kill_process(target.process, rustix::process::Signal::TERM)?;
    let begun = Instant::now();
    loop {
        let ready = page(target.admin, &get("/readyz", &target.admin.to_string()), limits::DRAINS_WITHIN).await;
        let refused = TcpStream::connect(target.listen).await.is_err();
        let withdrawn = !ready.is_ok_and(|response| status(&response) == Some(200));
        if withdrawn && refused {
            return Ok(());
        }
        if begun.elapsed() > limits::DRAINS_WITHIN {
            target.expect(false, || {
                let after = begun.elapsed();
                format!("{after:.1?} after SIGTERM: new connections refused {refused}, readiness withdrawn {withdrawn}")
            });
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
