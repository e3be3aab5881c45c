//! The block `telemetry.prompt_classes`.

use crate::config::checked::Problems;
use crate::config::raw::PromptClasses;
use tokometer_telemetry::export;

const BOUNDS: &str = "telemetry.prompt_classes.input_length_bounds";

/// Checks that the bounds exist, are few, and ascend.
pub(super) fn checked(raw: &PromptClasses, problems: &mut Problems<'_>) -> export::PromptClasses {
    let bounds = &raw.input_length_bounds;
    let most = export::PromptClasses::MOST_BOUNDS;
    if bounds.len() > most {
        problems.error(BOUNDS, format!("{} bounds are too many; write at most {most}", bounds.len()));
    }
    for (index, pair) in bounds.windows(2).enumerate() {
        if let [before, after] = pair
            && before >= after
        {
            let message = format!("{after} after {before}: bounds must be in ascending order");
            problems.error(&format!("{BOUNDS}[{}]", index + 1), message);
        }
    }
    if raw.input_length && bounds.is_empty() {
        problems.error(BOUNDS, "no bounds are set; write token counts such as 1024, 8192, or `input_length: false`");
    }
    if !raw.input_length && *bounds != PromptClasses::default().input_length_bounds {
        problems.warn(BOUNDS, "has no effect: `input_length` is off; set it to true");
    }
    export::PromptClasses {
        input_bounds: if raw.input_length { bounds.clone() } else { Vec::new() },
        cache_hit: raw.cache_hit,
    }
}
