//! Attacks that exploit the internals of the whole program, and their effect on regular clients.
//!
//! `cargo test --test hostile [-- NAMES] [--table] [--list] [--rewrite] [--cgroup 64MiB]`
//!
//! Each attack runs against a new process with the default settings, with an upstream server, regular streams,
//! compressed requests and probes of the admin server. NAMES are parts of the names of the selected attacks. `--table`
//! runs each attack also in memory cgroups of 64 and 256 MiB, writes the measurements to `target/bench/hostile.md`, and
//! asserts nothing. `--rewrite` attacks listeners in rewrite
//! mode. `--cgroup` runs each process with the chart's configuration in a memory cgroup of this size, which requires
//! root; if no cgroup can be created, the exit code is
//! 77. `TOKOMETER_BIN` is the binary to attack; a debug build may use more CPU time.

mod arena;
mod attack;
mod attacks;
mod bombs;
mod bystanders;
mod cgroup;
mod http2;
mod limits;
mod options;
mod program;
mod table;
mod texts;
mod upstream;
mod wire;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use crate::cgroup::Cgroup;
use crate::options::Options;

/// Errors are only printed.
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The table of measurements, which the load bench includes in its page.
const TABLE: &str = "target/bench/hostile.md";

/// The argument that turns on every rewrite.
const REWRITE: &str = "--rewrite=include_usage,traceparent,request_id";

/// Exit code for a test that this machine cannot run.
const SKIPPED: u8 = 77;

/// The chart rendered with its defaults.
const CHART: &str = include_str!("../../charts/tokometer/examples/default.yaml");

/// Niceness of the attackers' threads (setpriority(2)): in production they have their own CPUs.
const NICENESS: i32 = 10;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("hostile: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<ExitCode> {
    let options = Options::read(std::env::args().skip(1))?;
    options::REWRITES.store(options.rewrite, std::sync::atomic::Ordering::Relaxed);
    let mut attacks: Vec<_> = attacks::all()?.into_iter().filter(|attack| options.select(&attack.name)).collect();
    if options.rewrite {
        attacks.iter_mut().for_each(|attack| attack.launch.arguments.push(REWRITE.to_owned()));
    }
    if attacks.is_empty() {
        return Err("no attack matches; --list prints all".into());
    }
    if options.list {
        attacks.iter().for_each(|attack| println!("{} x {}", attack.name, attack.connections));
        return Ok(ExitCode::SUCCESS);
    }
    let chart = options.cgroup.map(|limit| (limit, chart_arguments()));
    if let Some((limit, arguments)) = &chart {
        if let Err(why) = Cgroup::new(*limit) {
            println!("cannot create a memory cgroup ({why})");
            return Ok(ExitCode::from(SKIPPED));
        }
        println!("in a memory cgroup of {} MiB, with {}", limit >> 20, arguments.join(" "));
    }
    let cpu_factor = if program::is_debug_build() { limits::DEBUG_CPU_FACTOR } else { 1 };
    println!("{}: CPU limits times {cpu_factor}", program::binary().display());
    // Attackers and upstream need one descriptor each per connection.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised)?;
    let watchers = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let attackers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(|| rustix::process::setpriority_process(None, NICENESS).unwrap_or(()))
        .enable_all()
        .build()?;
    let cgroups: Vec<_> = match options.table {
        true => table::LIMITS.into_iter().map(|limit| (limit, chart_arguments())).collect(),
        false => Vec::new(),
    };
    let header = format!("{}{}", table::HEADER, if options.table { table::CGROUPS } else { "" });
    let rule = "|---".repeat(header.matches(" |").count()) + "|";
    println!("{header}\n{rule}");
    let begun = Instant::now();
    let (mut rows, mut failed, mut counted) = (vec![header, rule], 0, false);
    for attack in &attacks {
        let running = arena::run(attack, attackers.handle(), chart.as_ref(), cpu_factor);
        let (measured, over) = match watchers.block_on(running) {
            Ok(measured) => measured,
            Err(error) => {
                println!("  FAIL {} x {}: {error}", attack.name, attack.connections);
                failed += 1;
                continue;
            }
        };
        counted |= measured.decoded.is_some();
        let mut row = table::row(attack, &measured);
        for cgroup in &cgroups {
            let running = arena::run(attack, attackers.handle(), Some(cgroup), cpu_factor);
            let memory = watchers.block_on(running).map(|(measured, _)| table::memory(&measured));
            row += &format!(" {} |", memory.unwrap_or_else(|error| error.to_string()));
        }
        println!("{row}");
        over.iter().for_each(|what| println!("  FAIL {} x {}: {what}", attack.name, attack.connections));
        failed += usize::from(!over.is_empty());
        rows.push(row);
    }
    if !counted {
        println!("decoded bytes are not asserted: this binary has no tokometer_observer_decoded_bytes_total");
    }
    println!("{} attacks in {:.0?}, {failed} failed", attacks.len(), begun.elapsed());
    if options.table {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(&path, rows.join("\n") + "\n")?;
        println!("written to {}", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The sidecar arguments that the chart renders.
fn chart_arguments() -> Vec<String> {
    let quoted = CHART.lines().map(|line| line.trim().trim_end_matches(',').trim_matches('"'));
    quoted.filter(|line| line.starts_with("--set=")).map(str::to_owned).collect()
}
