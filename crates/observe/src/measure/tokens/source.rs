//! Final counts of a response, each from its most trusted source.

use crate::measure::tokens::{Choice, Context, Early, MAX_TOKENS, NativeCounters, Tokens};
use crate::measure::{Count, CountSource, TokenCounts};

impl Tokens {
    /// The counts for the record.
    pub(in crate::measure) fn counts(&self, context: &Context<'_>) -> TokenCounts {
        let input = self.input(context);
        TokenCounts {
            input,
            // A part cannot exceed the whole.
            cached: self.cached(context).filter(|n| input.is_none_or(|all| *n <= all.tokens)),
            output: self.output(context),
            reasoning: self.reasoning(),
            parts: self.usage.parts.as_deref().copied().unwrap_or_default(),
            chunks: self.deltas,
            ..TokenCounts::default()
        }
    }

    /// Output tokens, from the most trusted source. If the sum is implausible, `None`: less trusted sources are not
    /// tried.
    pub(super) fn output(&self, context: &Context<'_>) -> Option<Count> {
        let choices = context.parameters.choices().max(self.seen());
        let (tokens, source) = self
            .output_of_totals(context, choices)
            .or_else(|| self.output_of_choices(context, choices))
            .or_else(|| self.output_by_ids(context))
            .or_else(|| self.output_of_native(context, choices))
            .or_else(|| self.least_output(context, choices))?;
        (tokens <= MAX_TOKENS).then_some(Count { tokens, source })
    }

    /// The output count from the request's total `usage`, if no token followed it. Some servers send running totals, so
    /// the response must have ended.
    fn output_of_totals(&self, context: &Context<'_>, choices: u64) -> Option<(u64, CountSource)> {
        let ended = context.complete || self.finished() >= choices;
        // Dynamo counts its events if its backend reports no usage; the input then is the estimate until the end.
        let is_guessed = self.usage.early == Early::Repeated && context.habits.early_input_is_guessed;
        let total = self.last_total_output.filter(|_| ended && !self.after_total && !is_guessed)?;
        let total = match u64::from(self.totals) {
            _ if !context.habits.usage_per_choice || choices == 1 => total,
            totals if totals == choices => self.totals_output,
            _ => return None,
        };
        self.at_least_proven(total, context, choices).map(|total| (total, CountSource::Usage))
    }

    /// The output count from the `usage` in the last event of every choice.
    fn output_of_choices(&self, context: &Context<'_>, choices: u64) -> Option<(u64, CountSource)> {
        let is_partial = !context.complete || self.untracked || (self.totals > 0 && choices > 1);
        if is_partial || choices == 0 || choices != self.seen() {
            return None;
        }
        let seen = self.choices.iter().filter(|choice| choice.is_seen());
        let is_counted = |choice: &&Choice| choice.usage.is_some() && choice.finished && !choice.uncounted;
        let of_its_choice = choices == 1 || context.habits.usage_per_choice || seen.clone().all(|c| c.continuous);
        let all = seen.clone().filter(is_counted).count() as u64 == choices && of_its_choice;
        let sum = all.then(|| seen.filter_map(|choice| choice.usage).map(u64::from).sum())?;
        self.at_least_proven(sum, context, choices).map(|sum| (sum, CountSource::Usage))
    }

    /// The engine's count, unless the events prove more tokens.
    fn at_least_proven(&self, count: u64, context: &Context<'_>, choices: u64) -> Option<u64> {
        (count >= self.proven(context, choices)).then_some(count)
    }

    /// The lower bound that follows from the events alone, without the engine's output counts. Some servers exclude the
    /// reasoning from the output (xAI).
    fn proven(&self, context: &Context<'_>, choices: u64) -> u64 {
        // An echoed prompt is sent like output, as text with log probabilities.
        let deltas = if context.parameters.echo { self.deltas.saturating_sub(choices.max(1)) } else { self.deltas };
        let logprobs = if context.parameters.echo { 0 } else { self.logprobs };
        deltas.max(logprobs).max(self.token_ids.unwrap_or(0)).max(self.reasoning().unwrap_or(0))
    }

    /// The output count from the token ids.
    fn output_by_ids(&self, context: &Context<'_>) -> Option<(u64, CountSource)> {
        let ids = self.token_ids.filter(|_| context.complete && !self.token_ids_missing)?;
        Some((ids, CountSource::TokenIds))
    }

    /// The output count from the engine's own counters.
    fn output_of_native(&self, context: &Context<'_>, choices: u64) -> Option<(u64, CountSource)> {
        let sum = || {
            if !context.complete || self.untracked || choices == 0 || self.widest > 1 {
                return None;
            }
            let choices_with_last = self.choices.iter().filter(|choice| !choice.finished_untimed);
            let natives = choices_with_last.filter_map(|choice| choice.native);
            let all = natives.clone().count() as u64 == choices;
            all.then(|| natives.map(u64::from).sum())
        };
        let count = self.native.as_ref().and_then(|native| native.output).or_else(sum)?;
        self.at_least_proven(count, context, choices).map(|count| (count, CountSource::NativeCounter))
    }

    /// The highest lower bound.
    fn least_output(&self, context: &Context<'_>, choices: u64) -> Option<(u64, CountSource)> {
        let usage: u64 = self.choices.iter().filter_map(|c| c.usage).map(u64::from).sum();
        let native: u64 = self.choices.iter().filter_map(|c| c.native).map(u64::from).sum();
        let bounds = [self.proven(context, choices), usage, native, self.last_total_output.unwrap_or(0)];
        let least = bounds.into_iter().max().filter(|n| *n > 0)?;
        Some((least, CountSource::Deltas))
    }

    /// Prompt tokens. A prompt with several choices counts once.
    pub(super) fn input(&self, context: &Context<'_>) -> Option<Count> {
        let usage = self.usage.input.filter(|_| self.covers_all_prompts(context));
        let is_guessed = self.usage.early != Early::No && context.habits.early_input_is_guessed;
        let usage = usage.filter(|_| !is_guessed);
        let usage = usage.map(|tokens| Count { tokens, source: CountSource::Usage });
        let native = self.per_prompt(|native| native.input, context);
        let native = native.or(self.timed_input.filter(|_| self.has_one_prompt(context)).map(u64::from));
        let native = native.map(|tokens| Count { tokens, source: CountSource::NativeCounter });
        usage.or(native).filter(|count| count.tokens <= MAX_TOKENS)
    }

    /// Prompt tokens served from the engine's cache.
    pub(super) fn cached(&self, context: &Context<'_>) -> Option<u64> {
        let usage = self.usage.cached.filter(|_| self.covers_all_prompts(context));
        let native = self.per_prompt(|native| native.cached, context);
        usage.or(native).or(self.timed_cached.filter(|_| self.has_one_prompt(context)).map(u64::from))
    }

    /// True if the request has one prompt, so that counts without a choice belong to that prompt.
    fn has_one_prompt(&self, context: &Context<'_>) -> bool {
        context.parameters.prompts() == 1 && !self.untracked
    }

    /// True if the latest `usage` covers every prompt. With several prompts, the usage in a choice's event covers only
    /// the prompt of that choice.
    fn covers_all_prompts(&self, context: &Context<'_>) -> bool {
        context.parameters.prompts() == 1 || self.totals > 0 && !context.habits.usage_per_choice
    }

    /// A native prompt count, summed over prompts. Each choice reports the count of its prompt, so the sum over choices
    /// is divided by the choices per prompt. `None` if a choice is missing.
    fn per_prompt(&self, sum: fn(&NativeCounters) -> Option<u64>, context: &Context<'_>) -> Option<u64> {
        let native = self.native.as_ref().filter(|_| !self.untracked)?;
        let (counted, responses) = (u64::from(native.choices), context.parameters.choices_per_prompt());
        let times = match context.parameters.prompts() {
            1 if counted <= responses => counted,
            prompts if counted == prompts.saturating_mul(responses) => responses,
            _ => return None,
        };
        let sum = sum(native)?;
        (sum % times.max(1) == 0).then(|| sum / times.max(1))
    }

    /// Output tokens that were reasoning.
    pub(super) fn reasoning(&self) -> Option<u64> {
        let native = self.native.as_ref();
        // With several choices, usage in the event of a choice covers only that choice.
        let of_all = self.totals > 0 || self.seen() <= 1 || native.is_some_and(|native| native.output.is_some());
        let usage = self.usage.reasoning.filter(|_| of_all);
        usage.or(native.and_then(|native| native.reasoning).filter(|_| self.seen() <= 1))
    }

    /// Number of choices seen.
    pub(in crate::measure) fn seen(&self) -> u64 {
        let seen = self.choices.iter().filter(|choice| choice.is_seen()).count() as u64;
        seen.max(u64::from(self.widest))
    }
}

impl Choice {
    fn is_seen(&self) -> bool {
        self.begun || self.finished || self.usage.is_some()
    }
}
