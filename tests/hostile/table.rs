//! The measurements as a Markdown table.

use std::time::Duration;

use crate::arena::Measured;
use crate::attack::Attack;
use crate::limits;

/// The table header. `--table` also runs each attack in memory cgroups; the other runs have one column for the memory.
pub(crate) const HEADER: &str = "\
| attack | connections | bytes sent | CPU s per MB | decoded per byte | longest pause | slowest probe | peak memory |";

/// Further columns of `--table`.
pub(crate) const CGROUPS: &str = " in 64 MiB | in 256 MiB |";

/// Memory limits of the further columns.
pub(crate) const LIMITS: [u64; 2] = [64 << 20, 256 << 20];

/// Minimum bytes of an attack; with fewer, its CPU time per MB is noise.
const SOME_BYTES: u64 = 50_000;

/// The row of an attack.
pub(crate) fn row(attack: &Attack, measured: &Measured) -> String {
    let seen = &measured.seen;
    let cpu = if measured.bytes < SOME_BYTES {
        "-".to_owned()
    } else {
        format!(
            "{}{:.3}",
            if measured.busy { "> " } else { "" },
            measured.cpu.as_secs_f64() / (measured.bytes as f64 / 1e6)
        )
    };
    let decoded = measured.decoded.map_or_else(|| "-".to_owned(), |decoded| format!("{decoded:.1}"));
    let missed = if seen.pause > limits::PAUSE_GOAL { " (missed)" } else { "" };
    format!(
        "| {} | {} | {} | {cpu} | {decoded} | {}{missed} | {} | {} |",
        attack.name,
        attack.connections,
        measured.bytes,
        millis(seen.pause),
        millis(seen.probe),
        memory(measured),
    )
}

/// Peak memory of the process, or of its cgroup with the memory of its sockets.
pub(crate) fn memory(measured: &Measured) -> String {
    match measured.cgroup {
        None => format!("{} MiB", measured.resident >> 20),
        Some((0, peak)) => format!("{} MiB", peak >> 20),
        Some((kills, peak)) => format!("{} MiB, {kills} OOM kills", peak >> 20),
    }
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
