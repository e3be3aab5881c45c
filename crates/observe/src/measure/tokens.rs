//! Token counts and the ranking of their sources.

use std::hint::black_box;

use crate::measure::Count;
use crate::measure::CountSource;
use tokometer_decode::Counter;
use tokometer_decode::StreamEvent;
use tokometer_decode::Usage;

/// Choices whose counts are tracked separately; with further choices every count of the request is a lower bound.
const CHOICES: usize = 4;

/// Maximum plausible token count of one request. A higher count is an engine bug and counts as missing: no context
/// window comes near it, and sums of plausible counts cannot overflow.
pub(super) const MOST_TOKENS: u64 = u32::MAX as u64;

/// Maximum plausible token count of one event: the gap before an event counts once for each of its tokens.
const MOST_PER_EVENT: u64 = 1 << 16;

/// The count, if it is plausible.
pub(super) fn believed(count: Option<u64>) -> Option<u64> {
    count.filter(|tokens| *tokens <= MOST_TOKENS)
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
    /// The finish reason arrived in an event without `usage`: earlier counts may lack the last tokens.
    finished_uncounted: bool,
    /// It arrived in an event without a native counter, and none followed.
    finished_untimed: bool,
    /// Cumulative usage was present from the first token-bearing event on: its increments are tokens per event.
    continuous: bool,
}

/// Engine-specific counting rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Habits {
    /// An empty text delta without a role is a token whose text is held back, and an empty one with a finish reason is
    /// the end-of-text token (vLLM 0.32's Python front end).
    pub empty_delta_is_token: bool,
    /// `usage` counts one choice, not the request (llama.cpp).
    pub usage_per_choice: bool,
    /// The input count in `message_start` is an estimate (Ollama 0.17, anthropic/anthropic.go `estimateInputTokens`).
    pub early_input_is_guessed: bool,
}

/// Counts the tokens of one response.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    choices: [Choice; CHOICES],
    beyond: bool,
    /// Choices beyond the tracked ones that ended, as a bit set; choices past the last bit are not recorded.
    ended_beyond: u64,
    /// `usage` with `choices: []` is the request's total. Number of such events; below, the sum of their outputs.
    totals: u32,
    totals_output: u64,
    last: Told,
    last_total_output: Option<u64>,
    /// Sum of the lengths of `token_ids`; below, whether a token-bearing event had none.
    token_ids: Option<u64>,
    token_ids_missing: bool,
    logprobs: u64,
    deltas: u64,
    native_input: Option<u64>,
    native_cached: Option<u64>,
    /// Boxed: only engine-specific routes have native counters.
    counted: Option<Box<Counted>>,
    /// Maximum number of choices in one event: above 1 in non-streamed responses.
    widest: u32,
}

/// Latest value of each `usage` field except the output.
#[derive(Clone, Debug, Default)]
struct Told {
    input: Option<u64>,
    /// The input count arrived before the output.
    early: bool,
    cached: Option<u64>,
    reasoning: Option<u64>,
    /// Boxed: few responses have any.
    parts: Option<Box<Parts>>,
}

/// Parts of the counts that few engines report.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    cache_creation: Option<u64>,
    input_audio: Option<u64>,
    input_image: Option<u64>,
    output_audio: Option<u64>,
}

/// Values of the choices' native counters.
#[derive(Clone, Debug, Default)]
struct Counted {
    /// Number of choices covered.
    choices: u32,
    /// Sums over these choices.
    input: Option<u64>,
    cached: Option<u64>,
    /// Value of the last choice.
    reasoning: Option<u64>,
    /// Output of the complete response.
    output: Option<u64>,
    /// The counter was missing in the choice's first token-bearing event: its increments are not tokens per event.
    missed: [bool; CHOICES],
}

/// Effect of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// The event carried a token, visible or not.
    pub(super) bears: bool,
    /// Number of tokens, if known. 0: more text of tokens that were already counted.
    pub(super) tokens: Option<u64>,
}

/// Properties of the whole request that the count depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Requested choices: prompts times `n`.
    pub(super) choices: u64,
    /// The request asked for its prompt to be echoed: the first text is not output.
    pub(super) echo: bool,
    /// The response reached its end marker.
    pub(super) complete: bool,
    /// Engine-specific counting rules.
    pub(super) habits: Habits,
}

/// The prompts of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompts {
    /// Number of prompts.
    pub(super) number: u64,
    /// Responses per prompt (`n`).
    pub(super) answers: u64,
}

/// The event's `usage`, if it has values: every prompt has a token, so a zero input means not counted yet (Ollama's
/// completions with `include_usage` have zeros in every event but the last).
fn told(event: &StreamEvent) -> Option<Usage> {
    let usage = event.usage.map(|usage| Usage {
        input: believed(usage.input),
        output: believed(usage.output),
        cached: believed(usage.cached),
        cache_creation: believed(usage.cache_creation),
        reasoning: believed(usage.reasoning),
        input_audio: believed(usage.input_audio),
        input_image: believed(usage.input_image),
        output_audio: believed(usage.output_audio),
        ..usage
    });
    usage.filter(|usage| usage.input != Some(0) || usage.output.is_some_and(|output| output > 0))
}

/// The counter without implausible counts.
fn believed_counter(counter: Counter) -> Counter {
    Counter {
        input: believed(counter.input),
        output: believed(counter.output),
        cached: believed(counter.cached),
        reasoning: believed(counter.reasoning),
        ..counter
    }
}

impl Tokens {
    /// Prefetches the memory that the next event needs.
    pub(super) fn warm(&self) {
        black_box((self.choices[0].begun, self.token_ids, self.logprobs, self.deltas, self.widest));
    }

    /// Processes one stream event.
    pub(super) fn event(&mut self, event: &StreamEvent, habits: Habits, echo: bool) -> Step {
        let finishing = !event.finishes.is_empty();
        let usage = told(event);
        // If tokens are sent with their ids, an event without ids has no token.
        let by_ids = self.token_ids.is_some() && event.token_ids.is_none();
        let held_back = event.empty_delta && habits.empty_delta_is_token && (!event.role || finishing) && !by_ids;
        let says = !event.channels.is_empty() || held_back || event.token_ids.is_some_and(|n| n > 0);
        let counted = event.counter.and_then(|counter| self.count(event.choice, counter));
        // An event with a running counter may repeat the text so far, so that the last one may add no token.
        let may_repeat = finishing && event.counter.is_some_and(|counter| counter.running);
        let bears = counted.map_or(says && !may_repeat, |tokens| tokens > 0);
        let counted = counted.filter(|tokens| *tokens <= MOST_PER_EVENT);
        let mut step = Step { bears, tokens: counted.or(event.token_ids.map(u64::from)) };

        self.widest = self.widest.max(event.choices);
        if bears {
            self.deltas += 1;
            match event.token_ids {
                Some(_) => {}
                None => self.token_ids_missing = true,
            }
        }
        if let Some(ids) = event.token_ids {
            self.token_ids = Some(self.token_ids.unwrap_or(0) + u64::from(ids));
        }
        self.logprobs += u64::from(event.logprobs.unwrap_or(0));
        self.timing(event);

        let Some(choice) = (event.choices > 0).then(|| self.choices.get_mut(event.choice as usize)) else {
            if let Some(usage) = usage {
                self.totals += 1;
                self.totals_output = self.totals_output.saturating_add(usage.output.unwrap_or(0));
                self.last_total_output = usage.output.or(self.last_total_output);
                self.keep(usage);
            }
            return step;
        };
        match choice {
            None => {
                self.beyond = true;
                let place = event.choice.saturating_sub(CHOICES as u32);
                if finishing || event.ended {
                    self.ended_beyond |= 1_u64.checked_shl(place).unwrap_or(0);
                }
            }
            Some(choice) => {
                if let Some(output) = usage.and_then(|u| u32::try_from(u.output?).ok()) {
                    let known = choice.continuous || !choice.begun;
                    choice.continuous = known;
                    if known && step.tokens.is_none() {
                        let tokens = u64::from(output.saturating_sub(choice.usage.unwrap_or(0)));
                        step.tokens = Some(tokens).filter(|tokens| *tokens <= MOST_PER_EVENT);
                    }
                    choice.usage = Some(output);
                } else if bears {
                    choice.continuous = false;
                }
                if finishing {
                    choice.finished_uncounted = usage.is_none();
                    choice.finished_untimed = event.timing.is_none() && event.counter.is_none();
                }
                choice.finished |= finishing || event.ended;
                if bears
                    && counted.is_none()
                    && let Some(own) = &mut self.counted
                    && let Some(missed) = own.missed.get_mut(event.choice as usize)
                {
                    *missed = true;
                }
                if echo && bears && !choice.begun && step.tokens.is_none() {
                    // The echoed prompt contains at most one output token. The engines' own counts exclude the prompt.
                    step.tokens = Some(0);
                }
                choice.begun |= bears;
            }
        }
        if let Some(usage) = usage {
            self.keep(usage);
        }
        step
    }

    /// Adds a choice's native counter. Returns its increment, if that is the number of tokens in the event.
    fn count(&mut self, place: u32, counter: Counter) -> Option<u64> {
        let counter = believed_counter(counter);
        let place = place as usize;
        let choice = self.choices.get_mut(place)?;
        let own = self.counted.get_or_insert_default();
        if choice.native.is_none() {
            own.choices += 1;
            own.input = sum(own.input, counter.input);
            own.cached = sum(own.cached, counter.cached);
            *own.missed.get_mut(place)? = choice.begun;
        }
        own.reasoning = counter.reasoning.or(own.reasoning);
        let output = u32::try_from(counter.output?).ok()?;
        let before = choice.native.unwrap_or(0);
        choice.native = Some(output.max(before));
        let missed = own.missed.get(place).is_some_and(|missed| *missed);
        (counter.running && !missed).then(|| u64::from(output.saturating_sub(before)))
    }

    /// Adds the counter of a complete response, which may have several choices.
    pub(super) fn whole_counter(&mut self, counter: Counter, choices: u32) {
        let counter = believed_counter(counter);
        let own = self.counted.get_or_insert_default();
        own.choices = choices;
        own.output = counter.output.or(own.output);
        own.input = counter.input.or(own.input);
        own.cached = counter.cached.or(own.cached);
        self.last.reasoning = counter.reasoning.or(self.last.reasoning);
    }

    /// Processes the body of a non-streamed response: its usage covers the request.
    pub(super) fn whole_answer(&mut self, event: &StreamEvent) {
        self.widest = self.widest.max(event.choices);
        self.logprobs += u64::from(event.logprobs.unwrap_or(0));
        self.token_ids = event.token_ids.map(u64::from);
        self.timing(event);
        if let Some(counter) = event.counter {
            self.whole_counter(counter, event.choices);
        }
        if let Some(usage) = told(event) {
            self.totals = 1;
            self.totals_output = usage.output.unwrap_or(0);
            self.last_total_output = usage.output;
            self.keep(usage);
        }
    }

    fn timing(&mut self, event: &StreamEvent) {
        let Some(timing) = event.timing else { return };
        let cached = believed(timing.cached_tokens);
        if let Some(prompt) = believed(timing.prompt_tokens) {
            self.native_input = Some(prompt.saturating_add(cached.unwrap_or(0)));
        }
        self.native_cached = cached.or(self.native_cached);
        if let Some(choice) = self.choices.get_mut(event.choice as usize)
            && timing.predicted_tokens.is_some()
            && event.counter.is_none()
        {
            choice.native = timing.predicted_tokens.and_then(|n| u32::try_from(n).ok());
            choice.finished_untimed = false;
        }
    }

    fn keep(&mut self, usage: Usage) {
        let last = &mut self.last;
        if usage.input.is_some() {
            last.input = usage.input;
            last.early = usage.early;
        }
        last.cached = usage.cached.or(last.cached);
        last.reasoning = usage.reasoning.or(last.reasoning);
        let Usage { cache_creation, input_audio, input_image, output_audio, .. } = usage;
        if cache_creation.or(input_audio).or(input_image).or(output_audio).is_some() {
            let parts = last.parts.get_or_insert_default();
            parts.cache_creation = cache_creation.or(parts.cache_creation);
            parts.input_audio = input_audio.or(parts.input_audio);
            parts.input_image = input_image.or(parts.input_image);
            parts.output_audio = output_audio.or(parts.output_audio);
        }
    }

    /// Number of choices seen.
    fn seen(&self) -> u64 {
        let begun = self.choices.iter().filter(|c| c.begun || c.finished || c.usage.is_some()).count() as u64;
        begun.max(u64::from(self.widest))
    }

    /// Number of choices that ended.
    pub(super) fn finished(&self) -> u64 {
        self.choices.iter().filter(|c| c.finished).count() as u64 + u64::from(self.ended_beyond.count_ones())
    }

    /// Events that carried a token.
    pub(super) fn deltas(&self) -> u64 {
        self.deltas
    }

    /// Output tokens, from the most trusted source available.
    pub(super) fn output(&self, whole: Whole) -> Option<Count> {
        let exact = |tokens, source| believed(Some(tokens)).map(|tokens| Count { tokens, source });
        let choices = whole.choices.max(self.seen());
        if let Some(total) = self.last_total_output {
            if !whole.habits.usage_per_choice || choices == 1 {
                return exact(total, CountSource::Usage);
            }
            if u64::from(self.totals) == choices {
                return exact(self.totals_output, CountSource::Usage);
            }
        }
        if whole.complete && !self.beyond && self.totals == 0 && choices == self.seen() {
            let own = self.choices.iter().filter(|c| c.begun || c.finished || c.usage.is_some());
            let counted = own.clone().filter(|c| c.usage.is_some() && c.finished && !c.finished_uncounted);
            if counted.count() as u64 == choices
                && choices > 0
                && (choices == 1 || whole.habits.usage_per_choice || own.clone().all(|c| c.continuous))
            {
                return exact(own.filter_map(|c| c.usage).map(u64::from).sum(), CountSource::Usage);
            }
        }
        if let Some(ids) = self.token_ids
            && whole.complete
            && !self.token_ids_missing
        {
            return exact(ids, CountSource::TokenIds);
        }
        if let Some(total) = self.counted.as_ref().and_then(|own| own.output) {
            return exact(total, CountSource::NativeCounter);
        }
        if whole.complete && !self.beyond && choices > 0 && self.widest <= 1 {
            let natives = self.choices.iter().filter(|c| !c.finished_untimed).filter_map(|c| c.native);
            let natives: Vec<u64> = natives.map(u64::from).collect();
            if natives.len() as u64 == choices {
                return exact(natives.iter().sum(), CountSource::NativeCounter);
            }
        }
        let usage: u64 = self.choices.iter().filter_map(|c| c.usage).map(u64::from).sum();
        let native: u64 = self.choices.iter().filter_map(|c| c.native).map(u64::from).sum();
        // An echoed prompt is sent as text with its log probabilities: neither is output.
        let deltas = if whole.echo { self.deltas.saturating_sub(choices.max(1)) } else { self.deltas };
        let logprobs = if whole.echo { 0 } else { self.logprobs };
        let at_least =
            [deltas, logprobs, usage, native, self.token_ids.unwrap_or(0), self.last_total_output.unwrap_or(0)]
                .into_iter()
                .max()
                .filter(|n| *n > 0)?;
        exact(at_least, CountSource::Deltas)
    }

    /// Prompt tokens. A prompt with several responses counts once.
    pub(super) fn input(&self, prompts: Prompts, habits: Habits) -> Option<Count> {
        let told = self.last.input.filter(|_| self.told_of_all(prompts, habits));
        let told = told.filter(|_| !(self.last.early && habits.early_input_is_guessed));
        let usage = told.map(|tokens| Count { tokens, source: CountSource::Usage });
        let alone = prompts.number == 1 && !self.beyond;
        let native = self.once(|own| own.input, prompts).or(self.native_input.filter(|_| alone));
        let native = native.map(|tokens| Count { tokens, source: CountSource::NativeCounter });
        usage.or(native).filter(|count| count.tokens <= MOST_TOKENS)
    }

    /// Prompt tokens served from the engine's cache.
    pub(super) fn cached(&self, prompts: Prompts, habits: Habits) -> Option<u64> {
        let told = self.last.cached.filter(|_| self.told_of_all(prompts, habits));
        let alone = prompts.number == 1 && !self.beyond;
        told.or(self.once(|own| own.cached, prompts)).or(self.native_cached.filter(|_| alone))
    }

    /// True if the latest `usage` covers every prompt. With several prompts, usage in an event of a choice covers only
    /// the prompt of that choice.
    fn told_of_all(&self, prompts: Prompts, habits: Habits) -> bool {
        prompts.number == 1 || self.totals > 0 && !habits.usage_per_choice
    }

    /// Sum over choices, reduced to one per prompt. `None` if a choice is missing.
    fn once(&self, sum: fn(&Counted) -> Option<u64>, prompts: Prompts) -> Option<u64> {
        let own = self.counted.as_ref().filter(|_| !self.beyond)?;
        let (counted, answers) = (u64::from(own.choices), prompts.answers);
        let times = match prompts.number {
            1 if counted <= answers => counted,
            number if counted == number.saturating_mul(answers) => answers,
            _ => return None,
        };
        let sum = sum(own)?;
        (sum % times.max(1) == 0).then(|| sum / times.max(1))
    }

    /// Output tokens that were reasoning.
    pub(super) fn reasoning(&self) -> Option<u64> {
        // With several choices, usage in an event of a choice covers only that choice.
        let of_all =
            self.totals > 0 || self.seen() <= 1 || self.counted.as_ref().is_some_and(|own| own.output.is_some());
        self.last.reasoning.filter(|_| of_all).or(self
            .counted
            .as_ref()
            .and_then(|own| own.reasoning)
            .filter(|_| self.seen() <= 1))
    }

    /// Prompt tokens written to the engine's cache.
    pub(super) fn cache_creation(&self) -> Option<u64> {
        self.last.parts.as_ref()?.cache_creation
    }

    /// Prompt tokens that were audio.
    pub(super) fn input_audio(&self) -> Option<u64> {
        self.last.parts.as_ref()?.input_audio
    }

    /// Prompt tokens that were images.
    pub(super) fn input_image(&self) -> Option<u64> {
        self.last.parts.as_ref()?.input_image
    }

    /// Output tokens that were audio.
    pub(super) fn output_audio(&self) -> Option<u64> {
        self.last.parts.as_ref()?.output_audio
    }
}

/// Sum of the known values.
fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}
