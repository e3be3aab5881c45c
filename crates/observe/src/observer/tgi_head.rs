//! Response headers of Text Generation Inference with queue time and counts (router/src/server.rs, `generate`, version
//! 3.3; also on chats and completions). Only on non-streamed responses: a stream's headers are sent before the values
//! are known.

use std::time::Duration;

use tokometer_decode::Counter;

/// Queue time and counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Told {
    /// `x-queue-time`: from validation to batching. Whole milliseconds, rounded down.
    pub(super) queue: Option<Duration>,
    /// `x-prompt-tokens` and `x-generated-tokens`.
    pub(super) counter: Counter,
}

impl Told {
    /// Reads these headers. `None` unless they are TGI's: `x-queue-time` alone is too generic.
    pub(super) fn by<'a>(header: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Told> {
        header("x-compute-type")?;
        header("x-time-per-token")?;
        let whole = |name| std::str::from_utf8(header(name)?).ok()?.trim().parse::<u64>().ok();
        let counter =
            Counter { input: whole("x-prompt-tokens"), output: whole("x-generated-tokens"), ..Counter::default() };
        Some(Told { queue: whole("x-queue-time").map(Duration::from_millis), counter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(headers: &[(&str, &'static str)]) -> Option<Told> {
        Told::by(|wanted| headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_bytes()))
    }

    #[test]
    fn queue_time_and_counts_are_read_only_from_tgi() {
        let all = [
            ("x-compute-type", "1-nvidia-a10g"),
            ("x-compute-time", "0.532"),
            ("x-total-time", "532"),
            ("x-validation-time", "0"),
            ("x-queue-time", "120"),
            ("x-inference-time", "412"),
            ("x-time-per-token", "20"),
            ("x-prompt-tokens", "17"),
            ("x-generated-tokens", "20"),
        ];
        let counter = Counter { input: Some(17), output: Some(20), ..Counter::default() };
        assert_eq!(told(&all), Some(Told { queue: Some(Duration::from_millis(120)), counter }));
        assert_eq!(told(&all[1..]), None, "not a TGI response");
        let streamed = [("x-compute-type", "cpu"), ("x-compute-characters", "9")];
        assert_eq!(told(&streamed), None, "headers of a stream have no values");
    }

    #[test]
    fn invalid_numbers_are_none() {
        let odd = [
            ("x-compute-type", "cpu"),
            ("x-time-per-token", "1"),
            ("x-queue-time", "1.5"),
            ("x-prompt-tokens", "-1"),
            ("x-generated-tokens", ""),
        ];
        assert_eq!(told(&odd), Some(Told { queue: None, counter: Counter::default() }));
    }
}
