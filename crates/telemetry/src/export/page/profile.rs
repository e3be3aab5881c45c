//! Which metrics the Prometheus page contains: all of them, or only what the generated rules and dashboards read.

use std::collections::{BTreeMap, HashMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::export::series::snapshot::{Point, Value};
use tokometer_metrics::Attributes;
use tokometer_metrics::table::{Key, Kind, Metric, Scope};

/// The metrics that rules and dashboards read. Generated from both (`tests/generated.sh write`).
const FLEET: &str = include_str!("fleet.txt");

/// The content of the Prometheus page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Every metric with every label.
    #[default]
    Full,
    /// Only the metrics, labels and buckets that the generated rules and dashboards read.
    Fleet,
}

/// What a page contains of one metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Whether a histogram has buckets, or only its sum and count.
    buckets: bool,
    /// Whether counters appear before their first count, as rules need.
    zero: bool,
    /// The attributes of the series; `None` for all of them.
    keys: Option<Vec<Key>>,
}

impl Profile {
    /// What a page contains of this metric; `None` for nothing.
    pub(crate) fn of(self, metric: &Metric) -> Option<Kept> {
        if self == Profile::Full {
            return Some(Kept { buckets: true, zero: true, keys: None });
        }
        let name = metric.prometheus().full();
        let mut words = FLEET.lines().map(str::split_whitespace).find(|words| words.clone().next() == Some(&name))?;
        let has = |word: &str| words.clone().any(|other| other == word);
        let (buckets, zero) = (has("buckets"), has("zero"));
        // The series of different requests can be added up. All others keep their attributes.
        let keys = matches!(metric.scope, Scope::GenAi | Scope::Request).then(|| {
            let words: Vec<&str> = words.by_ref().collect();
            let all = metric.keys().chain(metric.optional.iter().copied());
            all.filter(|key| words.contains(&key.label())).collect()
        });
        Some(Kept { buckets, zero, keys })
    }
}

impl Kept {
    /// The attributes that the page shows; `None` if it shows all of them.
    pub(crate) fn shown(&self, attributes: &Attributes) -> Option<Attributes> {
        self.keys.as_ref().map(|keys| attributes.only(keys))
    }

    /// The series of the page. `removed`: the values of series that no longer exist, by their shown attributes.
    pub(crate) fn reduce(
        &self,
        metric: &Metric,
        points: Vec<Point>,
        removed: &HashMap<Attributes, Value>,
    ) -> Vec<Point> {
        let mut points = points;
        if self.keys.is_some() {
            let mut shown: BTreeMap<Attributes, Value> = BTreeMap::new();
            for Point { attributes, value } in points {
                let attributes = self.shown(&attributes).unwrap_or(attributes);
                match shown.get_mut(&attributes) {
                    Some(sum) => sum.add(&value),
                    None => drop(shown.insert(attributes, value)),
                }
            }
            for (attributes, value) in removed {
                if let Some(sum) = shown.get_mut(attributes) {
                    sum.add(value);
                }
            }
            points = shown.into_iter().map(|(attributes, value)| Point { attributes, value }).collect();
        }
        if !self.zero && metric.kind == Kind::Counter {
            points.retain(|point| !point.value.is_zero());
        }
        if !self.buckets {
            points.iter_mut().for_each(|point| point.value.without_buckets());
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokometer_metrics::table::{Id, TABLE, metric};

    #[test]
    fn every_line_of_the_fleet_profile_names_a_metric_and_its_labels() {
        let mut lines = 0;
        for line in FLEET.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap();
            let metric = TABLE.iter().find(|metric| metric.prometheus().full() == name).expect(name);
            let labels: Vec<&str> = metric.keys().chain(metric.optional.iter().copied()).map(Key::label).collect();
            for word in words.filter(|word| !["buckets", "zero"].contains(word)) {
                assert!(labels.contains(&word), "{line}");
            }
            lines += 1;
        }
        assert!(lines > 50, "{lines}");
    }

    #[test]
    fn fleet_profile_keeps_what_rules_and_dashboards_read() {
        let of = |id| Profile::Fleet.of(metric(id));
        let requests = of(Id::Requests).unwrap();
        assert!(requests.zero && requests.keys.unwrap().contains(&Key::Outcome));
        let decode = of(Id::DecodeRate).unwrap();
        assert!(decode.buckets && !decode.keys.unwrap().contains(&Key::Operation));
        assert!(!of(Id::OwnTimeToHeaders).unwrap().buckets);
        assert_eq!(of(Id::ChunkGap), None);
        assert_eq!(of(Id::SloEvents).unwrap().keys, None);
    }
}
