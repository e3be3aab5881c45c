//! The asserted limits, and their reasons.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::options::REWRITES;

/// CPU time of the data path's threads per MB sent by the attackers. Regular stream traffic costs a tenth of this
/// limit; unbounded decoding costs 10 to 900 times the limit.
pub(crate) const CPU_PER_MB: Duration = Duration::from_millis(100);

/// CPU time for opening and closing a connection, which involves too few bytes for the limit above.
pub(crate) const CPU_PER_CONNECTION: Duration = Duration::from_micros(300);

/// Debug assertions and small codegen units cost the data path a factor of 2; the rest allows for slower machines. The
/// release build must meet the limits without this factor (stage `hostile-release`).
pub(crate) const DEBUG_CPU_FACTOR: u32 = 4;

/// Maximum number of runs of an attack that exceeds its limit of CPU time: other work on the machine (a shared core,
/// evicted caches) can only add to the time, so the lowest value counts.
pub(crate) const CPU_TRIES: u32 = 3;

/// Allowance for measurement noise: the bystanders' cost differs from that measured before the attack, and other work
/// on the machine slows down every instruction. The measurements in the table do not include it.
pub(crate) const CPU_NOISE: Duration = Duration::from_millis(100);

/// Decoded bytes per received byte: the default of `observe.coding_ratio`, plus the initial allowance of each
/// connection. The received bytes include those of other clients.
const DECODED_PER_RECEIVED: f64 = 40.0;

/// [`DECODED_PER_RECEIVED`] of these listeners. In rewrite mode, a small request body is decoded twice: to change it,
/// and to observe it.
pub(crate) fn decoded_per_received() -> f64 {
    if REWRITES.load(Relaxed) { 2.0 * DECODED_PER_RECEIVED } else { DECODED_PER_RECEIVED }
}

/// Maximum memory with the default settings: half of the chart's limit.
pub(crate) const RESIDENT: u64 = 128 << 20;

/// Maximum delay of an event on another stream. The goal is 250 ms on two idle cores; the limit is wider because the
/// attackers and the upstream share the cores.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Goal for the delay of an event. The table marks values that miss it.
pub(crate) const PAUSE_GOAL: Duration = Duration::from_millis(250);

/// Maximum duration of a probe: the default of a probe's `timeoutSeconds`.
pub(crate) const PROBE: Duration = Duration::from_secs(1);

/// Maximum time from SIGTERM until readiness reports draining.
pub(crate) const DRAINS_WITHIN: Duration = Duration::from_secs(2);

/// Maximum time from the last stream to the exit. The exporters' last push may take 1.5 s.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Maximum duration of an attack.
pub(crate) const ATTACK: Duration = Duration::from_secs(10);

/// Timeout for the data path to become calm after an attack; reached only by a failing program.
pub(crate) const LATEST_CALM: Duration = Duration::from_secs(15);

/// Timeout for the bystanders to finish; reached only with a failing program.
pub(crate) const LATEST_END: Duration = Duration::from_secs(20);

/// The limits of an attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) cpu_per_mb: Duration,
    pub(crate) resident: u64,
    pub(crate) pause: Duration,
}

/// Limit for rewrite mode, where pingora-proxy 0.9.1 itself needs more CPU time (docs/how-to/rewrite.md): each HTTP/2
/// stream is a task with a connection to the server, and each chunk of a body is a channel message and a write.
const REWRITE_CPU_PER_MB: Duration = Duration::from_secs(1);

/// Memory per response in rewrite mode: eleven reads of 64 KiB (four in a channel, five in a batch, and their copy).
const REWRITE_RESPONSE: u64 = 11 * (64 << 10);

/// Memory per open request in rewrite mode.
const REWRITE_REQUEST: u64 = 24 << 10;

/// The limits of the attack of this name.
pub(crate) fn of(attack: &str) -> Limits {
    let mut limits = Limits { cpu_per_mb: CPU_PER_MB, resident: RESIDENT, pause: PAUSE };
    if REWRITES.load(Relaxed) {
        if attack == "h1-chunks" || attack.starts_with("h2-") || attack.starts_with("grpc-") {
            limits.cpu_per_mb = REWRITE_CPU_PER_MB;
        }
        match attack {
            "h1-slow-readers" => limits.resident += 200 * REWRITE_RESPONSE,
            // 80 connections with 100 streams each begin at once.
            "h2-open-streams" => (limits.resident, limits.pause) = (RESIDENT + 8_000 * REWRITE_REQUEST, 3 * PAUSE),
            _ => {}
        }
    }
    limits
}
