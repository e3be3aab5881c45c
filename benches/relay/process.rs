//! A proxy process: resource usage and termination.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Outcome, pin};

/// A running proxy and its children.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts the proxy and waits until it accepts connections.
    pub(crate) async fn start(mut command: Command, listens: SocketAddr) -> Outcome<Process> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut process = Process { child: child.map_err(|error| format!("{command:?}: {error}"))? };
        let began = Instant::now();
        while tokio::net::TcpStream::connect(listens).await.is_err() {
            if let Some(status) = process.child.try_wait()? {
                return Err(format!("{command:?} exited with {status}").into());
            }
            if began.elapsed() > Duration::from_secs(10) {
                return Err(format!("{command:?} does not listen on {listens}").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(process)
    }

    /// CPU time used so far, in user and kernel, by all threads of the process and its children.
    pub(crate) fn cpu(&self) -> Duration {
        self.family().into_iter().map(cpu).sum()
    }

    /// Sends this signal.
    pub(crate) fn signal(&self, signal: &str) -> Outcome<()> {
        pin::quietly("kill", &[signal, &self.child.id().to_string()])
    }

    /// Resident memory in KiB of the process and its children.
    pub(crate) fn resident_kib(&self) -> f64 {
        let sizes = self.family().into_iter().filter_map(|id| {
            let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok()
        });
        sizes.sum()
    }

    /// The process and its children.
    fn family(&self) -> Vec<u32> {
        let mut family = vec![self.child.id()];
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            // The name in parentheses can contain any character; the parent is the second field after it.
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
            if parent.and_then(|parent| parent.parse::<u32>().ok()) == Some(self.child.id()) {
                family.push(id);
            }
        }
        family
    }

    fn ended_within(&mut self, time: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < time {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

/// CPU time that all threads of a process have used so far.
pub(crate) fn cpu(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        // The first number is the time on a CPU in nanoseconds (Documentation/scheduler/sched-stats.rst).
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Sends SIGTERM, and SIGKILL if the process does not exit.
impl Drop for Process {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        if pin::quietly("kill", &["-TERM", &id]).is_err() || !self.ended_within(Duration::from_secs(3)) {
            for member in self.family() {
                if pin::quietly("kill", &["-KILL", &member.to_string()]).is_err() {
                    eprintln!("relay bench: could not kill process {member}");
                }
            }
            self.ended_within(Duration::from_secs(3));
        }
    }
}
