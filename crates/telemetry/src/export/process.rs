//! Figures that nobody records: they are asked for when a page or a batch is made.

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

/// Gives the figures of the process that other modules keep. Called from the admin's and the OTLP thread, never from
/// the data path.
pub trait ProcessStats: Send + Sync + 'static {
    /// The figures of this moment; counts since the start of the process. By its return all that had ended is recorded.
    fn snapshot(&self) -> Snapshot;

    /// The state of a pair's engine that was of the moment then, and how old it was; `None` where that is not known.
    fn engine_at(&self, _pair: usize, _moment: Instant) -> Option<(Arc<scrape::State>, Duration)> {
        None
    }
}

/// Figures of this moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// One entry per listen -> upstream pair, in the order of the configuration.
    pub pairs: Vec<PairStats>,
    /// What was read of each pair's engine, in the same order; `None` for one that is not read.
    pub engines: Vec<Option<scrape::Figures>>,
    /// Connections that an observer reads now.
    pub observed_connections: u64,
    /// Time spent in observers, all threads together.
    pub observer_time: Duration,
    /// What clients make the observers hold and decode; `None` before the data path runs.
    pub observer_budget: Option<BudgetFigures>,
    /// How late the data path's timers fired last; `None` while it was not measured.
    pub event_loop_lag: Option<Duration>,
    /// What was judged of objectives.
    pub slo: SloStats,
    /// What was used, by whom, and what it cost.
    pub ledger: LedgerStats,
    /// Answers that the tokenizer could not count, by reason; empty while there is none.
    pub uncounted: Vec<(Uncounted, u64)>,
    /// Exchanges that were not watched while in flight.
    pub untracked: u64,
    /// Ended exchanges that are kept.
    pub recent: u64,
    /// Bytes that they take.
    pub recent_bytes: u64,
    /// Ended exchanges that were not kept because whoever keeps them could not follow.
    pub recent_dropped: u64,
    /// Requests that ended and of which only the outcome is counted, because too many records waited.
    pub records_dropped: u64,
    /// What became of the engine's spans; `None` where none are received.
    pub engine_spans: Option<EngineSpans>,
    /// What the access log lost; `None` where none is written.
    pub access_log: Option<AccessLogStats>,
    /// What the kernel says of this process.
    pub process: ProcessFigures,
}

/// The observers' budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetFigures {
    /// Bytes that content decoders have given.
    pub decoded: u64,
    /// Bytes held.
    pub held: u64,
    /// Maximum of them.
    pub limit: u64,
    /// How often there was no room.
    pub refused: u64,
}

/// Lines of the access log that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessLogStats {
    /// They found its queue full.
    pub dropped: u64,
    /// They could not be written.
    pub failed: u64,
}

/// Figures of the receiver of engine spans. Counts by reason have the reason's word first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineSpans {
    /// Spans in messages that were taken.
    pub received: u64,
    /// Spans that the collector took.
    pub forwarded: u64,
    /// Spans that were taken and did not get to the collector.
    pub dropped: Vec<(&'static str, u64)>,
    /// Messages that were not taken.
    pub refused: Vec<(&'static str, u64)>,
    /// Bytes of messages that are read or wait now.
    pub waiting_bytes: u64,
    /// Exchanges, by what came of looking for their span.
    pub joins: Vec<(&'static str, u64)>,
    /// Spans of requests that belong to no exchange.
    pub unjoined: Vec<(&'static str, u64)>,
    /// Exchanges that wait for their span now.
    pub held: u64,
}

/// Figures of one listen -> upstream pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairStats {
    /// How we stand before the server, and whether it can be reached past us; `None` while it does not answer.
    pub interception: Option<(&'static str, &'static str)>,
    /// Connections accepted.
    pub opened: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections refused because the maximum was open: for want of descriptors, and by the setting.
    pub turned_away: [u64; 2],
    /// Connections for which the server refused or was unreachable.
    pub refused: u64,
    /// Connections for which the server did not accept in time.
    pub timed_out: u64,
    /// Bytes relayed to the server.
    pub request_bytes: u64,
    /// Bytes relayed to clients.
    pub response_bytes: u64,
    /// Exchanges in flight without a token, and with some.
    pub phases: [PhaseStats; 2],
    /// Streams whose next token is over the stall threshold.
    pub stalled: u64,
    /// Exchanges whose clients take no bytes.
    pub held_up: u64,
    /// For how long the engine has been silent while it owed something; zero when it owes nothing.
    pub silence: Duration,
    /// How long it may be; `None` when it owes nothing.
    pub silence_bound: Option<Duration>,
    /// It was silent for longer.
    pub wedged: bool,
}

/// The exchanges of a pair in one phase. `None` when there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseStats {
    /// Mean of their ages, from the first bytes of their requests.
    pub mean_age: Option<Duration>,
    /// The age of the oldest.
    pub oldest: Option<Duration>,
    /// Longest that one of them has waited for its next token.
    pub waited: Option<Duration>,
}

/// What the kernel says of a process. What it does not say is `None`.
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
    /// Most file descriptors it may open (soft limit).
    pub max_fds: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// When it started.
    pub started: Option<SystemTime>,
}

/// Clock ticks per second in `/proc`: `USER_HZ`, 100 on every architecture of Linux that Rust's std supports.
const TICKS: u64 = 100;

impl ProcessFigures {
    /// Reads `/proc/self` (proc_pid_stat(5), proc_pid_status(5), proc_pid_limits(5)). Everything is `None` elsewhere
    /// than on Linux.
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

/// Since Linux 6.2 the size of `/proc/self/fd` is the number of descriptors; before, it is 0 and they are counted.
fn open_fds() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count() as u64),
        size => Some(size),
    }
}

fn parse(stat: &str, status: &str, limits: &str, system: &str) -> ProcessFigures {
    // The command in parentheses may hold spaces; what follows is field 3 and on.
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
    fn proc_files_are_read_by_their_manual_pages() {
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
    fn what_cannot_be_read_is_absent() {
        assert_eq!(parse("", "", "Max open files  unlimited", "nothing"), ProcessFigures::default());
    }

    #[test]
    fn this_process_has_figures() {
        let figures = ProcessFigures::of_this_process();
        assert!(figures.threads.is_some_and(|n| n > 0));
        assert!(figures.resident_bytes.is_some_and(|n| n > 0));
        assert!(figures.open_fds.is_some_and(|n| n > 2));
        assert!(figures.started.is_some_and(|at| at < SystemTime::now()));
    }
}
