//! Token counting in edge cases.

use crate::measure::tokens::{Context, MAX_TOKENS, Tokens};
use crate::measure::{Count, CountSource, Parameters};
use tokometer_decode::{
    Channels, Counter, EngineHabits, EngineTiming, FinishReason, Finishes, OutputLimit, StreamEvent, Usage,
};

/// Parameters of a request for one response to one prompt.
const ONE_RESPONSE: Parameters = Parameters {
    model: None,
    stream: None,
    n: None,
    prompts: None,
    max_tokens: None,
    limit: OutputLimit { largest: 0, certain: false },
    echo: false,
    context_only: false,
};

/// A complete response to one prompt.
const ONE: Context<'static> = Context {
    parameters: &ONE_RESPONSE,
    complete: true,
    habits: EngineHabits {
        empty_delta_is_token: false,
        usage_per_choice: false,
        early_input_is_guessed: false,
        aborts_with_error: false,
        head_when_scheduled: false,
    },
};

/// A request for `n` responses.
fn with_choices(n: u64) -> Parameters {
    Parameters { n: Some(n), ..ONE_RESPONSE }
}

#[test]
fn implausible_output_count_falls_back_to_event_count() {
    let usage = |output| Usage { input: Some(output), output: Some(output), total: true, ..Usage::default() };
    let count = |output| {
        let mut tokens = Tokens::default();
        let token = StreamEvent { choices: 1, channels: Channels::CONTENT, ..StreamEvent::default() };
        for event in [token, token, StreamEvent { usage: Some(usage(output)), ..StreamEvent::default() }] {
            tokens.event(&event, EngineHabits::default(), false);
        }
        (tokens.output(&ONE), tokens.input(&ONE).map(|count| count.tokens))
    };
    let of = |tokens, source| Some(Count { tokens, source });
    assert_eq!(count(MAX_TOKENS), (of(MAX_TOKENS, CountSource::Usage), Some(MAX_TOKENS)));
    for absurd in [MAX_TOKENS + 1, u64::MAX] {
        assert_eq!(count(absurd), (of(2, CountSource::Deltas), None));
    }
}

#[test]
fn implausible_sum_of_totals_is_ignored() {
    let habits = EngineHabits { usage_per_choice: true, ..EngineHabits::default() };
    let usage = Usage { output: Some(MAX_TOKENS), total: true, ..Usage::default() };
    let mut tokens = Tokens::default();
    for _ in 0..2 {
        tokens.event(&StreamEvent { usage: Some(usage), ..StreamEvent::default() }, habits, false);
    }
    assert_eq!(tokens.output(&Context { parameters: &with_choices(2), habits, ..ONE }), None);
}

#[test]
fn implausible_prompt_count_is_ignored() {
    for cached_tokens in [Some(1), Some(u64::MAX), None] {
        let timing = EngineTiming { prompt_tokens: Some(u64::MAX), cached_tokens, ..EngineTiming::default() };
        let mut tokens = Tokens::default();
        tokens.event(&StreamEvent { timing: Some(timing), ..StreamEvent::default() }, EngineHabits::default(), false);
        assert_eq!(tokens.input(&ONE), None);
        assert_eq!(tokens.cached(&ONE), cached_tokens.filter(|tokens| *tokens == 1));
    }
}

#[test]
fn implausible_counter_step_has_unknown_tokens() {
    let event = |output| StreamEvent {
        choices: 1,
        channels: Channels::CONTENT,
        usage: Some(Usage { output: Some(output), ..Usage::default() }),
        ..StreamEvent::default()
    };
    let mut tokens = Tokens::default();
    let steps = [1, 5, 4_000_000_000].map(|output| tokens.event(&event(output), EngineHabits::default(), false).tokens);
    assert_eq!(steps, [Some(1), Some(4), None]);
}

/// Ollama 0.17: `message_start` has an input count estimated from the text length; `message_delta` has the exact count.
#[test]
fn estimated_input_is_replaced_or_dropped() {
    let reported = |input, early| StreamEvent {
        usage: Some(Usage { input: Some(input), total: true, early, ..Usage::default() }),
        ..StreamEvent::default()
    };
    let guessing = EngineHabits { early_input_is_guessed: true, ..EngineHabits::default() };
    let count = |tokens: &Tokens, habits| tokens.input(&Context { habits, ..ONE }).map(|count| count.tokens);
    let mut tokens = Tokens::default();
    tokens.event(&reported(2, true), guessing, false);
    assert_eq!((count(&tokens, guessing), count(&tokens, EngineHabits::default())), (None, Some(2)));
    tokens.event(&reported(14, false), guessing, false);
    assert_eq!((count(&tokens, guessing), count(&tokens, EngineHabits::default())), (Some(14), Some(14)));
}

fn text(choice: u32) -> StreamEvent {
    StreamEvent { choice, choices: 1, channels: Channels::CONTENT, ..StreamEvent::default() }
}

fn stop() -> Finishes {
    let mut finishes = Finishes::default();
    finishes.push(FinishReason::Stop);
    finishes
}

/// vLLM 0.32: both front ends send `token_ids` with each token. The Rust front end's last event is an empty delta that
/// is not a token.
#[test]
fn empty_delta_without_token_ids_is_not_a_token_if_others_have_ids() {
    let habits = EngineHabits { empty_delta_is_token: true, ..EngineHabits::default() };
    let empty = StreamEvent { choices: 1, empty_delta: true, finishes: stop(), ..StreamEvent::default() };
    let mut tokens = Tokens::default();
    for _ in 0..3 {
        assert!(tokens.event(&StreamEvent { token_ids: Some(1), ..text(0) }, habits, false).has_token);
    }
    assert!(!tokens.event(&empty, habits, false).has_token);
    assert_eq!(tokens.output(&Context { habits, ..ONE }), Some(Count { tokens: 3, source: CountSource::TokenIds }));
    // Without ids, the empty delta is the end-of-text token of the Python front end.
    let mut tokens = Tokens::default();
    tokens.event(&text(0), habits, false);
    assert!(tokens.event(&empty, habits, false).has_token);
}

/// llama.cpp sends the usage of each prompt in the prompt's last event.
#[test]
fn usage_of_one_prompt_is_not_used_for_several() {
    let two = Context { parameters: &Parameters { prompts: Some(2), ..ONE_RESPONSE }, ..ONE };
    let usage =
        |input, total| Some(Usage { input: Some(input), output: Some(3), cached: Some(4), total, ..Usage::default() });
    let mut tokens = Tokens::default();
    for (choice, input) in [(0, 14), (1, 20)] {
        let event = StreamEvent { usage: usage(input, false), finishes: stop(), ..text(choice) };
        tokens.event(&event, EngineHabits::default(), false);
    }
    assert_eq!((tokens.input(&two), tokens.cached(&two)), (None, None));
    assert_eq!(tokens.input(&ONE).map(|count| count.tokens), Some(20), "two responses to one prompt");
    // vLLM sends the total usage in an event without choices.
    tokens.event(&StreamEvent { usage: usage(34, true), ..StreamEvent::default() }, EngineHabits::default(), false);
    assert_eq!(tokens.input(&two).map(|count| count.tokens), Some(34));
    let per_choice = EngineHabits { usage_per_choice: true, ..EngineHabits::default() };
    assert_eq!(tokens.input(&Context { habits: per_choice, ..two }), None);
    // A native counter of one prompt does not cover two prompts either.
    let timing = EngineTiming { prompt_tokens: Some(10), cached_tokens: Some(2), ..EngineTiming::default() };
    let mut tokens = Tokens::default();
    tokens.event(&StreamEvent { timing: Some(timing), ..text(0) }, EngineHabits::default(), false);
    assert_eq!((tokens.input(&two), tokens.cached(&two)), (None, None));
    assert_eq!(tokens.cached(&ONE), Some(2));
}

#[test]
fn reasoning_count_of_one_choice_is_not_used_for_several() {
    let usage =
        |reasoning, total| Some(Usage { output: Some(9), reasoning: Some(reasoning), total, ..Usage::default() });
    let mut tokens = Tokens::default();
    for choice in [0, 1] {
        tokens.event(&StreamEvent { usage: usage(6, false), ..text(choice) }, EngineHabits::default(), false);
        assert_eq!(tokens.reasoning(), (choice == 0).then_some(6));
    }
    tokens.event(&StreamEvent { usage: usage(12, true), ..StreamEvent::default() }, EngineHabits::default(), false);
    assert_eq!(tokens.reasoning(), Some(12));
}

/// vLLM's usage and ids exclude an echoed prompt.
#[test]
fn echoed_first_event_has_only_tokens_counted_by_engine() {
    let reported = |output| StreamEvent { usage: Some(Usage { output: Some(output), ..Usage::default() }), ..text(0) };
    let first = |event: StreamEvent| Tokens::default().event(&event, EngineHabits::default(), true).tokens;
    assert_eq!(first(reported(5)), Some(5));
    assert_eq!(first(StreamEvent { token_ids: Some(5), ..text(0) }), Some(5));
    assert_eq!(first(text(0)), Some(0), "at most one of them is output");
}

/// llama.cpp with `timings_per_token` and `include_usage`: the finish event has no timings; the next event does.
#[test]
fn counter_missing_in_finish_event_is_lower_bound() {
    let timing = |n| Some(EngineTiming { predicted_tokens: Some(n), ..EngineTiming::default() });
    let mut tokens = Tokens::default();
    tokens.event(&StreamEvent { timing: timing(9), ..text(0) }, EngineHabits::default(), false);
    tokens.event(
        &StreamEvent { choices: 1, finishes: stop(), ..StreamEvent::default() },
        EngineHabits::default(),
        false,
    );
    assert_eq!(tokens.output(&ONE), Some(Count { tokens: 9, source: CountSource::Deltas }));
    tokens.event(&StreamEvent { timing: timing(10), ..StreamEvent::default() }, EngineHabits::default(), false);
    assert_eq!(tokens.output(&ONE), Some(Count { tokens: 10, source: CountSource::NativeCounter }));
}

#[test]
fn ends_of_untracked_choices_are_counted() {
    let mut tokens = Tokens::default();
    for choice in 0..6 {
        let counter = Some(Counter { input: Some(5), output: Some(2), ..Counter::default() });
        let event = StreamEvent { ended: true, finishes: stop(), counter, ..text(choice) };
        tokens.event(&event, EngineHabits::default(), false);
        assert_eq!(tokens.finished(), u64::from(choice) + 1);
    }
    assert!(
        tokens.output(&Context { parameters: &with_choices(6), ..ONE }).is_some_and(|count| !count.source.is_exact())
    );
}
