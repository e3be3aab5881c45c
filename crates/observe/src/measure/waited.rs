//! How long a request waited in the server's queue, by the best that its answer tells.

use std::time::Duration;

use crate::measure::QueueSource;
use crate::measure::QueueTime;
use tokometer_decode::EngineTiming;

/// What of an answer tells it. Times are counted from the first byte of the request.
pub(super) struct Signs<'a> {
    /// The engine's own times.
    pub(super) timing: Option<&'a EngineTiming>,
    /// A wait that the response head told.
    pub(super) told_by_head: Option<Duration>,
    /// Last byte of the request.
    pub(super) requested: Option<Duration>,
    /// The response head, where the engine sends it when work begins.
    pub(super) began: Option<Duration>,
    /// First event that carried a token.
    pub(super) first_token: Option<Duration>,
}

impl Signs<'_> {
    /// The queue time; `None` where nothing tells it.
    pub(super) fn queue_time(&self) -> Option<QueueTime> {
        let time = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).ok();
        if let Some(ms) = self.timing.and_then(|timing| timing.queue_ms) {
            return Some(QueueTime { value: time(ms)?, source: QueueSource::InBand });
        }
        if let Some(value) = self.told_by_head {
            return Some(QueueTime { value, source: QueueSource::ResponseHeader });
        }
        if let Some(ms) = self.timing.and_then(|timing| timing.untold_ms()) {
            return Some(QueueTime { value: time(ms)?, source: QueueSource::Remainder });
        }
        let mut began = self.began?;
        // A head that was read with the first token waited for it, in the server or in a socket: work began as long before
        // as the prompt took, where that is told.
        if self.began == self.first_token {
            began = began.saturating_sub(self.timing.and_then(|timing| time(timing.prompt_ms?))?);
        }
        let value = began.saturating_sub(self.requested?);
        Some(QueueTime { value, source: QueueSource::HeaderTiming })
    }
}
