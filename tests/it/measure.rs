//! Measurements of one request, with times set by the tests.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokometer::replay::Replayed;
use tokometer_decode::Route;
use tokometer_observe::input::{Close, Direction, Side};
use tokometer_observe::measure::{
    Blocked, CountSource, Outcome, Parameters, Phase, QueueSource, Record, Request, Sink,
};

use crate::endings::{DELTA, DONE, FINISH, HEAD, LAST, REQUEST, ROLE, Wire, chunk};

const CLOSE: Close = Close::Finished { first: Side::Client };

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Advances the clock before the next read (which itself takes a millisecond).
fn after(mut wire: Wire, pause: Duration) -> Wire {
    wire.now += pause;
    wire
}

fn record(wire: Wire) -> Record {
    let Replayed { mut records, .. } = wire.close(CLOSE);
    records.pop().expect("one record")
}

fn usage(output: u64) -> String {
    format!(r#"data: {{"choices":[],"usage":{{"prompt_tokens":9,"completion_tokens":{output}}}}}"#)
}

#[test]
fn times_count_from_the_last_byte_of_the_request() {
    let wire = after(Wire::open().client(&REQUEST[..50]), ms(500)).client(&REQUEST[50..]);
    let wire = after(wire.server(HEAD), ms(98)).events(&[ROLE, DELTA, FINISH, DONE]).server(LAST);
    let record = record(wire);
    assert_eq!(record.since_requested(record.times.headers), Some(ms(1)));
    assert_eq!(record.since_requested(record.times.first_event), Some(ms(100)));
    assert_eq!(record.since_requested(record.times.first_token), Some(ms(101)));
    assert_eq!(record.times.first_token, Some(ms(602)), "counted from the first byte");
}

#[test]
fn comments_are_not_events_and_roles_are_not_tokens() {
    let wire = Wire::asked().server(HEAD).events(&[": keep-alive", ": keep-alive", ROLE, DELTA, FINISH]).server(LAST);
    let record = record(wire);
    assert_eq!(record.since_requested(record.times.first_event), Some(ms(4)));
    assert_eq!(record.since_requested(record.times.first_token), Some(ms(5)));
    assert_eq!((record.tokens.chunks, record.response.events), (1, 3));
}

#[test]
fn reasoning_and_tool_calls_are_tokens_but_not_visible() {
    let reasoning = r#"data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm","content":null}}]}"#;
    let tool = r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#;
    let record = record(Wire::asked().server(HEAD).events(&[reasoning, tool, DELTA, FINISH]).server(LAST));
    assert_eq!(record.since_requested(record.times.first_token), Some(ms(2)));
    assert_eq!(record.since_requested(record.times.first_visible), Some(ms(4)));
}

#[test]
fn decode_rate_excludes_the_first_event() {
    let events = [DELTA; 5];
    let wire = Wire::asked().server(HEAD).events(&events).events(&[FINISH, &usage(5), DONE]).server(LAST);
    let rate = record(wire).rate.exact.expect("five tokens by usage");
    assert!((rate - 1000.0).abs() < 1e-6, "4 tokens in 4 ms, not {rate}");
}

#[test]
fn single_write_response_has_no_decode_rate() {
    let all = [DELTA, DELTA, FINISH, &usage(2), DONE].map(chunk).concat();
    let record = record(Wire::asked().server(HEAD).server(&[&all[..], LAST].concat()));
    assert_eq!((record.rate.exact, record.tokens.output.map(|n| n.tokens)), (None, Some(2)));
}

#[test]
fn inexact_count_gives_only_a_lower_bound_rate() {
    let record = record(Wire::asked().server(HEAD).events(&[DELTA, DELTA, DELTA, FINISH, DONE]).server(LAST));
    assert_eq!(record.tokens.output.map(|n| n.source), Some(CountSource::Deltas));
    assert_eq!(record.rate.exact, None);
    assert!(record.rate.at_least.is_some_and(|rate| (rate - 1000.0).abs() < 1e-6));
}

/// The first event has log probabilities of five tokens; events with three more tokens follow.
#[test]
fn lower_bound_rate_excludes_tokens_of_the_first_event() {
    let many = r#"data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{},{},{},{},{}]}}]}"#;
    let record = record(Wire::asked().server(HEAD).events(&[many, DELTA, DELTA, DELTA, FINISH, DONE]).server(LAST));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((5, CountSource::Deltas)));
    assert!(record.rate.at_least.is_some_and(|rate| (rate - 1000.0).abs() < 1e-6), "{record:?}");
}

const TOOL: &str =
    r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#;

/// Engines parse a tool call before they send it, so the first event may contain any number of tokens.
#[test]
fn rate_after_a_tool_call_of_unknown_size_is_a_lower_bound() {
    let counted = |n| record(Wire::asked().server(HEAD).events(&[TOOL, DELTA, DELTA, FINISH, &usage(n)]).server(LAST));
    let many = counted(40);
    assert_eq!((many.rate.exact, many.time_per_output_token()), (None, None), "{many:?}");
    assert!(many.rate.at_least.is_some_and(|rate| (rate - 1000.0).abs() < 1e-6), "2 events in 2 ms: {many:?}");
    // One of the four tokens is the end-of-text token. Each of the three events has at least one token, so the first
    // event has exactly one.
    let few = counted(4);
    assert!(few.rate.exact.is_some_and(|rate| (rate - 1500.0).abs() < 1e-6), "{few:?}");
    assert!(few.time_per_output_token().is_some() && few.rate.at_least.is_none());
}

#[test]
fn rate_after_hidden_reasoning_is_a_lower_bound() {
    let usage =
        r#"data: {"choices":[],"usage":{"completion_tokens":40,"completion_tokens_details":{"reasoning_tokens":30}}}"#;
    let hidden = record(Wire::asked().server(HEAD).events(&[DELTA, DELTA, FINISH, usage]).server(LAST));
    assert_eq!((hidden.rate.exact, hidden.tokens.reasoning), (None, Some(30)), "{hidden:?}");
    assert!(hidden.rate.at_least.is_some_and(|rate| (rate - 1000.0).abs() < 1e-6), "{hidden:?}");
    let shown = r#"data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#;
    let shown = record(Wire::asked().server(HEAD).events(&[shown, DELTA, DELTA, FINISH, usage]).server(LAST));
    assert!(shown.rate.exact.is_some_and(|rate| (rate - 19_500.0).abs() < 1e-6), "39 tokens in 2 ms: {shown:?}");
}

#[test]
fn values_that_the_client_determined_are_not_the_servers() {
    let usual = record(Wire::asked().server(HEAD).events(&[DELTA, DELTA, FINISH, &usage(2)]).server(LAST));
    assert_eq!((usual.time_to_first_token(), usual.is_client_limited()), (Some(ms(2)), false));
    let blocked = Record { blocked: Blocked { waiting: ms(1), ..Blocked::default() }, ..usual.clone() };
    assert_eq!(blocked.time_to_first_token(), None);
    let blocked = usual.with(|r| r.blocked.decoding = ms(1));
    assert!(blocked.is_client_limited() && blocked.time_per_output_token().is_none());
}

/// Records the phases that requests enter (`true`) and leave (`false`).
#[derive(Default)]
struct Entered(Mutex<Vec<(Phase, bool)>>);

impl Sink for Entered {
    fn in_flight(&self, _: usize, phase: Phase, delta: i64) {
        self.0.lock().expect("not poisoned").push((phase, delta > 0));
    }

    fn record(&self, _: &Arc<Record>) {}
}

#[test]
fn request_waits_for_a_first_token_only_if_its_response_is_streamed() {
    use Phase::{Unstreamed, WaitingFirstToken as Waiting};
    let entered = |stream: Option<bool>, streams: bool| {
        let (sink, now) = (Entered::default(), Instant::now());
        let mut request = Request::begin(0, 0, 0, now);
        request.request_head(Route::Chat, None, None, None, &sink);
        request.request_end(Parameters { stream, ..Parameters::default() }, now, &sink);
        request.response_head(200, streams, None, now, &sink);
        request.leave(&sink);
        sink.0.into_inner().unwrap()
    };
    assert_eq!(entered(Some(true), true), [(Waiting, true), (Waiting, false)]);
    let whole = [(Waiting, true), (Waiting, false), (Unstreamed, true), (Unstreamed, false)];
    assert_eq!(entered(Some(false), false), whole);
    assert_eq!(entered(None, false), whole);
    assert_eq!(entered(Some(true), false), whole, "the response headers take precedence");
    assert_eq!(entered(None, true), [&whole[..], &[(Waiting, true), (Waiting, false)]].concat());
}

#[test]
fn finish_reason_error_is_error_in_stream() {
    let failed = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#;
    let record = record(Wire::asked().server(HEAD).events(&[DELTA, failed, DONE]).server(LAST));
    assert_eq!(record.outcome, Outcome::ErrorInStream);
}

#[test]
fn gap_is_reported_with_the_tokens_that_follow_it() {
    let with_usage = |n: u64| {
        format!(r#"data: {{"choices":[{{"index":0,"delta":{{"content":"a"}}}}],"usage":{{"completion_tokens":{n}}}}}"#)
    };
    let wire = Wire::asked().server(HEAD).events(&[&with_usage(2)]);
    let wire = after(wire, ms(29)).events(&[&with_usage(5)]).events(&[FINISH, &usage(5), DONE]).server(LAST);
    let Replayed { records, gaps, .. } = wire.close(CLOSE);
    assert_eq!(records[0].tokens.first, Some(2));
    assert_eq!(gaps.iter().map(|g| (g.gap, g.tokens)).collect::<Vec<_>>(), [(ms(30), Some(3))]);
    let rate = records[0].rate.exact.expect("three tokens after the first event");
    assert!((rate - 100.0).abs() < 1e-6, "(5 - 2) in 30 ms, not {rate}");
}

#[test]
fn long_gap_is_a_stall_unless_blocked_on_the_client() {
    let stalled =
        after(Wire::asked().server(HEAD).events(&[DELTA]), ms(1500)).events(&[DELTA, FINISH, &usage(2)]).server(LAST);
    let stalled = record(stalled);
    assert_eq!((stalled.gaps.stalls, stalled.blocked.total()), (Some(1), Duration::ZERO));

    let mut wire = Wire::asked().server(HEAD).events(&[DELTA]);
    let since = wire.now;
    wire = after(wire, ms(1500));
    wire.observer.blocked(Direction::Response, since, since + ms(1500));
    let blocked = record(wire.events(&[DELTA, FINISH]).server(LAST));
    assert_eq!((blocked.gaps.stalls, blocked.blocked.total()), (Some(0), ms(1500)));
    assert_eq!(
        (blocked.gaps.longest, blocked.gaps.longest_pause),
        (None, None),
        "a gap caused by the client is not counted"
    );
}

/// Events that the server sent while the client did not read arrive in one burst. Their gaps are counted for no choice.
#[test]
fn gaps_of_a_burst_after_a_blocked_client_are_not_counted() {
    let of = |choice: u32| format!(r#"data: {{"choices":[{{"index":{choice},"delta":{{"content":"x"}}}}]}}"#);
    let (first, second) = (of(0), of(1));
    let mut wire = Wire::asked().server(HEAD).events(&[&first, &second]);
    let since = wire.now;
    wire = after(wire, ms(9000));
    wire.observer.blocked(Direction::Response, since, since + ms(9000));
    wire = wire.server(&[chunk(&first), chunk(&second), chunk(&first), chunk(&second)].concat());
    wire = after(wire, ms(30)).events(&[&first, &second, FINISH, DONE]).server(LAST);
    let Replayed { records, gaps, .. } = wire.close(CLOSE);
    assert_eq!((records[0].gaps.stalls, records[0].blocked.total()), (Some(0), ms(9000)));
    assert!(gaps.iter().all(|gap| gap.gap >= ms(30) && gap.gap < ms(100)), "{gaps:?}");
    assert!(!gaps.is_empty());
}

#[test]
fn queue_time_comes_from_body_or_llama_cpp_headers() {
    let llama: &[u8] = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let by_head = record(after(Wire::asked(), ms(49)).server(llama).events(&[DELTA, FINISH]).server(LAST));
    assert_eq!(by_head.engine.queue.map(|q| (q.value, q.source)), Some((ms(50), QueueSource::HeaderTiming)));

    // The headers arrive late, in one read with the first token. The queue time is then the time of the token minus the
    // prompt time of 30 ms.
    let timings =
        r#"data: {"choices":[],"timings":{"prompt_n":9,"prompt_ms":30.0,"predicted_n":1,"predicted_ms":1.0}}"#;
    let together = [llama, &chunk(DELTA)[..]].concat();
    let late = record(after(Wire::asked(), ms(49)).server(&together).events(&[FINISH, timings]).server(LAST));
    assert_eq!(late.engine.queue.map(|q| (q.value, q.source)), Some((ms(20), QueueSource::HeaderTiming)));
    let unreported = record(after(Wire::asked(), ms(49)).server(&together).events(&[FINISH]).server(LAST));
    assert_eq!(unreported.engine.queue, None, "the prompt time is unknown");

    let metrics = r#"data: {"choices":[],"usage":{"completion_tokens":1},"metrics":{"queue_time_ms":12.5}}"#;
    let in_band = record(Wire::asked().server(HEAD).events(&[DELTA, FINISH, metrics]).server(LAST));
    assert_eq!(
        in_band.engine.queue.map(|q| (q.value, q.source)),
        Some((Duration::from_micros(12_500), QueueSource::InBand))
    );

    let unknown = record(after(Wire::asked(), ms(49)).server(HEAD).events(&[DELTA, FINISH]).server(LAST));
    assert_eq!(unknown.engine.queue, None, "vLLM sends its headers before queueing");
}

#[test]
fn an_explicit_zero_is_not_missing() {
    let record = record(Wire::asked().server(HEAD).events(&[ROLE, FINISH, &usage(0), DONE]).server(LAST));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((0, CountSource::Usage)));
}

#[test]
fn body_with_undecodable_coding_is_not_parsed() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: gzip, chunked\r\n\r\n";
    let record = record(Wire::asked().server(head).events(&[DELTA, FINISH]).server(LAST));
    assert_eq!((record.tokens.output, record.times.first_token), (None, None));
}
