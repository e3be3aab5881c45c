//! Interpretation of engine spans.
//!
//! - vLLM 0.32 and TensorRT-LLM 1.x: one span `llm_request` for each sequence that finished; aborted ones have none.
//!   `gen_ai.latency.*` is in seconds. `gen_ai.request.id` is the id of the response, followed by the number of the
//!   prompt on completions (`cmpl-…-0`) and of the turn on responses (`resp_…_0`).
//! - SGLang 0.5: a root span ` Req <8 digits>` with the attribute `rid`, which is the id of the response; below it one
//!   span for each thread, and below that of the scheduler a stage `prefill_waiting`, which is the queue. Its
//!   `gen_ai.latency.time_in_model_prefill` and `…_inference` start when the request is handed to the scheduler,
//!   so they include the queue and are ignored here.

use std::time::Duration;

use crate::engine_spans::spans::Attribute;
use crate::engine_spans::spans::Span;
use tokometer_observe::measure::EngineSpan;

/// Name of vLLM's and TensorRT-LLM's request span.
const REQUEST: &str = "llm_request";
/// Part of the name of SGLang's request span.
const SGLANG_REQUEST: &str = "Req ";
/// Name of SGLang's queue stage.
const SGLANG_QUEUE: &str = "prefill_waiting";

/// Maximum id length in bytes. Response ids are cut at this length, and a cut id cannot be matched.
const ID_BYTES: usize = 127;

/// Meaning of a span.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meaning {
    /// A request that finished.
    Request(Box<Request>),
    /// SGLang's queue stage, with its duration.
    Queued(Duration),
    /// Anything else.
    Other,
}

/// A request as reported by its engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    /// The id of its response, in the form returned by [`of_answer`].
    pub(crate) id: Option<Box<str>>,
    /// The parent span: the caller's, where the caller sent a `traceparent`.
    pub(crate) parent: Option<u64>,
    /// Duration between the span's start and end, used where no attribute gives it.
    pub(crate) spanned: Duration,
    /// Its queue time is reported by a separate span (SGLang).
    pub(crate) staged: bool,
    pub(crate) told: EngineSpan,
}

impl Request {
    /// Time from its arrival to its end.
    pub(crate) fn duration(&self) -> Duration {
        self.told.e2e.unwrap_or(self.spanned)
    }
}

/// The meaning of a span.
pub(crate) fn meaning(span: &Span<'_>) -> Meaning {
    match span.name {
        SGLANG_QUEUE => Meaning::Queued(spanned(span)),
        REQUEST => request(span, false),
        // `rid` is required, because spans of other programs may have similar names.
        name if name.contains(SGLANG_REQUEST) => request(span, true),
        _ => Meaning::Other,
    }
}

fn request(span: &Span<'_>, sglang: bool) -> Meaning {
    let mut told = EngineSpan { trace_id: span.trace_id, span_id: span.span_id, ..EngineSpan::default() };
    let (mut id, mut rid) = (None, None);
    for (key, value) in span.attributes() {
        match key {
            "gen_ai.request.id" => id = text(value),
            "rid" => rid = text(value),
            "gen_ai.latency.time_in_queue" => told.queue = seconds(value),
            "gen_ai.latency.time_in_model_prefill" if !sglang => told.prefill = seconds(value),
            "gen_ai.latency.time_in_model_decode" => told.decode = seconds(value),
            "gen_ai.latency.time_to_first_token" => told.first_token = seconds(value),
            "gen_ai.latency.e2e" => told.e2e = seconds(value),
            "gen_ai.usage.prompt_tokens" => told.prompt_tokens = whole(value),
            "gen_ai.usage.cached_tokens" => told.cached_tokens = whole(value),
            "gen_ai.usage.completion_tokens" => told.completion_tokens = whole(value),
            _ => {}
        }
    }
    if sglang && rid.is_none() {
        return Meaning::Other;
    }
    let id = if sglang { rid } else { id };
    Meaning::Request(Box::new(Request {
        id: id.and_then(of_span).map(Box::from),
        parent: span.parent,
        spanned: spanned(span),
        staged: sglang,
        told,
    }))
}

fn spanned(span: &Span<'_>) -> Duration {
    Duration::from_nanos(span.end.saturating_sub(span.start))
}

fn text(value: Attribute<'_>) -> Option<&str> {
    match value {
        Attribute::Text(text) => Some(text),
        _ => None,
    }
}

/// Seconds as a duration; negative, infinite and implausible values are rejected.
fn seconds(value: Attribute<'_>) -> Option<Duration> {
    const MOST: f64 = 1e7;
    match value {
        Attribute::Real(value) if (0.0..MOST).contains(&value) => Some(Duration::from_secs_f64(value)),
        Attribute::Whole(value) => {
            u64::try_from(value).ok().filter(|value| *value < MOST as u64).map(Duration::from_secs)
        }
        _ => None,
    }
}

fn whole(value: Attribute<'_>) -> Option<u64> {
    match value {
        Attribute::Whole(value) => u64::try_from(value).ok(),
        _ => None,
    }
}

/// A response's `id` in the form used for matching: TensorRT-LLM adds a prefix to the number that its span has.
pub(crate) fn of_answer(id: &str) -> Option<&str> {
    let bare = ["chatcmpl-", "cmpl-"].iter().find_map(|prefix| id.strip_prefix(prefix)).filter(|rest| is_number(rest));
    fits(bare.unwrap_or(id))
}

/// A span's id without the number of the prompt or turn.
fn of_span(id: &str) -> Option<&str> {
    let numbered = |separator: char, prefix: &str| {
        let (head, number) = id.rsplit_once(separator)?;
        (head.starts_with(prefix) && is_number(number)).then_some(head)
    };
    of_answer(numbered('-', "cmpl-").or_else(|| numbered('_', "resp_")).unwrap_or(id))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn fits(id: &str) -> Option<&str> {
    (!id.is_empty() && id.len() <= ID_BYTES).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_response_and_its_span_are_equal() {
        for (answer, span) in [
            ("chatcmpl-90a6e59d74917832", "chatcmpl-90a6e59d74917832"),
            ("cmpl-b641edb79443fcc6", "cmpl-b641edb79443fcc6-0"),
            ("cmpl-b641edb79443fcc6", "cmpl-b641edb79443fcc6-12"),
            ("resp_81ca9b7fccd3e0b3", "resp_81ca9b7fccd3e0b3_0"),
            ("chatcmpl-my-5", "chatcmpl-my-5"),
            ("cmpl-my-5", "cmpl-my-5-0"),
            ("2f0d8d4b1c9e4c51b1f0f5a3a0d1e2f3", "2f0d8d4b1c9e4c51b1f0f5a3a0d1e2f3"),
            ("chatcmpl-17", "17"),
            ("cmpl-17", "17"),
        ] {
            assert_eq!(of_answer(answer), of_span(span), "{answer} and {span}");
            assert!(of_answer(answer).is_some());
        }
        assert_ne!(of_answer("chatcmpl-a"), of_span("cmpl-a-0"));
        assert_eq!(of_answer(""), None);
        assert_eq!(of_answer(&"x".repeat(128)), None, "it may have been cut");
    }

    #[test]
    fn impossible_times_are_none() {
        for wrong in [-0.1, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(seconds(Attribute::Real(wrong)), None);
        }
        assert_eq!(seconds(Attribute::Real(0.25)), Some(Duration::from_millis(250)));
        assert_eq!(seconds(Attribute::Whole(2)), Some(Duration::from_secs(2)));
        assert_eq!((seconds(Attribute::Whole(-2)), seconds(Attribute::Text("2"))), (None, None));
    }
}
