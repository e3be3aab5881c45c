//! Counts that no server sends in earnest.

use crate::decode::EngineTiming;
use crate::decode::StreamEvent;
use crate::decode::Usage;
use crate::measure::Habits;
use crate::measure::tokens::Prompts;
use crate::measure::tokens::{Tokens, Whole};

#[test]
fn totals_that_no_number_holds_stay_at_the_greatest() {
    let habits = Habits { usage_per_choice: true, ..Habits::default() };
    let usage = Usage { output: Some(u64::MAX), total: true, ..Usage::default() };
    let mut tokens = Tokens::default();
    for _ in 0..2 {
        tokens.event(&StreamEvent { usage: Some(usage), ..StreamEvent::default() }, habits, false);
    }
    let whole = Whole { choices: 2, echo: false, complete: true, habits };
    assert_eq!(tokens.output(whole).map(|count| count.tokens), Some(u64::MAX));
}

#[test]
fn prompts_that_no_number_holds_stay_at_the_greatest() {
    let timing =
        EngineTiming { prompt_tokens: Some(u64::MAX), cached_tokens: Some(u64::MAX), ..EngineTiming::default() };
    let mut tokens = Tokens::default();
    tokens.event(&StreamEvent { timing: Some(timing), ..StreamEvent::default() }, Habits::default(), false);
    let prompts = Prompts { number: 1, answers: 1 };
    assert_eq!(tokens.input(prompts, Habits::default()).map(|count| count.tokens), Some(u64::MAX));
}

/// Ollama 0.17: `message_start` guesses the input from the text's length, `message_delta` knows it.
#[test]
fn an_input_that_was_guessed_is_told_only_until_it_is_known_and_not_of_one_who_guesses() {
    let told = |input, early| StreamEvent {
        usage: Some(Usage { input: Some(input), total: true, early, ..Usage::default() }),
        ..StreamEvent::default()
    };
    let guessing = Habits { early_input_is_guessed: true, ..Habits::default() };
    let prompts = Prompts { number: 1, answers: 1 };
    let count = |tokens: &Tokens, habits| tokens.input(prompts, habits).map(|count| count.tokens);
    let mut tokens = Tokens::default();
    tokens.event(&told(2, true), guessing, false);
    assert_eq!((count(&tokens, guessing), count(&tokens, Habits::default())), (None, Some(2)));
    tokens.event(&told(14, false), guessing, false);
    assert_eq!((count(&tokens, guessing), count(&tokens, Habits::default())), (Some(14), Some(14)));
}
