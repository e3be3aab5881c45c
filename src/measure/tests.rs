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
