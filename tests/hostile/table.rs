//! The measurements as a Markdown table, next to older ones from before tokometer limited its CPU time and memory.

use std::time::Duration;

use crate::arena::Measured;
use crate::attack::Attack;
use crate::limits;

/// Results of the same attacks before tokometer had these limits: name, connections, CPU s per MB, longest pause in ms,
/// slowest probe in ms and peak memory in MiB, tab-separated.
const BEFORE: &str = include_str!("before.tsv");

/// The table header.
pub(crate) const HEADER: &str = "\
| attack | connections | bytes sent | CPU s per MB | before | decoded per byte | longest pause | before | slowest probe | before | peak memory | before |
|---|---|---|---|---|---|---|---|---|---|---|---|";

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
    let mut memory = format!("{} MiB", measured.resident >> 20);
    if let Some((kills, peak)) = measured.cgroup {
        memory = format!("{} MiB in the cgroup, {kills} OOM kills", peak >> 20);
    }
    let [cpu_before, pause_before, probe_before, memory_before] = before(attack);
    format!(
        "| {} | {} | {} | {cpu} | {cpu_before} | {decoded} | {}{missed} | {} | {} | {} | {memory} | \
         {} |",
        attack.name,
        attack.connections,
        measured.bytes,
        millis(seen.pause),
        with_unit(pause_before, "ms"),
        millis(seen.probe),
        with_unit(probe_before, "ms"),
        with_unit(memory_before, "MiB"),
    )
}

fn with_unit(value: &str, unit: &str) -> String {
    if value == "-" { value.to_owned() } else { format!("{value} {unit}") }
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// The attack's results in `BEFORE`.
fn before(attack: &Attack) -> [&'static str; 4] {
    let connections = attack.connections.to_string();
    let found = BEFORE.lines().find_map(|line| {
        let mut fields = line.split('\t');
        let same = fields.next() == Some(attack.name.as_str()) && fields.next() == Some(connections.as_str());
        same.then_some(fields)
    });
    let mut fields = found.into_iter().flatten();
    [(); 4].map(|()| fields.next().unwrap_or("-"))
}
