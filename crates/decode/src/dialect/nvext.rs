//! `nvext`, which NVIDIA Dynamo 1.6 adds to OpenAI responses on request (`nvext.extra_fields`).

use super::Place;
use crate::scan::Keys;

/// `nvext`
pub(super) static NVEXT: Keys<Place> = Keys::new(&[("timing", Place::NvextTiming)]);

/// `nvext.timing`, on the last event
pub(super) static TIMING: Keys<Place> =
    Keys::new(&[("prefill_wait_time_ms", Place::QueueMs), ("prefill_time_ms", Place::PrefillMs)]);
