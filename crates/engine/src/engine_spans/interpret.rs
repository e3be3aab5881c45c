//! Interpretation of engine spans.
//!
//! - vLLM 0.32 and TensorRT-LLM 1.x: one span `llm_request` for each finished sequence; aborted sequences have no span.
//!   `gen_ai.latency.*` is in seconds. `gen_ai.request.id` is the response id, followed by the prompt number on
//!   completions (`cmpl-…-0`) and the turn number on responses (`resp_…_0`).
//! - SGLang 0.5: a root span ` Req <8 digits>`, whose attribute `rid` is the response id. The root has one child span
//!   per thread; the scheduler's span has a child `prefill_waiting`, which is the queue. SGLang's
//!   `gen_ai.latency.time_in_model_prefill` and `…_inference` start when the request is handed to the scheduler, so
//!   they include the queue time and are ignored here.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokometer_observe::measure::EngineSpan;

use crate::engine_spans::spans::{Span, Value};

/// Name of vLLM's and TensorRT-LLM's request span.
const REQUEST: &str = "llm_request";
/// Part of the name of SGLang's request span.
const SGLANG_REQUEST: &str = "Req ";
/// Name of SGLang's queue stage.
const SGLANG_QUEUE: &str = "prefill_waiting";

/// Maximum id length in bytes. Longer response ids are truncated and cannot be matched.
pub const ID_BYTES: usize = 127;

/// The span of one request, as reported by its engine.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSpan {
    /// The response id, in the form returned by `comparable_id`.
    pub id: Option<Box<str>>,
    /// The parent span: the caller's span if the caller sent a `traceparent`.
    pub parent: Option<u64>,
    /// Time between the span's start and end, used if no attribute contains the request's duration.
    pub length: Duration,
    /// The values of the span's attributes.
    pub reported: EngineSpan,
}

impl RequestSpan {
    /// Time from the request's arrival to its end.
    pub(crate) fn duration(&self) -> Duration {
        self.reported.e2e.unwrap_or(self.length)
    }
}

/// Trace id and span id.
type SpanKey = (u128, u64);

/// Data kept for one SGLang span until its request is complete.
#[derive(Debug)]
enum Known {
    /// Duration of the queue stage whose parent is this span (a scheduler's thread).
    Stage(Duration),
    /// Queue time of the request whose span this is; the span itself has not arrived yet.
    Queue(Duration),
    /// The request's span has arrived, but not its queue stage.
    Request(Box<RequestSpan>),
}

/// Extracts the requests from the spans, and completes SGLang's requests, whose queue time is in a separate span two
/// levels below the request's span.
///
/// `prefill_waiting` is sent when the request leaves the queue, and its parent (the scheduler's thread) when the
/// request has ended. The request's own span comes from another process. These spans arrive in any order. The number of
/// incomplete spans is limited; the oldest is dropped first.
#[derive(Debug)]
pub struct Interpreter {
    most: usize,
    known: HashMap<SpanKey, Known>,
    order: VecDeque<SpanKey>,
}

impl Interpreter {
    /// Keeps at most this many incomplete spans.
    pub fn new(most: usize) -> Interpreter {
        Interpreter { most: most.max(1), known: HashMap::new(), order: VecDeque::new() }
    }

    /// Adds a span. Returns the request that it completes, if any.
    pub fn take(&mut self, span: &Span<'_>) -> Option<Box<RequestSpan>> {
        match span.name.as_str() {
            SGLANG_QUEUE => {
                if let Some(time) = length(span) {
                    self.queue_stage((span.trace_id, span.parent?), time);
                }
                None
            }
            REQUEST => request(span, false),
            name => match name.contains(SGLANG_REQUEST).then(|| request(span, true)).flatten() {
                Some(request) => self.request(request),
                None => self.thread((span.trace_id, span.span_id), span.parent),
            },
        }
    }

    /// Adds a queue stage whose parent span is `thread`. If a request has several schedulers (tensor parallel), the
    /// first stage counts.
    fn queue_stage(&mut self, thread: SpanKey, time: Duration) {
        if !self.known.contains_key(&thread) {
            self.keep(thread, Known::Stage(time));
        }
    }

    /// Adds a span that may be a scheduler's thread: if it has a queue stage, the queue time of its parent request is
    /// now known.
    fn thread(&mut self, thread: SpanKey, parent: Option<u64>) -> Option<Box<RequestSpan>> {
        let Some(Known::Stage(time)) = self.known.get(&thread) else { return None };
        let time = *time;
        self.known.remove(&thread);
        let request = (thread.0, parent?);
        match self.known.remove(&request) {
            Some(Known::Request(mut request)) => {
                request.reported.queue = Some(time);
                Some(request)
            }
            Some(earlier @ Known::Queue(_)) => {
                self.known.insert(request, earlier);
                None
            }
            _ => {
                self.keep(request, Known::Queue(time));
                None
            }
        }
    }

    /// Adds an SGLang request. Returns it if its queue time is known; otherwise keeps it until the queue time arrives.
    fn request(&mut self, mut request: Box<RequestSpan>) -> Option<Box<RequestSpan>> {
        let key = (request.reported.trace_id, request.reported.span_id);
        if let Some(Known::Queue(time)) = self.known.get(&key) {
            request.reported.queue = Some(*time);
            self.known.remove(&key);
            return Some(request);
        }
        self.keep(key, Known::Request(request));
        None
    }

    fn keep(&mut self, key: SpanKey, known: Known) {
        // `order` also contains removed keys, until they reach the front.
        while self.order.len() >= self.most {
            let Some(oldest) = self.order.pop_front() else { break };
            self.known.remove(&oldest);
        }
        if self.known.insert(key, known).is_none() {
            self.order.push_back(key);
        }
    }
}

/// Reads the request from its span's attributes. `None` for a span of another program.
fn request(span: &Span<'_>, sglang: bool) -> Option<Box<RequestSpan>> {
    let mut reported = EngineSpan { trace_id: span.trace_id, span_id: span.span_id, ..EngineSpan::default() };
    let (mut id, mut rid) = (None, None);
    span.attributes(|key, value| match key {
        "gen_ai.request.id" => id = text(value),
        "rid" => rid = text(value),
        "gen_ai.latency.time_in_queue" => reported.queue = seconds(&value),
        "gen_ai.latency.time_in_model_prefill" if !sglang => reported.prefill = seconds(&value),
        "gen_ai.latency.time_in_model_decode" => reported.decode = seconds(&value),
        "gen_ai.latency.time_to_first_token" => reported.first_token = seconds(&value),
        "gen_ai.latency.e2e" => reported.e2e = seconds(&value),
        "gen_ai.usage.prompt_tokens" => reported.prompt_tokens = whole(&value),
        "gen_ai.usage.cached_tokens" => reported.cached_tokens = whole(&value),
        "gen_ai.usage.completion_tokens" => reported.completion_tokens = whole(&value),
        _ => {}
    });
    if sglang && rid.is_none() {
        // Spans of other programs may have similar names.
        return None;
    }
    let id = if sglang { rid } else { id };
    let id = id.as_deref().and_then(comparable_span_id).map(Box::from);
    Some(Box::new(RequestSpan { id, parent: span.parent, length: length(span).unwrap_or_default(), reported }))
}

/// The duration; `None` if the span ends before it starts.
fn length(span: &Span<'_>) -> Option<Duration> {
    span.end.checked_sub(span.start).map(Duration::from_nanos)
}

fn text(value: Value) -> Option<String> {
    if let Value::Text(text) = value { String::from_utf8(text).ok() } else { None }
}

/// Seconds as a duration; negative, infinite and implausible values are rejected.
fn seconds(value: &Value) -> Option<Duration> {
    const MAX: f64 = 1e7;
    match value {
        Value::Double(value) if (0.0..MAX).contains(value) => Some(Duration::from_secs_f64(*value)),
        Value::Int(value) => u64::try_from(*value).ok().filter(|value| *value < MAX as u64).map(Duration::from_secs),
        _ => None,
    }
}

fn whole(value: &Value) -> Option<u64> {
    if let Value::Int(value) = value { u64::try_from(*value).ok() } else { None }
}

/// A response's `id` in the form used for matching. TensorRT-LLM's response id is a prefix and a number; its span has
/// only the number.
pub(crate) fn comparable_id(id: &str) -> Option<&str> {
    let bare = ["chatcmpl-", "cmpl-"].iter().find_map(|prefix| id.strip_prefix(prefix)).filter(|rest| is_number(rest));
    Some(bare.unwrap_or(id)).filter(|id| !id.is_empty() && id.len() <= ID_BYTES)
}

/// A span's id without the prompt or turn number.
fn comparable_span_id(id: &str) -> Option<&str> {
    let numbered = |separator: char, prefix: &str| {
        let (head, number) = id.rsplit_once(separator)?;
        (head.starts_with(prefix) && is_number(number)).then_some(head)
    };
    comparable_id(numbered('-', "cmpl-").or_else(|| numbered('_', "resp_")).unwrap_or(id))
}

pub(crate) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_response_and_its_span_are_equal() {
        for (response, span) in [
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
            assert_eq!(comparable_id(response), comparable_span_id(span), "{response} and {span}");
            assert!(comparable_id(response).is_some());
        }
        assert_ne!(comparable_id("chatcmpl-a"), comparable_span_id("cmpl-a-0"));
        assert_eq!(comparable_id(""), None);
        assert_eq!(comparable_id(&"x".repeat(128)), None, "it may have been cut");
    }

    #[test]
    fn impossible_times_are_none() {
        for wrong in [-0.1, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(seconds(&Value::Double(wrong)), None);
        }
        assert_eq!(seconds(&Value::Double(0.25)), Some(Duration::from_millis(250)));
        assert_eq!(seconds(&Value::Int(2)), Some(Duration::from_secs(2)));
        assert_eq!((seconds(&Value::Int(-2)), seconds(&Value::Text(b"2".to_vec()))), (None, None));
    }

    const THREAD: SpanKey = (7, 2);
    const ROOT: SpanKey = (7, 1);
    const WAITED: Duration = Duration::from_millis(120);

    fn root() -> Box<RequestSpan> {
        let reported = EngineSpan { trace_id: ROOT.0, span_id: ROOT.1, ..EngineSpan::default() };
        Box::new(RequestSpan { id: None, parent: None, length: Duration::ZERO, reported })
    }

    #[test]
    fn parts_are_joined_in_any_order() {
        let mut interpreter = Interpreter::new(10);
        interpreter.queue_stage(THREAD, WAITED);
        assert_eq!(interpreter.thread(THREAD, Some(ROOT.1)), None);
        assert_eq!(interpreter.request(root()).unwrap().reported.queue, Some(WAITED));

        interpreter.queue_stage(THREAD, WAITED);
        assert_eq!(interpreter.request(root()), None);
        assert_eq!(interpreter.thread(THREAD, Some(ROOT.1)).unwrap().reported.queue, Some(WAITED));
        assert!(interpreter.known.is_empty());
    }

    #[test]
    fn first_of_several_schedulers_counts() {
        let mut interpreter = Interpreter::new(10);
        interpreter.queue_stage(THREAD, WAITED);
        interpreter.queue_stage((7, 3), WAITED * 2);
        assert_eq!(interpreter.thread(THREAD, Some(ROOT.1)), None);
        assert_eq!(interpreter.thread((7, 3), Some(ROOT.1)), None);
        assert_eq!(interpreter.request(root()).unwrap().reported.queue, Some(WAITED));
    }

    #[test]
    fn number_of_incomplete_spans_is_bounded() {
        let mut interpreter = Interpreter::new(4);
        for span in 0..1000 {
            interpreter.queue_stage((1, span), WAITED);
            interpreter.thread((1, span), Some(span + 10_000));
        }
        assert!(interpreter.known.len() <= 4 && interpreter.order.len() <= 4);
    }
}
