//! CPU pinning and the open-files limit.

use std::fs;
use std::process::{Command, Stdio};

use crate::Outcome;

/// The core of the proxy, and the one of this process.
pub(crate) const PROXY_CORE: &str = "0";
const OWN_CORE: &str = "1";

/// Pins this process to its core, and raises its open-files limit to the maximum.
pub(crate) fn take_second_core() -> Outcome<()> {
    let own = std::process::id().to_string();
    let limit = hard_file_limit()?;
    quietly("taskset", &["-a", "-c", "-p", OWN_CORE, &own])
        .map_err(|error| format!("the bench needs taskset and two cores: {error}"))?;
    quietly("prlimit", &["--pid", &own, &format!("--nofile={limit}:{limit}")])
}

/// A command that runs `program` on the proxy's core.
pub(crate) fn on_proxy_core(program: &str) -> Outcome<Command> {
    let limit = hard_file_limit()?;
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={limit}:{limit}")).args(["taskset", "-c", PROXY_CORE, program]);
    Ok(command)
}

/// Runs a command and waits for its end.
pub(crate) fn quietly(program: &str, arguments: &[&str]) -> Outcome<()> {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status.map_err(|error| format!("{program}: {error}"))?.success() {
        true => Ok(()),
        false => Err(format!("{program} {} failed", arguments.join(" ")).into()),
    }
}

fn hard_file_limit() -> Outcome<String> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find(|line| line.starts_with("Max open files")).ok_or("no open-files limit found")?;
    Ok(line.split_whitespace().nth(4).ok_or("no hard open-files limit found")?.to_owned())
}
