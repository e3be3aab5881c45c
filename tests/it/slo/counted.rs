//! Each verdict is counted once, and every counter is exported as zero from the start.

use std::sync::Arc;

use tokometer_observe::measure::{CountSource, Labels, Outcome, Record};
use tokometer_telemetry::slo::{Evaluated, Evaluator, Exclusion, Goal, Reason, Settings};

use super::{good, ms, only};
use crate::export::records;

fn of<'a>(evaluated: &'a [Evaluated], objective: &str, model: Option<&str>) -> &'a Evaluated {
    let found = evaluated.iter().find(|one| one.objective == objective && one.model.as_deref() == model);
    found.unwrap_or_else(|| panic!("{objective} of {model:?} in {evaluated:?}"))
}

#[test]
fn every_objective_starts_at_zero() {
    let evaluated = Evaluator::new(Settings::default()).evaluated();
    let names: Vec<&str> = evaluated.iter().map(|one| one.objective.as_str()).collect();
    assert_eq!(names, ["availability", "decode_rate", "goodput", "stall", "ttft"]);
    for one in &evaluated {
        assert_eq!((one.model.clone(), one.counts.good, one.counts.all_bad()), (None, 0, 0), "{one:?}");
        assert!(!one.counts.bad.is_empty() && !one.counts.excluded.is_empty(), "{one:?}");
    }
    assert_eq!(of(&evaluated, "goodput", None).counts.bad.len(), Reason::ALL.len());
    assert_eq!(of(&evaluated, "goodput", None).counts.good_tokens.len(), CountSource::ALL.len());
    assert!(of(&evaluated, "ttft", None).counts.good_tokens.is_empty());
    let known = Settings { models: vec!["a".to_owned(), "b".to_owned()], ..Settings::default() };
    let evaluated = Evaluator::new(known).evaluated();
    assert_eq!(evaluated.len(), 10);
    assert_eq!(of(&evaluated, "ttft", Some("b")).counts.good, 0);
    let mut named = only(Goal::Availability);
    named.objectives[0].scope.models = vec!["x".to_owned(), "y*".to_owned()];
    let evaluated = Evaluator::new(named).evaluated();
    assert_eq!(evaluated.len(), 1, "a pattern is not a model name: {evaluated:?}");
    assert_eq!(of(&evaluated, "availability", Some("x")).counts.good, 0);
}

#[test]
fn verdicts_and_good_tokens_are_counted_once() {
    let evaluate = Evaluator::new(Settings::default());
    evaluate.evaluate(&good());
    evaluate.evaluate(&records::busy("m"));
    evaluate.evaluate(&records::busy("m").with(|r| {
        r.outcome = Outcome::Http4xx;
        r.response.status = Some(404);
    }));
    let evaluated = evaluate.evaluated();
    let available = &of(&evaluated, "availability", Some("m")).counts;
    assert_eq!((available.good, available.all_bad()), (1, 1));
    assert_eq!(available.bad[&Reason::RejectedBusy], 1);
    assert_eq!(available.excluded[&Exclusion::ClientError], 1);
    let goodput = &of(&evaluated, "goodput", Some("m")).counts;
    assert_eq!(goodput.good, 1);
    assert_eq!(goodput.good_tokens[&CountSource::Usage], 101);
    let all = |name| {
        let counts = &of(&evaluated, name, Some("m")).counts;
        counts.good + counts.all_bad() + counts.excluded.values().sum::<u64>()
    };
    for name in ["availability", "ttft", "decode_rate", "stall", "goodput"] {
        assert_eq!(all(name), 3, "{name}: each request is in exactly one counter");
    }
}

#[test]
fn other_paths_are_not_evaluated() {
    let evaluate = Evaluator::new(Settings::default());
    evaluate.evaluate(&records::other());
    for one in evaluate.evaluated() {
        assert_eq!(one.counts.good + one.counts.all_bad(), 0, "{one:?}");
        assert!(one.counts.excluded.values().all(|n| *n == 0), "{one:?}");
    }
}

#[test]
fn failure_without_response_counts_for_the_requested_model() {
    let evaluate = Evaluator::new(only(Goal::Availability));
    let asked = |model: &str, reported: Option<&str>, outcome| {
        let labels = Labels {
            request_model: Some(model.into()),
            response_model: reported.map(Into::into),
            ..(*good().labels).clone()
        };
        evaluate.evaluate(&Record { labels: Arc::new(labels), outcome, ..good() });
    };
    asked("small", Some("llama-8b"), Outcome::Ok);
    asked("qwen", Some("qwen"), Outcome::Ok);
    asked("small", None, Outcome::UpstreamRefused);
    for n in 0..1000 {
        asked(&format!("made-up-{n}"), None, Outcome::Http4xx);
    }
    let evaluated = evaluate.evaluated();
    assert_eq!(of(&evaluated, "availability", Some("llama-8b")).counts.all_bad(), 1);
    assert_eq!(of(&evaluated, "availability", Some("qwen")).counts.all_bad(), 0);
    assert_eq!(evaluated.len(), 3, "unknown models share one series without a model: {evaluated:?}");
}

#[test]
fn counts_survive_a_reload_with_the_same_objective() {
    let evaluate = Evaluator::new(only(Goal::Availability));
    evaluate.evaluate(&good());
    let mut stricter = only(Goal::Availability);
    stricter.objectives[0].target = 0.999;
    evaluate.reload(stricter);
    evaluate.evaluate(&good());
    assert_eq!(of(&evaluate.evaluated(), "availability", Some("m")).counts.good, 2);
    evaluate.reload(only(Goal::Stall { longest: super::ms(1) }));
    let evaluated = evaluate.evaluated();
    assert_eq!(
        (evaluated.len(), evaluated[0].objective.as_str(), evaluated[0].counts.good),
        (1, "stall", 0),
        "{evaluated:?}"
    );
    evaluate.reload(Settings::none());
    evaluate.evaluate(&good());
    assert_eq!(evaluate.evaluated(), []);
}

#[test]
fn is_broken_by_counts_nothing() {
    let first = |base| Evaluator::new(only(Goal::FirstToken { base, per_1k_uncached: ms(0) }));
    let strict = first(ms(100));
    assert!(strict.is_broken_by(&good()));
    assert!(!first(ms(300)).is_broken_by(&good()));
    let counts = strict.evaluated().into_iter().map(|evaluated| evaluated.counts);
    assert!(counts.into_iter().all(|counts| counts.good == 0 && counts.bad.values().all(|n| *n == 0)));
}
