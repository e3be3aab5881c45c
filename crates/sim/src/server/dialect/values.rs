//! The values that templates can contain.

use std::io::Write;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::server::dialect::{Choice, Context, Times};
use crate::server::generation::{END_OF_TEXT, Finish};

/// Writes a value.
pub(super) type Render = fn(&Scope<'_>, &mut Vec<u8>);

/// The data that an event is rendered from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scope<'a> {
    pub(crate) context: &'a Context,
    /// Number of the choice or input.
    pub(crate) index: u64,
    /// Text and ids of this event.
    pub(crate) text: &'a str,
    pub(crate) ids: &'a [u32],
    /// Text and ids of this choice so far.
    pub(crate) all: &'a str,
    pub(crate) all_ids: &'a [u32],
    pub(crate) choices: &'a [Choice],
    pub(crate) finish: Option<Finish>,
    /// Tokens in this event, and so far.
    pub(crate) tokens: u64,
    pub(crate) generated: u64,
    /// The last token, for engines with an event per token, and whether it is the last of its choice.
    pub(crate) token: &'a str,
    pub(crate) token_id: u32,
    pub(crate) last: bool,
    pub(crate) times: Times,
    /// Number of the event.
    pub(crate) number: u64,
    /// How a response ended: `stop`, `length`, `cancelled` or `failed`; empty before the end.
    pub(crate) state: &'static str,
    /// Whether a stream ends with its end mark.
    pub(crate) marked: bool,
    pub(crate) response_id: u64,
    /// Status line, headers and error of a response.
    pub(crate) status: u16,
    pub(crate) kind: &'a str,
    pub(crate) param: Option<&'a str>,
    pub(crate) message: &'a str,
    pub(crate) media: &'a str,
    pub(crate) length: usize,
    pub(crate) close: bool,
    /// Text that is inserted unchanged: header lines, or the client's JSON.
    pub(crate) extra: &'a str,
}

/// Context for rendering without a request.
impl Default for &Context {
    fn default() -> Self {
        static NONE: LazyLock<Context> = LazyLock::new(Context::default);
        &NONE
    }
}

impl<'a> Scope<'a> {
    /// The scope with the complete output of a choice.
    pub(crate) fn with_output(self, choice: &'a Choice) -> Scope<'a> {
        let (text, ids) = (choice.text.as_str(), choice.ids.as_slice());
        Scope { text, ids, all: text, all_ids: ids, ..self }
    }
}

/// Error text of vLLM 0.32.0 when its engine dies.
const DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// Time from a request's arrival until Ollama's (already loaded) model is ready.
const LOAD: Duration = Duration::from_micros(3_800);

/// Tokens per part of a transcribed recording.
const PART_TOKENS: u64 = 16;

/// Dimensions of an embedding.
const DIMENSIONS: u64 = 64;

/// The value with this name.
pub(super) fn named(name: &str) -> Option<Render> {
    VALUES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

const VALUES: &[(&str, Render)] = &[
    // The request.
    ("id", |s, out| escaped(out, &s.context.id)),
    ("created", |s, out| put(out, s.context.created)),
    ("created_hex", |s, out| put(out, format_args!("{:016x}", s.context.created))),
    ("fingerprint", |s, out| put(out, &s.context.fingerprint)),
    ("model", |s, out| escaped(out, &s.context.job.model)),
    ("limit", |s, out| put(out, s.context.job.max_tokens)),
    ("prompt", |s, out| put(out, s.context.job.prompt_tokens)),
    ("cached", |s, out| put(out, s.context.job.cached_tokens)),
    ("uncached", |s, out| put(out, s.uncached())),
    ("inputs", |s, out| put(out, s.context.job.inputs)),
    ("empty", |s, out| put(out, s.context.job.empty)),
    ("ignore_eos", |s, out| put(out, s.context.job.ignore_eos)),
    ("stream", |s, out| put(out, s.context.job.stream)),
    ("several", |s, out| put(out, s.context.job.choices > 1)),
    ("usage", |s, out| put(out, s.context.job.include_usage)),
    ("continuous", |s, out| put(out, s.context.job.continuous_usage)),
    ("return_ids", |s, out| put(out, s.context.job.return_token_ids)),
    ("details", |s, out| put(out, s.context.job.details)),
    ("cached_details", |s, out| put(out, s.context.cached_details)),
    // vLLM reports no metrics for several sequences.
    ("metrics", |s, out| put(out, s.context.metrics && s.context.job.choices == 1)),
    ("detailed", |s, out| put(out, s.context.metrics)),
    // The simulated prompt has no token ids; positions are used instead.
    ("prompt_ids", |s, out| range(out, s.context.job.prompt_tokens)),
    ("context_ids", |s, out| range(out, s.total())),
    // The output.
    ("index", |s, out| put(out, s.index)),
    ("number", |s, out| put(out, s.number)),
    ("number_hex", |s, out| put(out, format_args!("{:x}", s.number))),
    ("text", |s, out| escaped(out, s.text)),
    ("ids", |s, out| json(out, s.ids)),
    ("all", |s, out| escaped(out, s.all)),
    ("all_ids", |s, out| json(out, s.all_ids)),
    ("token", |s, out| escaped(out, if s.token_id == END_OF_TEXT { "</s>" } else { s.token })),
    ("token_id", |s, out| put(out, s.token_id)),
    ("special", |s, out| put(out, s.token_id == END_OF_TEXT)),
    ("generated", |s, out| put(out, s.generated)),
    ("total", |s, out| put(out, s.total())),
    ("total_less_one", |s, out| put(out, s.total().saturating_sub(1))),
    ("first", |s, out| put(out, s.generated == s.tokens)),
    ("last", |s, out| put(out, s.last)),
    ("part_ends", |s, out| put(out, s.generated / PART_TOKENS > (s.generated - s.tokens) / PART_TOKENS)),
    ("finish", |s, out| {
        out.extend_from_slice(match s.finish {
            None => b"null",
            Some(Finish::Length) => b"\"length\"",
            Some(Finish::Stop | Finish::Fault) => b"\"stop\"",
        });
    }),
    ("state", |s, out| put(out, s.state)),
    ("ended", |s, out| put(out, matches!(s.state, "stop" | "length"))),
    ("marked", |s, out| put(out, s.marked)),
    ("vector", |s, out| json(out, &(0..DIMENSIONS).map(|at| score(s.index + at)).collect::<Vec<f64>>())),
    ("score", |s, out| float(out, score(s.index))),
    // Times. vLLM excludes the queue from the time to first token.
    ("queue_ms", |s, out| float(out, ms(s.times.queue))),
    ("prefill_ms", |s, out| float(out, ms(s.times.prefill))),
    ("decode_ms", |s, out| float(out, ms(s.times.decode))),
    ("ttft_ms", |s, out| float(out, ms(s.times.queue + s.times.prefill))),
    ("total_ms", |s, out| float(out, ms(s.times.total()))),
    ("itl_ms", |s, out| optional(out, ms(s.times.decode), s.generated.saturating_sub(1) as f64)),
    ("rate", |s, out| optional(out, s.generated as f64, (s.times.prefill + s.times.decode).as_secs_f64())),
    ("prefill_each_ms", |s, out| float(out, ms(s.times.prefill) / s.uncached().max(1) as f64)),
    ("prefill_rate", |s, out| float(out, rate(s.uncached(), s.times.prefill))),
    ("decode_each_ms", |s, out| float(out, ms(s.times.decode) / s.generated.max(1) as f64)),
    ("decode_rate", |s, out| float(out, rate(s.generated, s.times.decode))),
    ("queue_s", |s, out| float(out, s.times.queue.as_secs_f64())),
    ("ttft_s", |s, out| float(out, (s.times.queue + s.times.prefill).as_secs_f64())),
    ("total_s", |s, out| float(out, s.times.total().as_secs_f64())),
    ("throughput", |s, out| float(out, s.generated as f64 / s.times.total().as_secs_f64().max(1e-9))),
    ("now", |_, out| float(out, unix_time().as_secs_f64())),
    ("received_at", |s, out| float(out, (unix_time() - s.times.total()).as_secs_f64())),
    ("entered_at", |s, out| float(out, (unix_time() - s.times.decode - s.times.prefill).as_secs_f64())),
    ("first_token_at", |s, out| float(out, (unix_time() - s.times.decode).as_secs_f64())),
    ("total_whole_ms", |s, out| put(out, s.times.total().as_millis())),
    ("queue_whole_ms", |s, out| put(out, s.times.queue.as_millis())),
    ("inference_whole_ms", |s, out| put(out, (s.times.prefill + s.times.decode).as_millis())),
    ("each_whole_ms", |s, out| {
        put(out, (s.times.prefill + s.times.decode).as_millis() / u128::from(s.generated.max(1)));
    }),
    ("total_ns", |s, out| put(out, s.times.total().as_nanos())),
    ("half_total_ns", |s, out| put(out, s.times.total().as_nanos() / 2)),
    // Loading is the first part of the time before the first token.
    ("load_ns", |s, out| put(out, s.load().as_nanos())),
    ("evaluation_ns", |s, out| put(out, (s.times.prefill - s.load()).as_nanos())),
    ("eval_ns", |s, out| put(out, if s.generated > 1 { s.times.decode.as_nanos() } else { 0 })),
    ("timestamp", |_, out| put(out, timestamp(unix_time()))),
    // Headers, errors and sessions.
    ("date", |_, out| put(out, httpdate::fmt_http_date(SystemTime::now()))),
    ("status", |s, out| put(out, s.status)),
    ("reason", |s, out| {
        let status = http::StatusCode::from_u16(s.status).ok();
        put(out, status.and_then(|status| status.canonical_reason()).unwrap_or("Unknown"));
    }),
    ("client_error", |s, out| put(out, s.status < 500)),
    ("media", |s, out| put(out, s.media)),
    ("length", |s, out| put(out, s.length)),
    ("close", |s, out| put(out, s.close)),
    ("extra", |s, out| put(out, s.extra)),
    ("kind", |s, out| put(out, s.kind)),
    ("param", |s, out| json(out, &s.param)),
    ("message", |s, out| escaped(out, s.message)),
    ("dead", |_, out| put(out, DEAD)),
    ("response_id", |s, out| put(out, format_args!("{:016x}", s.response_id))),
    ("nothing", |_, _| {}),
    ("space", |_, out| out.push(b' ')),
];

impl Scope<'_> {
    fn total(&self) -> u64 {
        self.context.job.prompt_tokens + self.generated
    }

    fn uncached(&self) -> u64 {
        self.context.job.prompt_tokens - self.context.job.cached_tokens
    }

    fn load(&self) -> Duration {
        LOAD.min(self.times.prefill / 2)
    }
}

fn put(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    // Writing to a `Vec` cannot fail.
    let written = write!(out, "{value}");
    debug_assert!(written.is_ok());
}

/// Writes a number with a fraction, even if it is whole.
fn float(out: &mut Vec<u8>, value: f64) {
    put(out, format_args!("{value:?}"));
}

/// Writes a quotient; `null` if the divisor is 0.
fn optional(out: &mut Vec<u8>, value: f64, by: f64) {
    if by > 0.0 { float(out, value / by) } else { put(out, "null") }
}

fn json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Writing to a `Vec` cannot fail, and these types contain nothing that JSON cannot represent.
    let written = serde_json::to_writer(out, value);
    debug_assert!(written.is_ok());
}

/// The inside of a JSON string.
fn escaped(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    json(out, text);
    out.pop();
    out.remove(start);
}

fn range(out: &mut Vec<u8>, end: u64) {
    json(out, &(0..end).collect::<Vec<u64>>());
}

/// Tokens per second.
fn rate(tokens: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / ms(time) * 1e3 }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A number between -1 and 1 that depends only on an index.
fn score(index: u64) -> f64 {
    ((index + 1) as f64 * 0.618_033_988_75).sin()
}

/// Time since the Unix epoch.
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// The RFC 3339 timestamp of a Unix time with nanoseconds, as Go prints it: without trailing zeros.
fn timestamp(time: Duration) -> String {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let date = httpdate::fmt_http_date(UNIX_EPOCH + time);
    let mut parts = date.split(' ').skip(1);
    let mut next = || parts.next().unwrap_or_default();
    let (day, month, year, clock) = (next(), next(), next(), next());
    let month = MONTHS.find(month).unwrap_or_default() / 3 + 1;
    let nanos = format!(".{:09}", time.subsec_nanos());
    format!("{year}-{month:02}-{day}T{clock}{}Z", nanos.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_match_the_calendar() {
        assert_eq!(timestamp(Duration::new(1_795_208_785, 120_000_000)), "2026-11-20T21:06:25.12Z");
        assert_eq!(timestamp(Duration::new(951_782_400, 0)), "2000-02-29T00:00:00Z");
    }
}
