//! Results of evaluated objectives, as observations.

use std::sync::Arc;

use crate::export::attributes::Value;
use crate::export::table::Id;
use crate::export::table::Key;

/// Objectives and their counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SloStats {
    /// The configured objectives.
    pub objectives: Vec<ObjectiveStats>,
    /// Counts since the process started; each combination of objective and model occurs once.
    pub judged: Vec<JudgedStats>,
}

/// One objective.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectiveStats {
    /// Its name.
    pub name: Arc<str>,
    /// Target share of good requests, from 0 to 1.
    pub target: f64,
    /// Its thresholds, each with the name that includes its unit.
    pub thresholds: Vec<(&'static str, f64)>,
}

/// Counts of one objective for one model. String keys are values of `reason` and `source`; zero counts are included.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedStats {
    /// Name of the objective.
    pub objective: Arc<str>,
    /// The model, if one is known.
    pub model: Option<Arc<str>>,
    /// Good requests.
    pub good: u64,
    /// Bad requests by reason.
    pub bad: Vec<(&'static str, u64)>,
    /// Requests excluded from evaluation, by reason.
    pub excluded: Vec<(&'static str, u64)>,
    /// Output tokens of good requests, by source.
    pub good_tokens: Vec<(&'static str, u64)>,
}

/// Pushes each value with its attributes.
pub(super) fn observe(stats: &SloStats, mut push: impl FnMut(Id, &[(Key, Value)], f64)) {
    for objective in &stats.objectives {
        let slo = (Key::Slo, Value::Text(Arc::clone(&objective.name)));
        push(Id::SloObjective, std::slice::from_ref(&slo), objective.target);
        for (word, value) in &objective.thresholds {
            push(Id::SloThreshold, &[slo.clone(), (Key::Threshold, Value::Word(word))], *value);
        }
    }
    for judged in &stats.judged {
        let mut known = vec![(Key::Slo, Value::Text(Arc::clone(&judged.objective)))];
        known.extend(judged.model.clone().map(|model| (Key::Model, Value::Text(model))));
        let mut tell = |id, more: &[(Key, &'static str)], count: u64| {
            let more = more.iter().map(|(key, word)| (*key, Value::Word(word)));
            let attributes: Vec<(Key, Value)> = known.iter().cloned().chain(more).collect();
            push(id, &attributes, count as f64);
        };
        tell(Id::SloEvents, &[(Key::Verdict, "good")], judged.good);
        for (reason, count) in &judged.bad {
            tell(Id::SloEvents, &[(Key::Verdict, "bad"), (Key::Reason, reason)], *count);
        }
        for (reason, count) in &judged.excluded {
            tell(Id::SloExcluded, &[(Key::Reason, reason)], *count);
        }
        for (source, count) in &judged.good_tokens {
            tell(Id::SloGoodTokens, &[(Key::Source, source)], *count);
        }
    }
}
