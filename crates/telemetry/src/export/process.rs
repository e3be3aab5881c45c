//! Process statistics that are queried, not recorded, when a page or an export batch is created.

use std::fs;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use crate::export::LedgerStats;
use crate::export::SloStats;
use tokometer_engine::scrape;
use tokometer_observe::measure::Uncounted;

/// Provides process statistics kept by other modules. Called from the admin and OTLP threads, never from the data path.
pub trait ProcessStats: Send + Sync + 'static {
    /// The current statistics; counters start at process start. When this returns, all ended requests are recorded.
    fn snapshot(&self) -> Snapshot;

    /// The state of a listener's engine at that moment, and how old it was then; `None` where unknown.
    fn engine_at(&self, _pair: usize, _moment: Instant) -> Option<(Arc<scrape::State>, Duration)> {
        None
    }
}

/// Process statistics at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// One entry per listener, in the order of the configuration.
    pub pairs: Vec<PairStats>,
    /// Metrics scraped from each listener's engine, in the same order; `None` for an engine that is not scraped.
    pub engines: Vec<Option<scrape::Figures>>,
    /// Connections currently read by an observer.
    pub observed_connections: u64,
    /// Time spent in observers, over all threads.
    pub observer_time: Duration,
    /// Memory and decoding that clients cause in observers; `None` before the data path runs.
    pub observer_budget: Option<BudgetFigures>,
    /// Delay of the data path's last timers; `None` until measured.
    pub event_loop_lag: Option<Duration>,
    /// Results of evaluated objectives.
    pub slo: SloStats,
    /// Usage and cost by tenant and model.
    pub ledger: LedgerStats,
    /// Responses that the tokenizer could not count, by reason; empty without a tokenizer.
    pub uncounted: Vec<(Uncounted, u64)>,
    /// Requests that were not tracked while in flight.
    pub untracked: u64,
    /// Ended requests that are kept.
    pub recent: u64,
    /// Memory used by the kept requests, bytes.
    pub recent_bytes: u64,
    /// Ended requests that were not kept because they ended faster than they could be stored.
    pub recent_dropped: u64,
    /// Ended requests for which only the outcome is counted, because too many records were waiting.
    pub records_dropped: u64,
    /// Statistics of received engine spans; `None` where none are received.
    pub engine_spans: Option<EngineSpans>,
    /// Lost access log lines; `None` where no access log is written.
    pub access_log: Option<AccessLogStats>,
    /// Statistics from the kernel.
    pub process: ProcessFigures,
}

/// The observers' budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetFigures {
    /// Bytes produced by content decoders.
    pub decoded: u64,
    /// Bytes held.
    pub held: u64,
    /// Maximum number of bytes held.
    pub limit: u64,
    /// Requests for memory that were refused.
    pub refused: u64,
}

/// Lost access log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessLogStats {
    /// Lost because the queue was full.
    pub dropped: u64,
    /// Lost because writing failed.
    pub failed: u64,
}

/// Statistics of the engine span receiver. Counts by reason start with the reason's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineSpans {
    /// Spans in accepted messages.
    pub received: u64,
    /// Spans accepted by the collector.
    pub forwarded: u64,
    /// Accepted spans that did not reach the collector.
    pub dropped: Vec<(&'static str, u64)>,
    /// Messages that were not accepted.
    pub refused: Vec<(&'static str, u64)>,
    /// Bytes of messages being read or waiting.
    pub waiting_bytes: u64,
    /// Requests by result of the search for their span.
    pub joins: Vec<(&'static str, u64)>,
    /// Spans that match no observed request.
    pub unjoined: Vec<(&'static str, u64)>,
    /// Requests currently waiting for their span.
    pub held: u64,
}

/// Statistics of one listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairStats {
    /// Interception mode, and whether the server can be reached directly; `None` while the server does not respond.
    pub interception: Option<(&'static str, &'static str)>,
    /// Connections accepted.
    pub opened: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections refused because the maximum was open: by the open file limit, and by the setting.
    pub turned_away: [u64; 2],
    /// Connections for which the server refused or was unreachable.
    pub refused: u64,
    /// Connections that the server did not accept in time.
    pub timed_out: u64,
    /// Bytes relayed to the server.
    pub request_bytes: u64,
    /// Bytes relayed to clients.
    pub response_bytes: u64,
    /// Requests in flight without a token, and with at least one.
    pub phases: [PhaseStats; 2],
    /// Streams whose next token is overdue by the stall threshold.
    pub stalled: u64,
    /// Requests blocked on a slow client (backpressure).
    pub held_up: u64,
    /// Time the engine has been silent with requests pending; zero when none is pending.
    pub silence: Duration,
    /// Maximum allowed silence; `None` when no request is pending.
    pub silence_bound: Option<Duration>,
    /// Whether the silence exceeds its bound.
    pub wedged: bool,
}

/// The requests of a listener in one phase. `None` when there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseStats {
    /// Mean of their ages, from the first byte of each request.
    pub mean_age: Option<Duration>,
    /// Age of the oldest.
    pub oldest: Option<Duration>,
    /// Maximum time that one of them has waited for its next token.
    pub waited: Option<Duration>,
}

/// Statistics of a process from the kernel; `None` where the kernel does not provide them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessFigures {
    /// User and system CPU time.
    pub cpu: Option<Duration>,
    /// Resident memory, bytes.
    pub resident_bytes: Option<u64>,
    /// Virtual memory, bytes.
    pub virtual_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// Maximum number of open file descriptors (soft limit).
    pub max_fds: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Start time.
    pub started: Option<SystemTime>,
}

/// Clock ticks per second in `/proc`: `USER_HZ`, 100 on every Linux architecture that Rust's std supports.
const TICKS: u64 = 100;

impl ProcessFigures {
    /// Reads `/proc/self` (proc_pid_stat(5), proc_pid_status(5), proc_pid_limits(5)). All fields are `None` on systems
    /// other than Linux.
    pub fn of_this_process() -> ProcessFigures {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut figures = parse(
            &read("/proc/self/stat"),
            &read("/proc/self/status"),
            &read("/proc/self/limits"),
            &read("/proc/stat"),
        );
        figures.open_fds = open_fds();
        figures
    }
}

/// Since Linux 6.2 the size of `/proc/self/fd` is the number of descriptors; before that it is 0, so the entries are
/// counted.
fn open_fds() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count() as u64),
        size => Some(size),
    }
}

fn parse(stat: &str, status: &str, limits: &str, system: &str) -> ProcessFigures {
    // The command in parentheses may contain spaces; field 3 follows the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let line = |text: &str, key: &str| -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    let ticks = |n: u64| Duration::from_millis(n.saturating_mul(1000 / TICKS));
    let boot = line(system, "btime ").map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
    ProcessFigures {
        cpu: field(14).zip(field(15)).map(|(user, system)| ticks(user + system)),
        resident_bytes: line(status, "VmRSS:").map(|kib| kib * 1024),
        virtual_bytes: line(status, "VmSize:").map(|kib| kib * 1024),
        open_fds: None,
        max_fds: line(limits, "Max open files"),
        threads: line(status, "Threads:"),
        started: boot.zip(field(22)).map(|(boot, after)| boot + ticks(after)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "4242 (to ko) meter) S 1 4242 4242 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 123456 9 8 7";
        let figures = parse(
            stat,
            "Name:\ttokometer\nVmSize:\t  20480 kB\nVmRSS:\t   1024 kB\nThreads:\t7\n",
            "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 4096                 files\n",
            "cpu 1 2 3\nbtime 1700000000\n",
        );
        assert_eq!(figures.cpu, Some(Duration::from_secs(3)));
        assert_eq!(figures.resident_bytes, Some(1 << 20));
        assert_eq!(figures.virtual_bytes, Some(20 << 20));
        assert_eq!(figures.max_fds, Some(1024));
        assert_eq!(figures.threads, Some(7));
        assert_eq!(figures.started, Some(UNIX_EPOCH + Duration::from_millis(1_700_001_234_560)));
    }

    #[test]
    fn unparsable_values_are_none() {
        assert_eq!(parse("", "", "Max open files  unlimited", "nothing"), ProcessFigures::default());
    }

    #[test]
    fn own_process_has_statistics() {
        let figures = ProcessFigures::of_this_process();
        assert!(figures.threads.is_some_and(|n| n > 0));
        assert!(figures.resident_bytes.is_some_and(|n| n > 0));
        assert!(figures.open_fds.is_some_and(|n| n > 2));
        assert!(figures.started.is_some_and(|at| at < SystemTime::now()));
    }
}
