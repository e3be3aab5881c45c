//! tokometer as a process: start and exit, memory, CPU time and pages.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Outcome;
use crate::cgroup::Cgroup;

/// Start-up timeout on a busy machine.
const START: Duration = Duration::from_secs(20);

/// Timeout of an admin server page, probes excepted.
const PAGE: Duration = Duration::from_secs(10);

/// Launch options, apart from the addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launch {
    /// Additional arguments of `tokometer run`.
    pub(crate) arguments: Vec<String>,
    /// Options of the shell's `ulimit`, such as `-n 1024` for both limits on open files.
    pub(crate) ulimit: Option<&'static str>,
    /// The memory cgroup in which the program is started.
    pub(crate) cgroup: Option<Cgroup>,
}

/// A running tokometer, which is killed on drop.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// The binary under test.
pub(crate) fn binary() -> PathBuf {
    let given = std::env::var_os("TOKOMETER_BIN").filter(|path| !path.is_empty());
    given.map_or_else(|| env!("CARGO_BIN_EXE_tokometer").into(), PathBuf::from)
}

/// True for a build with cargo's profile `dev`, whose data path is optimized but has debug assertions.
pub(crate) fn is_debug_build() -> bool {
    binary().parent().is_some_and(|folder| folder.ends_with("debug"))
}

/// A command that runs the binary with an empty environment.
pub(crate) fn command(launch: &Launch) -> Command {
    let mut before = String::new();
    if let Some(cgroup) = &launch.cgroup {
        before.push_str(&format!("echo $$ > '{}' && ", cgroup.members().display()));
    }
    if let Some(limit) = launch.ulimit {
        before.push_str(&format!("ulimit {limit} && "));
    }
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{before}exec \"$0\" \"$@\"")]).arg(binary()).env_clear().stdin(Stdio::null());
    command
}

impl Program {
    /// Starts the program in front of `upstream`, and waits until the data port and the admin server listen.
    pub(crate) fn start(upstream: SocketAddr, launch: &Launch) -> Outcome<Program> {
        let mut command = command(launch);
        command.args(["run", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", &format!("--upstream={upstream}")]);
        command.args(&launch.arguments).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let log = child.stderr.take().ok_or("no stderr")?;
        let (send, lines) = mpsc::channel();
        // The log is drained so that the process never blocks on it.
        std::thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                send.send(line).ok();
            }
        });
        let (mut listen, mut admin, mut all) = (None, None, String::new());
        let begun = Instant::now();
        while listen.is_none() || admin.is_none() {
            let Ok(line) = lines.recv_timeout(START.saturating_sub(begun.elapsed())) else {
                child.kill().ok();
                child.wait().ok();
                return Err(format!("tokometer did not start; its log:\n{all}").into());
            };
            listen = listen.or_else(|| address(&line, " listen="));
            admin = admin.or_else(|| address(&line, " address="));
            all.push_str(&line);
            all.push('\n');
        }
        let (Some(listen), Some(admin)) = (listen, admin) else { return Err("no addresses".into()) };
        Ok(Program { child, listen, admin })
    }

    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    /// CPU time of the data path's threads, user and kernel.
    pub(crate) fn data_path_cpu(&self) -> Duration {
        // The first number is the time on a CPU in nanoseconds (Documentation/scheduler/sched-stats.rst).
        let texts = self.data_path("schedstat").into_iter();
        Duration::from_nanos(texts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum())
    }

    /// Whether a data path thread is running or runnable.
    pub(crate) fn data_path_runs(&self) -> bool {
        // The state is the first field after the name in parentheses (proc_pid_stat(5)).
        let runs = |text: &String| text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'));
        self.data_path("stat").iter().any(runs)
    }

    /// Contents of this /proc file for each data path thread.
    fn data_path(&self, file: &str) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let texts = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            name.starts_with("relay-").then(|| fs::read_to_string(task.path().join(file)).ok())?
        });
        texts.collect()
    }

    /// Peak resident memory in bytes; 0 after the process has exited.
    pub(crate) fn peak_resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) -> Outcome<()> {
        Ok(rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM)?)
    }

    /// The exit status, if the program has exited.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the program to exit; `None` on timeout.
    pub(crate) async fn end(&mut self, within: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if begun.elapsed() > within {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The current metrics.
    pub(crate) async fn metrics(&self) -> Outcome<Metrics> {
        Metrics::read(self.admin).await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if the process has already exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The address after `word` in this line.
fn address(line: &str, word: &str) -> Option<SocketAddr> {
    line.split_once(word)?.1.split_whitespace().next()?.parse().ok()
}

/// A request for a page, on a new connection.
pub(crate) fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
}

/// The response to this request, headers included.
pub(crate) async fn page(address: SocketAddr, request: &str, within: Duration) -> Outcome<String> {
    let fetch = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await?;
        Outcome::Ok(String::from_utf8_lossy(&response).into_owned())
    };
    tokio::time::timeout(within, fetch).await.map_err(|_| format!("no response within {within:?}"))?
}

/// The status of a response.
pub(crate) fn status(response: &str) -> Option<u16> {
    response.split_whitespace().nth(1)?.parse().ok()
}

/// A metrics page in the Prometheus text format.
#[derive(Debug)]
pub(crate) struct Metrics(String);

impl Metrics {
    /// Reads the metrics from the admin server at this address.
    pub(crate) async fn read(admin: SocketAddr) -> Outcome<Metrics> {
        let page = page(admin, &get("/metrics", &admin.to_string()), PAGE).await?;
        if status(&page) != Some(200) {
            return Err(format!("/metrics: {:?}", page.lines().next()).into());
        }
        Ok(Metrics(page))
    }

    /// The sum of this metric's series whose labels contain all of these parts; `None` if there is none.
    pub(crate) fn sum(&self, name: &str, parts: &[&str]) -> Option<f64> {
        let values = self.0.lines().filter_map(|line| {
            let (series, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
            let own = series.is_empty() || series.starts_with('{');
            (own && parts.iter().all(|part| series.contains(part))).then(|| value.parse::<f64>().ok())?
        });
        values.reduce(|sum, value| sum + value)
    }

    /// The labels and values of this metric's non-zero series.
    pub(crate) fn moved(&self, name: &str) -> String {
        let series = self.0.lines().filter_map(|line| line.strip_prefix(name));
        let moved: Vec<&str> = series.filter(|series| !series.ends_with(" 0") && !series.ends_with(" 0.0")).collect();
        moved.join(" ")
    }

    /// Requests recorded.
    pub(crate) fn requests(&self, parts: &[&str]) -> f64 {
        self.sum("tokometer_requests_total", parts).unwrap_or(0.0)
    }

    /// Output tokens of this model.
    pub(crate) fn output_tokens(&self, model: &str) -> f64 {
        let label = format!("gen_ai_response_model=\"{model}\"");
        self.sum("tokometer_output_tokens_total", &[&label]).unwrap_or(0.0)
    }
}
