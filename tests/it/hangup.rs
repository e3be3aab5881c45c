//! SIGHUP: a closed terminal ends the program, otherwise the configuration is reloaded.

use std::net::TcpStream;
use std::process::Command;

use rustix::process::Signal;

use crate::pod_end::{Process, ask, port_after, until};

const RUN: &str = "run --listen=127.0.0.1:0 --upstream=127.0.0.1:9 --admin=127.0.0.1:0";

fn admin_port(log: &str) -> Option<u16> {
    port_after(log, "/drain. address=")
}

#[test]
fn closed_terminal_ends_run() {
    // `script` (util-linux) runs a command in a new terminal. Killing `script` closes the terminal.
    let mut command = Command::new("script");
    let run = format!("NO_COLOR=1 exec {} {RUN}", env!("CARGO_BIN_EXE_tokometer"));
    command.args(["--quiet", "--flush", "--command", &run, "/dev/null"]);
    let (terminal, admin) = Process::of(command, admin_port);
    assert!(ask(admin, "/startz").is_some());
    terminal.signal(Signal::KILL);
    until("the port is free", || TcpStream::connect(("127.0.0.1", admin)).is_err());
}

#[test]
fn hangup_without_a_terminal_reloads() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.args(RUN.split(' ')).args(["--set=access_log.enabled=true", "--set"]);
    command.arg(format!("access_log.path={}", log.display()));
    let (process, admin) = Process::of(command, admin_port);
    std::fs::remove_file(&log).unwrap();
    process.signal(Signal::HUP);
    until("the access log is reopened", || log.exists());
    assert!(ask(admin, "/startz").is_some(), "it still runs");
}
