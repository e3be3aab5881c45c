//! Token counts of one response.

mod source;
#[cfg(test)]
mod tests;

use std::hint::black_box;

use crate::measure::Parameters;
use tokometer_decode::{Counter, EngineHabits, StreamEvent, TokenParts, Usage};

/// Number of choices counted separately. With more choices, a count summed over choices is only a lower bound.
const CHOICES: usize = 4;

/// Maximum plausible token count of one request. Higher counts are engine bugs and are ignored. No context window is
/// near this size.
const MAX_TOKENS: u64 = u32::MAX as u64;

/// Maximum plausible token count of one event. Bounds the work, because the gap before an event is counted once per
/// token.
const MAX_PER_EVENT: u64 = 1 << 16;

/// Returns the count if it is plausible.
pub(super) fn plausible(count: Option<u64>) -> Option<u64> {
    count.filter(|tokens| *tokens <= MAX_TOKENS)
}

/// Counts of one choice so far.
#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    /// Latest cumulative `usage.completion_tokens` in an event of this choice.
    usage: Option<u32>,
    /// Highest native counter so far (llama.cpp `timings.predicted_n`, SGLang `completion_tokens`).
    native: Option<u32>,
    /// A token-bearing event arrived.
    begun: bool,
    /// A finish reason arrived.
    finished: bool,
    /// A token or the finish reason arrived after the latest `usage`, so that count may lack the last tokens.
    uncounted: bool,
    /// The finish reason arrived in an event without a native counter, and no counter followed.
    finished_untimed: bool,
    /// Every token-bearing event so far had cumulative `usage`, so the increments are token counts of events.
    continuous: bool,
    /// The `usage` of the last token-bearing event was not higher than the one before.
    stale: bool,
    /// A token-bearing event had no native counter, so counter increments are not token counts of single events.
    missed: bool,
}

/// The tracked choices. Most responses have one; additional choices are boxed.
#[derive(Debug, Default)]
struct Choices {
    first: Choice,
    others: Option<Box<[Choice; CHOICES - 1]>>,
}

impl Choices {
    /// The choice with this index, if it is tracked.
    fn get_mut(&mut self, index: u32) -> Option<&mut Choice> {
        match index.checked_sub(1) {
            None => Some(&mut self.first),
            Some(other) if (other as usize) < CHOICES - 1 => {
                self.others.get_or_insert_default().get_mut(other as usize)
            }
            Some(_) => None,
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Choice> + Clone {
        std::iter::once(&self.first).chain(self.others.iter().flat_map(|others| others.iter()))
    }
}

/// Properties of the request and response that affect the counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) parameters: &'a Parameters,
    /// The response reached its end marker.
    pub(super) complete: bool,
    pub(super) habits: EngineHabits,
}

/// Counts the tokens of one response.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    choices: Choices,
    /// An event of an untracked choice arrived.
    untracked: bool,
    /// Untracked choices that ended, as a bit set; choices beyond the last bit are not recorded.
    untracked_ended: u64,
    /// Maximum number of choices in one event. Above 1 only in non-streamed responses.
    widest: u32,
    /// Token-bearing events.
    deltas: u64,
    logprobs: u64,
    /// Total length of `token_ids`, and whether a token-bearing event lacked them.
    token_ids: Option<u64>,
    token_ids_missing: bool,
    /// Number of events with total `usage` of the request (`choices: []`), the sum of their outputs, and the last
    /// output.
    totals: u32,
    totals_output: u64,
    last_total_output: Option<u64>,
    /// A token arrived after the last total, so that count lacks it.
    after_total: bool,
    usage: LatestUsage,
    /// Boxed: only engine-specific routes have native counters.
    native: Option<Box<NativeCounters>>,
    /// Prompt tokens from the engine's timings.
    timed_input: Option<u32>,
    timed_cached: Option<u32>,
}

/// Latest value of each `usage` field except the output.
#[derive(Debug, Default)]
struct LatestUsage {
    input: Option<u64>,
    early: Early,
    cached: Option<u64>,
    reasoning: Option<u64>,
    /// Boxed: few responses have these parts.
    parts: Option<Box<TokenParts>>,
}

/// Whether the input count arrived before the output, so that it may be an estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Early {
    #[default]
    No,
    /// Before the output.
    Once,
    /// Before the output and again during the output: the engine has no other count, also at the end.
    Repeated,
}

impl Early {
    /// The state after another input count. `early`: the count arrived before the end of the output. `is_same`: it is
    /// equal to the count before.
    fn after(self, early: bool, is_first: bool, is_same: bool) -> Early {
        match self {
            _ if is_first && early => Early::Once,
            Early::Once | Early::Repeated if early && is_same => Early::Repeated,
            Early::Repeated if is_same => Early::Repeated,
            _ => Early::No,
        }
    }
}

/// Combined native counters of all choices.
#[derive(Debug, Default)]
struct NativeCounters {
    /// Number of choices included.
    choices: u32,
    /// Sums over these choices.
    input: Option<u64>,
    cached: Option<u64>,
    /// Last reported value.
    reasoning: Option<u64>,
    /// Output of the complete response.
    output: Option<u64>,
}

/// Effect of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// The event carried a token, visible or not.
    pub(super) has_token: bool,
    /// Number of tokens, if known. 0 if the event only continues the text of counted tokens.
    pub(super) tokens: Option<u64>,
}

/// The event's `usage`, if it has values. Every prompt has a token, so zero input means "not counted", and zero input and
/// no output "not counted yet" (Ollama's completions with `include_usage` have zeros in all events except the last;
/// SGLang 0.5 sends zeros if its parsers dropped the chunk with the counts). Zero parts of the input are then not counted
/// either.
fn usage_of(event: &StreamEvent) -> Option<Usage> {
    let mut usage = event.usage?;
    let counts = [&mut usage.input, &mut usage.output, &mut usage.cached, &mut usage.reasoning];
    counts.into_iter().chain(usage.parts.iter_mut()).for_each(|count| *count = plausible(*count));
    if usage.input == Some(0) && positive(usage.output).is_none() {
        return None;
    }
    usage.input = positive(usage.input);
    if usage.input.is_none() {
        let output_audio = usage.parts.output_audio;
        let parts = usage.parts.iter_mut().chain([&mut usage.cached]);
        parts.for_each(|count| *count = positive(*count));
        usage.parts.output_audio = output_audio;
    }
    Some(usage)
}

/// Removes implausible counts.
fn plausible_counter(mut counter: Counter) -> Counter {
    for count in [&mut counter.input, &mut counter.output, &mut counter.cached, &mut counter.reasoning] {
        *count = plausible(*count);
    }
    Counter { input: positive(counter.input), ..counter }
}

/// Returns the count if it is not zero.
fn positive(count: Option<u64>) -> Option<u64> {
    count.filter(|tokens| *tokens > 0)
}

impl LatestUsage {
    /// Keeps the earlier value of each count that this `usage` lacks.
    fn update(&mut self, usage: Usage) {
        self.reasoning = usage.reasoning.or(self.reasoning);
        if usage.parts != TokenParts::default() {
            let parts = self.parts.get_or_insert_default();
            **parts = usage.parts.or(**parts);
        }
        if let Some(input) = usage.input {
            let omitted = |now: Option<u64>, kept: Option<u64>| if now.is_some() { 0 } else { kept.unwrap_or(0) };
            let created = self.parts.as_ref().and_then(|parts| parts.cache_creation);
            let apart = omitted(usage.cached, self.cached).saturating_add(omitted(usage.parts.cache_creation, created));
            let input = if usage.cached_apart { input.saturating_add(apart) } else { input };
            let before = self.input.replace(input);
            self.early = self.early.after(usage.early, before.is_none(), before == Some(input));
        }
        self.cached = usage.cached.or(self.cached);
    }
}

impl Choice {
    /// Processes the `usage` of an event. Returns the number of tokens in the event, if a running count shows it.
    ///
    /// A count that does not grow with the tokens is no running count: some servers repeat the same `usage` in every
    /// event. A single event without growth can continue the text of a token that was already counted.
    fn usage(&mut self, output: Option<u32>, has_token: bool, finishing: bool) -> Option<u64> {
        let Some(output) = output else {
            self.continuous &= !has_token;
            // The finish reason may stand for an end-of-text token (SGLang 0.5.23).
            self.uncounted |= has_token || finishing;
            return None;
        };
        self.uncounted = false;
        self.continuous |= !self.begun;
        let before = self.usage.replace(output).unwrap_or(0);
        let tokens = u64::from(output.saturating_sub(before));
        if has_token {
            self.continuous &= tokens > 0 || (output > 0 && !self.stale);
            self.stale = tokens == 0;
        }
        (self.continuous && tokens <= MAX_PER_EVENT).then_some(tokens)
    }
}

impl Tokens {
    /// Prefetches the memory that the next event needs.
    pub(super) fn warm(&self) {
        black_box((self.choices.first.begun, self.token_ids, self.logprobs, self.deltas, self.widest));
    }

    /// Processes one stream event.
    pub(super) fn event(&mut self, event: &StreamEvent, habits: EngineHabits, echo: bool) -> Step {
        let usage = usage_of(event);
        let counted = event.counter.and_then(|counter| self.count(event.choice, counter));
        // A running count of 0 next to text is no count.
        let is_zero = event.counter.is_some_and(|counter| counter.output == Some(0));
        let counted = counted.filter(|_| !is_zero || event.channels.is_empty());
        let has_token = self.has_token(event, counted, habits);
        let counted = counted.filter(|tokens| *tokens <= MAX_PER_EVENT);
        let mut step = Step { has_token, tokens: counted.or(event.token_ids.map(u64::from)) };
        self.widest = self.widest.max(event.choices);
        // An end outside of the choices ends the only choice.
        self.choices.first.finished |= event.end || event.choices == 0 && !event.finishes.is_empty();
        if has_token {
            self.deltas += 1;
            self.after_total = true;
            self.token_ids_missing |= event.token_ids.is_none();
        }
        if let Some(ids) = event.token_ids {
            self.token_ids = Some(self.token_ids.unwrap_or(0) + u64::from(ids));
        }
        self.logprobs += u64::from(event.logprobs.unwrap_or(0));
        self.timing(event);
        if event.choices == 0 {
            if let Some(usage) = usage {
                self.total(usage);
            }
        } else {
            self.choice(event, usage, counted.is_some(), echo, &mut step);
        }
        if let Some(usage) = usage {
            self.usage.update(usage);
        }
        step
    }

    /// True if the event carries a token. `counted`: increment of its native counter.
    fn has_token(&self, event: &StreamEvent, counted: Option<u64>, habits: EngineHabits) -> bool {
        let finishing = !event.finishes.is_empty();
        // If earlier events had token ids, an event without ids has no token.
        let by_ids = self.token_ids.is_some() && event.token_ids.is_none();
        let held_back = event.empty_delta && habits.empty_delta_is_token && (!event.role || finishing) && !by_ids;
        let has_text = !event.channels.is_empty() || held_back || event.token_ids.is_some_and(|n| n > 0);
        // With a running counter, the last event may repeat the text so far. Its text is then no new token.
        let may_repeat = finishing && event.counter.is_some_and(|counter| counter.running);
        counted.map_or(has_text && !may_repeat, |tokens| tokens > 0)
    }

    /// Updates the event's choice, and completes `step`.
    fn choice(&mut self, event: &StreamEvent, usage: Option<Usage>, is_counted: bool, echo: bool, step: &mut Step) {
        let (finishing, has_token) = (!event.finishes.is_empty(), step.has_token);
        let Some(choice) = self.choices.get_mut(event.choice) else {
            self.untracked = true;
            let place = event.choice.saturating_sub(CHOICES as u32);
            if finishing || event.ended {
                self.untracked_ended |= 1_u64.checked_shl(place).unwrap_or(0);
            }
            return;
        };
        let tokens = choice.usage(usage.and_then(|usage| u32::try_from(usage.output?).ok()), has_token, finishing);
        step.tokens = step.tokens.or(tokens);
        if finishing {
            let is_timed = event.timing.is_some_and(|timing| timing.predicted_tokens.is_some());
            choice.finished_untimed = !is_timed && event.counter.is_none();
        }
        choice.finished |= finishing || event.ended;
        choice.missed |= has_token && !is_counted;
        if echo && has_token && !choice.begun && step.tokens.is_none() {
            // The event contains the echoed prompt and at most one output token, so it counts as zero. The engine's own
            // count is kept if known, because it excludes the prompt.
            step.tokens = Some(0);
        }
        choice.begun |= has_token;
    }

    /// Processes the request's total `usage`.
    fn total(&mut self, usage: Usage) {
        self.totals += 1;
        self.after_total = false;
        self.totals_output = self.totals_output.saturating_add(usage.output.unwrap_or(0));
        self.last_total_output = usage.output.or(self.last_total_output);
    }

    /// Processes the native counter of a choice. Returns its increment if that is the number of tokens in the event.
    fn count(&mut self, place: u32, counter: Counter) -> Option<u64> {
        let counter = plausible_counter(counter);
        let choice = self.choices.get_mut(place)?;
        let native = self.native.get_or_insert_default();
        if choice.native.is_none() {
            native.choices += 1;
            native.input = sum(native.input, counter.input);
            native.cached = sum(native.cached, counter.cached);
        }
        native.reasoning = counter.reasoning.or(native.reasoning);
        let output = u32::try_from(counter.output?).ok()?;
        let before = choice.native.unwrap_or(0);
        choice.native = Some(output.max(before));
        (counter.running && !choice.missed).then(|| u64::from(output.saturating_sub(before)))
    }

    /// Adds the counter of a complete response, which may have several choices.
    pub(super) fn whole_counter(&mut self, counter: Counter, choices: u32) {
        let counter = plausible_counter(counter);
        let native = self.native.get_or_insert_default();
        native.choices = choices;
        native.output = counter.output.or(native.output);
        native.input = counter.input.or(native.input);
        native.cached = counter.cached.or(native.cached);
        self.usage.reasoning = counter.reasoning.or(self.usage.reasoning);
    }

    /// Processes the body of a non-streamed response. Its usage covers the whole request.
    pub(super) fn whole_response(&mut self, event: &StreamEvent) {
        // An output of 0 next to text is no count.
        let output = |count| if event.channels.is_empty() { count } else { positive(count) };
        self.choices.first.finished = true;
        self.widest = self.widest.max(event.choices);
        self.logprobs += u64::from(event.logprobs.unwrap_or(0));
        self.token_ids = event.token_ids.map(u64::from);
        self.timing(event);
        if let Some(counter) = event.counter {
            self.whole_counter(Counter { output: output(counter.output), ..counter }, event.choices);
        }
        if let Some(usage) = usage_of(event) {
            self.totals = 1;
            self.last_total_output = output(usage.output);
            self.totals_output = self.last_total_output.unwrap_or(0);
            self.usage.update(usage);
        }
    }

    fn timing(&mut self, event: &StreamEvent) {
        let Some(timing) = event.timing else { return };
        let cached = plausible(timing.cached_tokens);
        // llama.cpp before September 2025 sends only the computed tokens, without the cached ones.
        if let Some((prompt, cached)) = plausible(timing.prompt_tokens).zip(cached) {
            self.timed_input = u32::try_from(prompt.saturating_add(cached)).ok();
        }
        self.timed_cached = cached.and_then(|n| u32::try_from(n).ok()).or(self.timed_cached);
        if let Some(choice) = self.choices.get_mut(event.choice)
            && timing.predicted_tokens.is_some()
            && event.counter.is_none()
        {
            choice.native = timing.predicted_tokens.and_then(|n| u32::try_from(n).ok());
            choice.finished_untimed = false;
        }
    }

    /// Number of choices that ended.
    pub(super) fn finished(&self) -> u64 {
        self.choices.iter().filter(|c| c.finished).count() as u64 + u64::from(self.untracked_ended.count_ones())
    }
}

/// Sum of the known values.
fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}
