//! The measurements as a Markdown table.

use crate::arena::Measured;
use crate::attack::Attack;
use crate::limits;

/// The headers, and the measurements of one attack below them.
pub(crate) const HEADER: &str = "\
| attack | connections | bytes sent | CPU s per MB | decoded per byte | longest pause of a stream | same, direct | slowest probe | peak RSS | over a limit |
|---|---|---|---|---|---|---|---|---|---|";

/// Bytes from which CPU time per MB is more than noise.
const SOME_BYTES: u64 = 50_000;

pub(crate) fn row(attack: &Attack, measured: &Measured, over: &[String]) -> String {
    let seen = &measured.seen;
    let cpu = if measured.bytes < SOME_BYTES {
        "-".to_owned()
    } else {
        format!("{}{:.3}", if measured.busy { "> " } else { "" }, measured.cpu_per_mb())
    };
    let decoded = measured.decoded.map_or_else(|| "-".to_owned(), |decoded| format!("{decoded:.1}"));
    let missed = if seen.pause > limits::PAUSE_GOAL { " (missed)" } else { "" };
    let mut memory = format!("{} MiB", measured.resident >> 20);
    if let Some((kills, peak)) = measured.cgroup {
        memory = format!("{} MiB in the cgroup, {kills} OOM kills", peak >> 20);
    }
    format!(
        "| {} | {} | {} | {cpu} | {decoded} | {} ms{missed} | {} ms | {} ms | {memory} | {} |",
        attack.name,
        attack.connections,
        measured.bytes,
        seen.pause.as_millis(),
        seen.direct.as_millis(),
        seen.probe.as_millis(),
        over.len(),
    )
}
