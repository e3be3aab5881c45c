//! Settings of in-flight tracking and wedge detection, from the blocks `live`, `wedge` and `observe`.

use std::time::Duration;

use crate::config::checked::Problems;
use crate::config::checked::size;
use crate::config::raw::Raw;
use tokometer_telemetry::live;

/// Checks combinations of keys: a wedge bound must exceed the stall bound.
pub(super) fn checked(raw: &Raw, problems: &mut Problems<'_>) -> live::Settings {
    let wedge = &raw.wedge;
    let stall = Duration::from_millis(raw.observe.stall_ms);
    for (key, secs) in [("decode_secs", wedge.decode_secs), ("prefill_secs", wedge.prefill_secs)] {
        if Duration::from_secs(secs) <= stall {
            problems.error(
                &format!("wedge.{key}"),
                format!(
                    "{secs} s is not above observe.stall_ms ({}), so every stall would count as a wedge; write a higher value, such as 60",
                    raw.observe.stall_ms
                ),
            );
        }
    }
    if !raw.observe.enabled && problems.is_set("wedge") {
        problems.warn("wedge", "has no effect: observe.enabled is false, so /engine/healthz always returns 200");
    }
    live::Settings {
        max_in_flight: size(raw.live.max_in_flight),
        recent_bytes: size(raw.live.recent_bytes),
        slowest: size(raw.live.slowest),
        slowest_age: Duration::from_secs(raw.live.slowest_secs),
        stall,
        bounds: live::Bounds {
            decode: Duration::from_secs(wedge.decode_secs),
            prefill: Duration::from_secs(wedge.prefill_secs),
            prefill_more: Duration::from_secs(wedge.prefill_more_secs),
            prefill_tokens_per_second: wedge.prefill_tokens_per_second as f64,
            bytes_per_token: wedge.bytes_per_token as f64,
            whole_tokens_per_second: wedge.whole_tokens_per_second as f64,
            whole_tokens: wedge.whole_tokens,
        },
    }
}
