//! What is asserted of every attack, and why.

use std::time::Duration;

/// CPU time of the data path's threads per MB that the attackers sent. A stream's own bytes cost a tenth of it; unbounded decoding
/// costs ten to nine hundred times as much.
pub(crate) const CPU_PER_MB: Duration = Duration::from_millis(100);

/// CPU time of a connection's begin and end, which an attacker's few bytes do not pay for.
pub(crate) const CPU_PER_CONNECTION: Duration = Duration::from_micros(300);

/// CPU time that noise of the measurement may add: the cost of the bystanders differs from what was measured before the attack, and
/// other work on the machine makes every instruction slower. The table has the values without it.
pub(crate) const CPU_NOISE: Duration = Duration::from_millis(100);

/// Decoded bytes per received byte: the default of `observe.coding_ratio`, and what each connection may decode at first. All bytes
/// count, those of other clients too.
pub(crate) const DECODED_PER_RECEIVED: f64 = 40.0;

/// Memory with the default settings: half of the chart's limit.
pub(crate) const RESIDENT: u64 = 128 << 20;

/// Longest delay of an event of another stream. The goal is a quarter of a second on two idle cores; the bound is wider because
/// the attackers and the upstream use the same cores.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The goal, which the table marks.
pub(crate) const PAUSE_GOAL: Duration = Duration::from_millis(250);

/// Longest time of a probe: the default of a probe's `timeoutSeconds`.
pub(crate) const PROBE: Duration = Duration::from_secs(1);

/// How soon after SIGTERM the program is to say that it drains.
pub(crate) const DRAINS_WITHIN: Duration = Duration::from_secs(2);

/// How soon after its last stream it is to end. The exporters' last push may take 1.5 s.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// How long the attackers try.
pub(crate) const ATTACK: Duration = Duration::from_secs(10);

/// How long the data path may go on working after the attackers are done. Only a program that fails takes so long.
pub(crate) const LATEST_CALM: Duration = Duration::from_secs(15);

/// How long bystanders may take to end. Only a program that fails takes so long.
pub(crate) const LATEST_END: Duration = Duration::from_secs(20);
