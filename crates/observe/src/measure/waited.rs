//! Derives the queue time of a request from the best source in its response.

use std::time::Duration;

use crate::measure::QueueSource;
use crate::measure::QueueTime;
use tokometer_decode::EngineTiming;

/// Sources of the queue time. Times are relative to the first byte of the request.
pub(super) struct Signs<'a> {
    /// Times reported by the engine.
    pub(super) timing: Option<&'a EngineTiming>,
    /// Queue time in a response header.
    pub(super) told_by_head: Option<Duration>,
    /// Last byte of the request.
    pub(super) requested: Option<Duration>,
    /// Time of the response headers, if the engine sends them when work begins.
    pub(super) began: Option<Duration>,
    /// First event that carried a token.
    pub(super) first_token: Option<Duration>,
}

impl Signs<'_> {
    /// The queue time; `None` if no source has it.
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
        // Headers read together with the first token were delayed by it, in the server or in a socket. Work began
        // earlier by the prompt time, if it was reported.
        if self.began == self.first_token {
            began = began.saturating_sub(self.timing.and_then(|timing| time(timing.prompt_ms?))?);
        }
        let value = began.saturating_sub(self.requested?);
        Some(QueueTime { value, source: QueueSource::HeaderTiming })
    }
}
