//! Statistics of this process from the kernel.

use std::fs;
use std::time::Duration;

use tokometer_metrics::table::Id;
use tokometer_metrics::{Collect, Number, Points};

/// Clock ticks per second in `/proc`: `USER_HZ`, 100 on every Linux architecture that Rust's std supports.
const TICKS: u64 = 100;

/// Exports values from `/proc/self` (proc_pid_stat(5), proc_pid_status(5), proc_pid_limits(5)). On systems other than
/// Linux there are no values.
#[derive(Clone, Copy, Debug)]
pub struct Process;

impl Collect for Process {
    fn collect(&self, points: &mut Points<'_>) {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (stat, status) = (read("/proc/self/stat"), read("/proc/self/status"));
        for (id, value) in parse(&stat, &status, &read("/proc/self/limits"), &read("/proc/stat")) {
            points.put(id, &[], value);
        }
        points.put(Id::OpenFds, &[], open_descriptors());
    }
}

/// Number of open file descriptors of this process. Since Linux 6.2, this is the size of `/proc/self/fd`. Before 6.2
/// the size is 0, so the entries are counted.
pub fn open_descriptors() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count() as u64),
        size => Some(size),
    }
}

fn parse(stat: &str, status: &str, limits: &str, system: &str) -> [(Id, Option<f64>); 6] {
    // The command in parentheses may itself contain spaces and parentheses; field 3 follows the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let line = |text: &str, key: &str| -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    let ticks = |n: u64| Duration::from_millis(n.saturating_mul(1000 / TICKS));
    let boot = line(system, "btime ").map(Duration::from_secs);
    [
        (Id::Cpu, field(14).zip(field(15)).map(|(user, system)| ticks(user + system)).number()),
        (Id::ResidentMemory, line(status, "VmRSS:").map(|kib| kib * 1024).number()),
        (Id::VirtualMemory, line(status, "VmSize:").map(|kib| kib * 1024).number()),
        (Id::MaxFds, line(limits, "Max open files").number()),
        (Id::Threads, line(status, "Threads:").number()),
        (Id::StartTime, boot.zip(field(22)).map(|(boot, after)| boot + ticks(after)).number()),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use tokometer_metrics::values_of;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "4242 (to ko) meter) S 1 4242 4242 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 123456 9 8 7";
        let values = parse(
            stat,
            "Name:\ttokometer\nVmSize:\t  20480 kB\nVmRSS:\t   1024 kB\nThreads:\t7\n",
            "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 4096                 files\n",
            "cpu 1 2 3\nbtime 1700000000\n",
        );
        let want = [
            (Id::Cpu, 3.0),
            (Id::ResidentMemory, f64::from(1 << 20)),
            (Id::VirtualMemory, f64::from(20 << 20)),
            (Id::MaxFds, 1024.0),
            (Id::Threads, 7.0),
            (Id::StartTime, 1_700_001_234.56),
        ];
        assert_eq!(values, want.map(|(id, value)| (id, Some(value))));
    }

    #[test]
    fn unparsable_values_are_none() {
        assert!(parse("", "", "Max open files  unlimited", "nothing").iter().all(|(_, value)| value.is_none()));
    }

    #[test]
    fn own_process_has_statistics() {
        let value = |id| values_of(&Process, id)[0];
        assert!(value(Id::Threads) > 0.0);
        assert!(value(Id::ResidentMemory) > 0.0);
        assert!(value(Id::OpenFds) > 2.0);
        assert!(value(Id::StartTime) < SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64());
    }
}
