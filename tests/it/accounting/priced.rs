//! The cost of a request, and its basis.

use tokometer_decode::Route;
use tokometer_observe::measure::{Count, CountSource, Outcome, Record};
use tokometer_telemetry::accounting::{Basis, Price, Prices, Unpriced, cost};

use super::{labelled, prices, response};
use crate::export::records;

fn count(tokens: u64, source: CountSource) -> Option<Count> {
    Some(Count { tokens, source })
}

/// The cost in millionths of a dollar, rounded to one decimal.
fn reported(record: &Record) -> Option<Result<(f64, Basis), Unpriced>> {
    let model = record.labels.response_model.as_deref();
    cost(record, model, &prices()).map(|cost| cost.map(|(money, basis)| ((money * 1e7).round() / 10.0, basis)))
}

#[test]
fn tokens_are_priced_by_their_kind() {
    // 400 at 1, 600 at 0.1 and 101 at 3.
    assert_eq!(reported(&response("m")), Some(Ok((763.0, Basis::Exact))));
    assert_eq!(reported(&response("free-1")), Some(Ok((0.0, Basis::Exact))));
    assert_eq!(reported(&response("x")), Some(Err(Unpriced::NoPrice)));
    let more_cached_than_there_are = response("m").with(|r| r.tokens.cached = Some(5000));
    assert_eq!(reported(&more_cached_than_there_are), Some(Ok((403.0, Basis::Exact))));
}

#[test]
fn first_matching_price_applies() {
    let of = |model: &str, input| Price { model: model.to_owned(), input, cached_input: None, output: 0.0 };
    let record = response("m-1").with(|r| r.tokens.cached = None);
    let first = |models: Vec<Price>| {
        let prices = Prices { currency: "USD".to_owned(), models };
        cost(&record, Some("m-1"), &prices).unwrap().map(|(money, basis)| ((money * 1e6).round(), basis))
    };
    assert_eq!(first(vec![of("m-1", 5.0), of("*", 1.0)]), Ok((5000.0, Basis::Exact)), "one price for all input");
    assert_eq!(first(vec![of("*", 1.0), of("m-1", 5.0)]), Ok((1000.0, Basis::Exact)));
    assert_eq!(first(vec![of("m", 1.0), of("m-*", 7.0)]), Ok((7000.0, Basis::Exact)));
    assert_eq!(first(vec![of("m", 1.0)]), Err(Unpriced::NoPrice));
}

#[test]
fn inexact_costs_are_marked_and_unknown_ones_unpriced() {
    let uncached = response("m").with(|r| r.tokens.cached = None);
    assert_eq!(reported(&uncached), Some(Ok((1303.0, Basis::Estimate))), "priced as uncached");
    let by_text = response("m").with(|r| r.tokens.output = count(101, CountSource::Tokenizer));
    assert_eq!(reported(&by_text), Some(Ok((763.0, Basis::Estimate))));
    let at_least = response("m").with(|r| r.tokens.output = count(101, CountSource::Deltas));
    assert_eq!(reported(&at_least), Some(Ok((763.0, Basis::LowerBound))));
    let neither = at_least.with(|r| r.tokens.cached = None);
    assert_eq!(reported(&neither), Some(Ok((1303.0, Basis::Estimate))));
    let no_input = response("m").with(|r| r.tokens.input = None);
    assert_eq!(reported(&no_input), Some(Err(Unpriced::NoInputCount)));
    let no_output = response("m").with(|r| r.tokens.output = None);
    assert_eq!(reported(&no_output), Some(Err(Unpriced::NoOutputCount)));
    let vectors = labelled(no_output, |labels| labels.route = Route::Embeddings);
    assert_eq!(reported(&vectors), Some(Ok((460.0, Basis::Exact))), "embeddings have no output tokens");
}

#[test]
fn refused_requests_are_free_and_aborted_ones_are_not() {
    assert_eq!(reported(&records::busy("m")), None);
    let refused = response("m").with(|r| {
        r.outcome = Outcome::UpstreamRefused;
        r.response.status = None;
    });
    assert_eq!(reported(&refused), None);
    let failed_call = response("m").with(|r| {
        r.outcome = Outcome::Http5xx;
        r.response.status = Some(200);
    });
    assert_eq!(reported(&failed_call), None, "a gRPC call fails with HTTP status 200");
    assert_eq!(reported(&records::other()), None);
    let left = Record { outcome: Outcome::ClientAbortMidStream, ..response("m") };
    assert_eq!(reported(&left), Some(Ok((763.0, Basis::Exact))));
}
