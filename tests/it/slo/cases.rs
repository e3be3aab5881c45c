//! Verdicts on scripted records.

use std::sync::Arc;
use std::time::Duration;

use tokometer_decode::Route;
use tokometer_observe::measure::{Blocked, Count, CountSource, Labels, Outcome, Record, Targets};
use tokometer_telemetry::slo::{Exclusion, Goal, Objective, Reason, Scope, Settings, Verdict, concerns, verdict};

use super::{good, ms, only};

const GOOD: Verdict = Verdict::Good;

fn bad(reason: Reason) -> Verdict {
    Verdict::Bad(reason)
}

fn left(why: Exclusion) -> Verdict {
    Verdict::Excluded(why)
}

fn evaluate(record: &Record, settings: &Settings) -> Verdict {
    verdict(record, Some("m"), &settings.objectives[0], settings)
}

fn first_token(base_ms: u64, per_1k_ms: u64) -> Settings {
    only(Goal::FirstToken { base: ms(base_ms), per_1k_uncached: ms(per_1k_ms) })
}

/// A request without response events, which ended `waited` ms after the last byte of the request.
fn without_token(outcome: Outcome, status: Option<u16>, waited: u64) -> Record {
    good().with(|r| {
        r.outcome = outcome;
        r.response.status = status;
        r.times.headers = None;
        r.times.first_event = None;
        r.times.first_token = None;
        r.times.first_visible = None;
        r.times.last_token = None;
        r.tokens.input = None;
        r.tokens.cached = None;
        r.tokens.output = None;
        r.rate.exact = None;
        r.gaps.longest_pause = None;
        r.times.ended = ms(10 + waited);
    })
}

fn targets(first_token: Option<Duration>, per_token: Option<Duration>, tenant: Option<&str>) -> Option<Box<Targets>> {
    Targets { first_token, per_token, tenant: tenant.map(Into::into), ..Targets::default() }.if_any()
}

#[test]
fn availability_of_every_outcome() {
    let settings = only(Goal::Availability);
    let expected = |outcome| match outcome {
        Outcome::Ok => GOOD,
        Outcome::ClientAbortBeforeFirstToken | Outcome::ClientAbortMidStream => left(Exclusion::ClientAbort),
        Outcome::Http4xx => left(Exclusion::ClientError),
        Outcome::Drained => left(Exclusion::Drained),
        Outcome::Unobserved => left(Exclusion::Unobserved),
        Outcome::UpstreamRefused => bad(Reason::UpstreamRefused),
        Outcome::UpstreamReset => bad(Reason::UpstreamReset),
        Outcome::UpstreamTimeout => bad(Reason::UpstreamTimeout),
        Outcome::Truncated => bad(Reason::Truncated),
        Outcome::ErrorInStream => bad(Reason::ErrorInStream),
        Outcome::Http5xx => bad(Reason::Http5xx),
        Outcome::RejectedBusy => bad(Reason::RejectedBusy),
        Outcome::NoOutput => bad(Reason::NoOutput),
    };
    for outcome in Outcome::ALL {
        assert_eq!(evaluate(&Record { outcome, ..good() }, &settings), expected(outcome), "{outcome:?}");
    }
    assert_eq!(evaluate(&Record { unread: true, ..good() }, &settings), left(Exclusion::Unread));
    let forgiving = Settings { busy_is_bad: false, ..settings };
    let busy = good().with(|r| {
        r.outcome = Outcome::RejectedBusy;
        r.response.status = Some(429);
    });
    assert_eq!(evaluate(&busy, &forgiving), left(Exclusion::Busy));
}

/// The record with a first token that was delayed by this time because the client did not read.
fn behind_client(record: Record, blocked_ms: u64) -> Record {
    Record { blocked: Blocked { waiting: ms(blocked_ms), ..Blocked::default() }, ..record }
}

#[test]
fn first_token_behind_a_client_that_does_not_read_is_not_late() {
    // The first token arrives 200 ms after the request.
    assert_eq!(evaluate(&behind_client(good(), 50), &first_token(150, 0)), left(Exclusion::ClientLimited));
    assert_eq!(evaluate(&behind_client(good(), 49), &first_token(150, 0)), bad(Reason::LateFirstToken));
    assert_eq!(evaluate(&behind_client(good(), 199), &first_token(200, 0)), GOOD);
}

#[test]
fn first_token_exactly_at_the_limit_is_good() {
    // The first token arrives 200 ms after the last byte of the request.
    for (limit, expected) in [(199, bad(Reason::LateFirstToken)), (200, GOOD), (201, GOOD)] {
        assert_eq!(evaluate(&good(), &first_token(limit, 0)), expected, "{limit}");
    }
    let never_whole = good().with(|r| r.times.requested = None);
    assert_eq!(evaluate(&never_whole, &first_token(1, 0)), left(Exclusion::Unknown));
}

#[test]
fn uncached_prompt_tokens_extend_the_limit() {
    let exact = |tokens| Some(Count { tokens, source: CountSource::Usage });
    // 1000 prompt tokens, 600 of them cached: 400 tokens at 100 ms per thousand are 40 ms.
    assert_eq!(evaluate(&good(), &first_token(160, 100)), GOOD);
    assert_eq!(evaluate(&good(), &first_token(159, 100)), bad(Reason::LateFirstToken));
    let cache_unreported = good().with(|r| r.tokens.cached = None);
    assert_eq!(evaluate(&cache_unreported, &first_token(100, 100)), GOOD, "the whole prompt counts");
    // Without reported counts, the limit is computed from the request's 4000 bytes, with four bytes per token.
    let unreported = good().with(|r| {
        r.tokens.input = None;
        r.tokens.cached = None;
    });
    assert_eq!(evaluate(&unreported, &first_token(100, 100)), GOOD);
    assert_eq!(evaluate(&unreported, &first_token(99, 100)), bad(Reason::LateFirstToken));
    let guessed = Count { tokens: 1_000_000, source: CountSource::Deltas };
    let lower_bound = unreported.with(|r| r.tokens.input = Some(guessed));
    assert_eq!(evaluate(&lower_bound, &first_token(99, 100)), bad(Reason::LateFirstToken));
    let vast = good().with(|r| {
        r.tokens.input = exact(u64::MAX);
        r.tokens.cached = None;
    });
    assert_eq!(evaluate(&vast, &first_token(1, 86_400_000)), GOOD);
}

#[test]
fn missing_first_token_is_bad_after_the_limit() {
    let settings = first_token(2000, 0);
    let gave_up = Outcome::ClientAbortBeforeFirstToken;
    let table = [
        (without_token(gave_up, Some(200), 2001), bad(Reason::NoFirstToken)),
        (behind_client(without_token(gave_up, Some(200), 2001), 2), left(Exclusion::EndedEarly)),
        (behind_client(without_token(gave_up, Some(200), 2001), 0), bad(Reason::NoFirstToken)),
        (without_token(gave_up, Some(200), 2000), left(Exclusion::EndedEarly)),
        (without_token(gave_up, None, 60_000), bad(Reason::NoFirstToken)),
        (without_token(Outcome::RejectedBusy, Some(503), 60_000), bad(Reason::NoFirstToken)),
        (without_token(Outcome::RejectedBusy, Some(503), 5), left(Exclusion::EndedEarly)),
        (without_token(Outcome::Drained, None, 2001), bad(Reason::NoFirstToken)),
        (without_token(Outcome::Http4xx, Some(400), 9000), left(Exclusion::ClientError)),
        (without_token(Outcome::Ok, Some(200), 9000), left(Exclusion::NoToken)),
        (Record { unread: true, ..without_token(gave_up, Some(200), 9000) }, left(Exclusion::Unread)),
        (without_token(gave_up, None, 9000).with(|r| r.times.requested = None), left(Exclusion::Unknown)),
        (without_token(gave_up, None, 9000).with(|r| r.request.stream = Some(false)), left(Exclusion::NotStreamed)),
        (without_token(gave_up, None, 9000).with(|r| r.request.stream = None), left(Exclusion::NotStreamed)),
    ];
    for (record, expected) in table {
        assert_eq!(evaluate(&record, &settings), expected, "{record:?}");
    }
}

#[test]
fn non_streamed_response_is_excluded() {
    let labels = Labels { streaming: Some(false), ..(*good().labels).clone() };
    let whole = Record { labels: Arc::new(labels), ..without_token(Outcome::Ok, Some(200), 9000) };
    assert_eq!(evaluate(&whole, &first_token(1, 0)), left(Exclusion::NotStreamed));
    assert_eq!(evaluate(&whole, &only(Goal::DecodeRate { floor: 1.0 })), left(Exclusion::NotStreamed));
    assert_eq!(evaluate(&whole, &only(Goal::Stall { longest: ms(1) })), left(Exclusion::NotStreamed));
}

#[test]
fn decode_rate_is_evaluated_where_meaningful() {
    let settings = |floor| only(Goal::DecodeRate { floor });
    // The record has a decode rate of 100 tokens per second.
    assert_eq!(evaluate(&good(), &settings(100.0)), GOOD);
    assert_eq!(evaluate(&good(), &settings(100.1)), bad(Reason::SlowDecode));
    let count = |tokens, source| Some(Count { tokens, source });
    let bound = |rate| {
        good().with(|r| {
            r.rate.exact = None;
            r.rate.at_least = Some(rate);
            r.tokens.output = count(50, CountSource::Deltas);
        })
    };
    assert_eq!(evaluate(&bound(20.0), &settings(20.0)), GOOD, "the true rate is at least this");
    assert_eq!(evaluate(&bound(19.9), &settings(20.0)), left(Exclusion::Unknown));
    let table = [
        (good().with(|r| r.tokens.output = count(15, CountSource::Usage)), Exclusion::TooFewTokens),
        (good().with(|r| r.times.last_token = Some(ms(409))), Exclusion::TooFewTokens),
        (good().with(|r| r.rate.exact = None), Exclusion::TooFewTokens),
        (good().with(|r| r.request.choices = 2), Exclusion::SeveralChoices),
        (good().with(|r| r.blocked.decoding = ms(101)), Exclusion::ClientLimited),
        (good().with(|r| r.tokens.output = None), Exclusion::Unknown),
        (Record { unread: true, ..good() }, Exclusion::Unread),
        (without_token(Outcome::ClientAbortBeforeFirstToken, Some(200), 1), Exclusion::NoToken),
    ];
    for (record, why) in table {
        assert_eq!(evaluate(&record, &settings(1000.0)), left(why), "{record:?}");
    }
    let nearly = good().with(|r| {
        r.blocked.decoding = ms(100);
        r.tokens.output = count(16, CountSource::Usage);
    });
    assert_eq!(evaluate(&nearly, &settings(1000.0)), bad(Reason::SlowDecode), "values at the limits are evaluated");
    let cut = Record { outcome: Outcome::ClientAbortMidStream, ..good() };
    assert_eq!(evaluate(&cut, &settings(1000.0)), bad(Reason::SlowDecode), "the observed part was slow");
}

#[test]
fn stall_is_a_gap_or_silence_before_a_failure() {
    let settings = only(Goal::Stall { longest: ms(5000) });
    let gap = |n| {
        good().with(|r| {
            r.gaps.longest = Some(ms(9000));
            r.gaps.longest_pause = Some(ms(n));
        })
    };
    assert_eq!(evaluate(&gap(5000), &settings), GOOD);
    assert_eq!(evaluate(&gap(5001), &settings), bad(Reason::Stalled));
    assert_eq!(evaluate(&good().with(|r| r.gaps.longest_pause = None), &settings), GOOD, "a single token has no gap");
    let broken = |outcome, silence: u64| {
        good().with(|r| {
            r.outcome = outcome;
            r.times.ended = ms(1210 + silence);
        })
    };
    let table = [
        (broken(Outcome::Ok, 60_000), GOOD),
        (broken(Outcome::ClientAbortMidStream, 5001), bad(Reason::Stalled)),
        (broken(Outcome::UpstreamReset, 5000), GOOD),
        (broken(Outcome::UpstreamReset, 5001).with(|r| r.gaps.usual = Some(ms(2501))), GOOD),
        (broken(Outcome::UpstreamReset, 10_000).with(|r| r.gaps.usual = None), GOOD),
        (broken(Outcome::UpstreamReset, 10_001).with(|r| r.gaps.usual = None), bad(Reason::Stalled)),
        (broken(Outcome::Truncated, 5001), bad(Reason::Stalled)),
        (broken(Outcome::ClientAbortMidStream, 60_000).with(|r| r.blocked.decoding = ms(1)), GOOD),
        (Record { unread: true, ..broken(Outcome::ClientAbortMidStream, 60_000) }, left(Exclusion::Unread)),
        (Record { unread: true, ..gap(5001) }, bad(Reason::Stalled)),
        (without_token(Outcome::ClientAbortBeforeFirstToken, Some(200), 60_000), left(Exclusion::NoToken)),
    ];
    for (record, expected) in table {
        assert_eq!(evaluate(&record, &settings), expected, "{record:?}");
    }
}

#[test]
fn goodput_requires_every_objective() {
    let mut settings = Settings::default();
    settings.objectives.rotate_right(1);
    assert_eq!(settings.objectives[0].goal, Goal::Goodput);
    let late = good().with(|r| {
        r.times.first_token = Some(ms(9000));
        r.times.last_token = Some(ms(10_000));
        r.times.ended = ms(10_010);
    });
    let table = [
        (good(), GOOD),
        (Record { outcome: Outcome::Http5xx, ..good() }, bad(Reason::Http5xx)),
        (late.clone(), bad(Reason::LateFirstToken)),
        (good().with(|r| r.rate.exact = Some(19.9)), bad(Reason::SlowDecode)),
        (good().with(|r| r.gaps.longest_pause = Some(ms(5001))), bad(Reason::Stalled)),
        (Record { outcome: Outcome::ClientAbortMidStream, ..good() }, left(Exclusion::ClientAbort)),
        (Record { outcome: Outcome::ClientAbortMidStream, ..late.clone() }, bad(Reason::LateFirstToken)),
        (good().with(|r| r.request.choices = 4), GOOD),
    ];
    for (record, expected) in table {
        assert_eq!(evaluate(&record, &settings), expected, "{record:?}");
    }
    // Objectives that cover only other models are not evaluated.
    settings.objectives.iter_mut().for_each(|o| o.scope.models = vec!["other".to_owned()]);
    assert_eq!(evaluate(&late, &settings), GOOD);
}

#[test]
fn request_targets_apply_within_the_limits() {
    let asks = |ttft| good().with(|r| r.request.targets = targets(Some(ttft), None, None));
    assert_eq!(evaluate(&asks(ms(199)), &first_token(60_000, 0)), bad(Reason::LateFirstToken));
    assert_eq!(evaluate(&asks(ms(200)), &first_token(1, 0)), GOOD);
    let quick = asks(ms(1)).with(|r| r.times.first_token = Some(ms(60)));
    assert_eq!(evaluate(&quick, &first_token(60_000, 0)), GOOD, "1 ms is clamped to the minimum");
    let patient = asks(Duration::from_secs(86_400)).with(|r| r.times.first_token = Some(ms(700_000)));
    assert_eq!(evaluate(&patient, &first_token(1, 0)), bad(Reason::LateFirstToken));
    let asks = |tpot| good().with(|r| r.request.targets = targets(None, Some(tpot), None));
    // The record has 10 ms per token.
    assert_eq!(evaluate(&asks(ms(10)), &only(Goal::DecodeRate { floor: 1000.0 })), GOOD);
    assert_eq!(evaluate(&asks(ms(9)), &only(Goal::DecodeRate { floor: 1.0 })), bad(Reason::SlowDecode));
    assert_eq!(evaluate(&asks(ms(1)), &only(Goal::DecodeRate { floor: 1.0 })), bad(Reason::SlowDecode));
}

#[test]
fn scope_covers_models_routes_and_tenants() {
    let about = |scope: Scope, record: &Record, model| {
        concerns(&Objective { name: "x".to_owned(), target: 0.9, scope, goal: Goal::Availability }, record, model)
    };
    let models = |name: &str| Scope { models: vec![name.to_owned()], ..Scope::default() };
    let routes = |routes: &[Route]| Scope { routes: routes.to_vec(), ..Scope::default() };
    let tenants = Scope { tenants: vec!["a".to_owned()], ..Scope::default() };
    let of = |tenant| good().with(|r| r.request.targets = targets(None, None, tenant));
    let on = |route| {
        let labels = Labels { route, ..(*good().labels).clone() };
        Record { labels: Arc::new(labels), ..good() }
    };
    assert!(about(Scope::default(), &good(), None));
    assert!(about(models("llama*"), &good(), Some("llama-3")));
    assert!(!about(models("llama*"), &good(), Some("qwen")));
    assert!(about(models("m"), &good(), None), "the request's model name is used");
    assert!(!about(models("m"), &good(), Some("mm")));
    assert!(about(routes(&[Route::Chat]), &good(), None) && !about(routes(&[Route::Messages]), &good(), None));
    assert!(
        !about(Scope::default(), &on(Route::Embeddings), None) && !about(Scope::default(), &on(Route::Other), None)
    );
    assert!(about(routes(&[Route::Embeddings]), &on(Route::Embeddings), None));
    assert!(about(tenants.clone(), &of(Some("a")), None));
    assert!(!about(tenants.clone(), &of(Some("b")), None) && !about(tenants, &of(None), None));
}
