//! Each verdict is counted once, and every counter is exported as zero from the start.

use std::sync::Arc;

use tokometer_observe::measure::CountSource;
use tokometer_observe::measure::Labels;
use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Record;
use tokometer_telemetry::slo::Exclusion;
use tokometer_telemetry::slo::Goal;
use tokometer_telemetry::slo::Judge;
use tokometer_telemetry::slo::Judged;
use tokometer_telemetry::slo::Reason;
use tokometer_telemetry::slo::Settings;

use super::good;
use super::ms;
use super::only;
use crate::export::records;

fn of<'a>(judged: &'a [Judged], objective: &str, model: Option<&str>) -> &'a Judged {
    let found = judged.iter().find(|one| one.objective == objective && one.model.as_deref() == model);
    found.unwrap_or_else(|| panic!("{objective} of {model:?} in {judged:?}"))
}

#[test]
fn every_objective_starts_at_zero() {
    let judged = Judge::new(Settings::default()).judged();
    let names: Vec<&str> = judged.iter().map(|one| one.objective.as_str()).collect();
    assert_eq!(names, ["availability", "decode_rate", "goodput", "stall", "ttft"]);
    for one in &judged {
        assert_eq!((one.model.clone(), one.counts.good, one.counts.all_bad()), (None, 0, 0), "{one:?}");
        assert!(!one.counts.bad.is_empty() && !one.counts.excluded.is_empty(), "{one:?}");
    }
    assert_eq!(of(&judged, "goodput", None).counts.bad.len(), Reason::ALL.len());
    assert_eq!(of(&judged, "goodput", None).counts.good_tokens.len(), 7);
    assert!(of(&judged, "ttft", None).counts.good_tokens.is_empty());
    let known = Settings { models: vec!["a".to_owned(), "b".to_owned()], ..Settings::default() };
    let judged = Judge::new(known).judged();
    assert_eq!(judged.len(), 10);
    assert_eq!(of(&judged, "ttft", Some("b")).counts.good, 0);
    let mut named = only(Goal::Availability);
    named.objectives[0].scope.models = vec!["x".to_owned(), "y*".to_owned()];
    let judged = Judge::new(named).judged();
    assert_eq!(judged.len(), 1, "a pattern is not a model name: {judged:?}");
    assert_eq!(of(&judged, "availability", Some("x")).counts.good, 0);
}

#[test]
fn verdicts_and_good_tokens_are_counted_once() {
    let judge = Judge::new(Settings::default());
    judge.judge(&good());
    judge.judge(&records::busy("m"));
    judge.judge(&Record { outcome: Outcome::Http4xx, status: Some(404), ..records::busy("m") });
    let judged = judge.judged();
    let available = &of(&judged, "availability", Some("m")).counts;
    assert_eq!((available.good, available.all_bad()), (1, 1));
    assert!(available.bad.contains(&(Reason::RejectedBusy, 1)));
    assert!(available.excluded.contains(&(Exclusion::ClientError, 1)));
    let goodput = &of(&judged, "goodput", Some("m")).counts;
    assert_eq!(goodput.good, 1);
    assert!(goodput.good_tokens.contains(&(CountSource::Usage, 101)));
    let all = |name| {
        let counts = &of(&judged, name, Some("m")).counts;
        counts.good + counts.all_bad() + counts.excluded.iter().map(|(_, n)| n).sum::<u64>()
    };
    for name in ["availability", "ttft", "decode_rate", "stall", "goodput"] {
        assert_eq!(all(name), 3, "{name}: each request is in exactly one counter");
    }
}

#[test]
fn other_paths_are_not_evaluated() {
    let judge = Judge::new(Settings::default());
    judge.judge(&records::other());
    for one in judge.judged() {
        assert_eq!(one.counts.good + one.counts.all_bad(), 0, "{one:?}");
        assert!(one.counts.excluded.iter().all(|(_, n)| *n == 0), "{one:?}");
    }
}

#[test]
fn failure_without_response_counts_for_the_requested_model() {
    let judge = Judge::new(only(Goal::Availability));
    let asked = |model: &str, told: Option<&str>, outcome| {
        let labels = Labels {
            request_model: Some(model.into()),
            response_model: told.map(Into::into),
            ..(*good().labels).clone()
        };
        judge.judge(&Record { labels: Arc::new(labels), outcome, ..good() });
    };
    asked("small", Some("llama-8b"), Outcome::Ok);
    asked("qwen", Some("qwen"), Outcome::Ok);
    asked("small", None, Outcome::UpstreamRefused);
    for n in 0..1000 {
        asked(&format!("made-up-{n}"), None, Outcome::Http4xx);
    }
    let judged = judge.judged();
    assert_eq!(of(&judged, "availability", Some("llama-8b")).counts.all_bad(), 1);
    assert_eq!(of(&judged, "availability", Some("qwen")).counts.all_bad(), 0);
    assert_eq!(judged.len(), 3, "unknown models share one series without a model: {judged:?}");
}

#[test]
fn counts_survive_a_reload_with_the_same_objective() {
    let judge = Judge::new(only(Goal::Availability));
    judge.judge(&good());
    let mut stricter = only(Goal::Availability);
    stricter.objectives[0].target = 0.999;
    judge.reload(stricter);
    judge.judge(&good());
    assert_eq!(of(&judge.judged(), "availability", Some("m")).counts.good, 2);
    judge.reload(only(Goal::Stall { longest: super::ms(1) }));
    let judged = judge.judged();
    assert_eq!((judged.len(), judged[0].objective.as_str(), judged[0].counts.good), (1, "stall", 0), "{judged:?}");
    judge.reload(Settings::none());
    judge.judge(&good());
    assert_eq!(judge.judged(), []);
}

#[test]
fn is_broken_by_counts_nothing() {
    let first = |base| Judge::new(only(Goal::FirstToken { base, per_1k_uncached: ms(0) }));
    let strict = first(ms(100));
    assert!(strict.is_broken_by(&good()));
    assert!(!first(ms(300)).is_broken_by(&good()));
    let counts = strict.judged().into_iter().map(|judged| judged.counts);
    assert!(counts.into_iter().all(|counts| counts.good == 0 && counts.bad.iter().all(|(_, n)| *n == 0)));
}
