//! Cost of observation: time spent in observers, CPU time limit and memory limit.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// One call in this many calls is timed.
const SAMPLE: u8 = 64;

thread_local! {
    /// Calls since the last timed call on this thread.
    static UNTIMED: Cell<u8> = const { Cell::new(0) };
}

/// A call to an observer. One call in [`SAMPLE`] is timed.
#[derive(Debug)]
pub(super) struct Sample(Option<Instant>);

impl Sample {
    /// Starts the call.
    pub(super) fn begin() -> Sample {
        let untimed = UNTIMED.get().wrapping_add(1) % SAMPLE;
        UNTIMED.set(untimed);
        Sample((untimed == 0).then(Instant::now))
    }

    /// Ends the call. If it was timed, adds its time, multiplied by [`SAMPLE`], to `all`.
    pub(super) fn end(self, all: &AtomicU64) {
        if let Sample(Some(begin)) = self {
            let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            all.fetch_add(nanos.saturating_mul(u64::from(SAMPLE)), Ordering::Relaxed);
        }
    }
}

/// CPU time of this thread so far.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Assumed slowdown of this build relative to a release build (sanitizer, debug assertions).
const SLOWNESS: i32 = if cfg!(fuzzing) {
    50
} else if cfg!(debug_assertions) {
    5
} else {
    1
};

/// CPU nanoseconds added to the budget per received byte. The most expensive known input, individually compressed
/// events, costs up to a quarter of this on a busy machine.
const PER_BYTE: i32 = 1_000 * SLOWNESS;

/// Maximum CPU budget of a connection, in nanoseconds.
const MAXIMUM: i32 = 40_000_000 * SLOWNESS;

/// Remaining CPU time of one connection's observer, in nanoseconds.
#[derive(Debug)]
pub(super) struct CpuBudget(i32);

impl Default for CpuBudget {
    fn default() -> CpuBudget {
        CpuBudget(MAXIMUM)
    }
}

impl CpuBudget {
    /// A budget that this many bytes must be received to restore.
    #[cfg(test)]
    pub(super) fn exhausted(bytes: usize) -> CpuBudget {
        CpuBudget(-(bytes as i32) * PER_BYTE)
    }

    /// True until enough bytes are received.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0 < 0
    }

    /// Adds CPU time for received bytes and subtracts the time taken. Returns false if the budget is exhausted.
    pub(super) fn spend(&mut self, bytes: usize, taken: Duration) -> bool {
        let earned = i32::try_from(bytes).unwrap_or(i32::MAX).saturating_mul(PER_BYTE);
        let taken = i32::try_from(taken.as_nanos()).unwrap_or(i32::MAX);
        self.0 = self.0.saturating_add(earned).min(MAXIMUM).saturating_sub(taken);
        self.0 >= 0
    }
}

/// Maximum of [`automatic_memory`].
const MAX_AUTOMATIC_MEMORY: usize = 64 * 1024 * 1024;

/// The default memory budget of this process: half of the container's memory limit, at most 64 MiB.
pub(super) fn automatic_memory() -> usize {
    memory_limit().map_or(MAX_AUTOMATIC_MEMORY, |limit| (limit / 2).min(MAX_AUTOMATIC_MEMORY))
}

/// Limits from this size on mean "unlimited": without a limit, cgroup v1 reports the maximum number of pages, in bytes.
const UNLIMITED: usize = 1 << 60;

/// Memory limit in bytes of this process's control group and its ancestors; `None` if unlimited.
///
/// Supports cgroup v2 (`memory.max`) and v1 (`memory.limit_in_bytes`), see cgroups(7). In a container, the paths in
/// `/proc/self/cgroup` may be the host's paths and not exist; the mounted root is then the container's own group.
pub fn memory_limit() -> Option<usize> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = own.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            v1 if v1.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let own = Path::new(root).join(path.trim_start_matches('/'));
        own.ancestors()
            .take_while(|group| group.starts_with(root))
            .filter_map(|group| read(&group.join(file)))
            .collect()
    });
    limits.filter(|limit| *limit < UNLIMITED).min()
}

fn read(file: &Path) -> Option<usize> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_earn_time_up_to_the_maximum() {
        let nanos = |nanos: i32| Duration::from_nanos(nanos.unsigned_abs().into());
        let mut budget = CpuBudget::default();
        assert!(budget.spend(0, nanos(MAXIMUM)));
        assert!(budget.spend(10, nanos(10 * PER_BYTE)));
        assert!(!budget.spend(0, nanos(1)));
        assert!(budget.spend(usize::MAX, nanos(MAXIMUM)));
        assert!(!budget.spend(0, nanos(1)));
    }

    #[test]
    fn sampled_call_time_is_scaled_to_all_calls() {
        let all = AtomicU64::new(0);
        let timed = (0..2 * u32::from(SAMPLE)).filter(|_| Sample::begin().0.is_some()).count();
        assert_eq!(timed, 2);
        Sample(Some(Instant::now())).end(&all);
        let scaled = all.load(Ordering::Relaxed);
        assert!(scaled > 0 && scaled.is_multiple_of(u64::from(SAMPLE)), "{scaled}");
    }
}
