//! What was judged of objectives, as observations.

use std::sync::Arc;

use crate::export::attributes::Value;
use crate::export::table::Id;
use crate::export::table::Key;

/// Objectives and their counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SloStats {
    /// The objectives in force.
    pub objectives: Vec<ObjectiveStats>,
    /// Counts since the start of the process, each pair of an objective and a model once.
    pub judged: Vec<JudgedStats>,
}

/// One objective.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectiveStats {
    /// Its name.
    pub name: Arc<str>,
    /// Share of good exchanges that is aimed at, from 0 to 1.
    pub target: f64,
    /// Its thresholds, each by the name that has its unit.
    pub thresholds: Vec<(&'static str, f64)>,
}

/// What one objective has counted of one model. The words are `reason` and `source`; a count of 0 is told as well.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedStats {
    /// Name of the objective.
    pub objective: Arc<str>,
    /// The model, if one is known.
    pub model: Option<Arc<str>>,
    /// Good exchanges.
    pub good: u64,
    /// Bad exchanges by reason.
    pub bad: Vec<(&'static str, u64)>,
    /// Exchanges left out by reason.
    pub excluded: Vec<(&'static str, u64)>,
    /// Output tokens of good exchanges by source.
    pub good_tokens: Vec<(&'static str, u64)>,
}

/// Tells each value with its attributes.
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
