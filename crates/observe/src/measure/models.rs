//! The `model` label under which a request is counted.
//!
//! Labels are names reported by servers; names sent by clients create no series. A request without a response is
//! counted under the model to which the requested name resolved before, so that failures and successes of a model share
//! a label.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::measure::{Labels, Record};

/// Idle time after which a name in a full table may be replaced.
pub const LABEL_IDLE: Duration = Duration::from_secs(600);

/// Label of all models beyond the limit.
const OTHER: &str = "other";

/// Table of model labels. If the table is full, a new name replaces the least recently used name, if that name has been
/// idle for [`LABEL_IDLE`].
#[derive(Debug)]
pub struct Models {
    most: usize,
    names: RwLock<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// Labels by server-reported name.
    served: HashMap<Box<str>, Served>,
    /// Labels by requested name.
    requested: HashMap<Box<str>, Arc<str>>,
    /// Names that are never replaced.
    fixed: HashSet<Box<str>>,
    /// Start of the times in `used`: the first use of the table.
    epoch: Option<Instant>,
}

#[derive(Debug)]
struct Served {
    label: Arc<str>,
    /// Time of the last use, in milliseconds since the epoch.
    used: AtomicU64,
}

impl Models {
    /// Creates a table of at most `most` names. The names in `known` are never removed.
    pub fn new(most: usize, known: &[String]) -> Models {
        let mut names = Names::default();
        for name in known {
            names.serve(name, 0, most, &mut |_| ());
            names.fixed.insert(name.as_str().into());
        }
        Models { most, names: RwLock::new(names) }
    }

    /// Returns the label of this request's model, or `None` if no response has confirmed a model yet. A new name is
    /// added only if the record confirms the model. `replaced` is called with each removed label: the caller must
    /// remove the label's counters.
    pub fn of(&self, record: &Record, mut replaced: impl FnMut(&str)) -> Option<Arc<str>> {
        let labels = &record.labels;
        let requested = labels.request_model.as_deref();
        let Some(reported) = labels.response_model.as_deref().filter(|name| !name.trim().is_empty()) else {
            return self.led_to(labels);
        };
        let now = record.started + record.ended;
        let (known, is_new) = {
            let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
            let is_new =
                requested.filter(|requested| *requested != reported && !names.requested.contains_key(*requested));
            (names.served.get(reported).map(|served| served.touch(names.since(now))), is_new)
        };
        let label = match known {
            Some(label) => label,
            None if record.proves_model() => {
                let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
                names.epoch.get_or_insert(now);
                let now = names.since(now);
                names.serve(reported, now, self.most, &mut replaced)
            }
            None => return self.led_to(labels),
        };
        if let Some(requested) = is_new.filter(|_| *label != *OTHER) {
            let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
            // Clients choose these names, so their number is limited. A new name replaces an arbitrary one.
            if names.requested.len() >= self.most.saturating_mul(4)
                && let Some(any) = names.requested.keys().next().cloned()
            {
                names.requested.remove(&any);
            }
            names.requested.entry(requested.into()).or_insert_with(|| Arc::clone(&label));
        }
        Some(label)
    }

    /// Returns the label of a request whose response confirms no model. This is the model with the requested name, the
    /// model to which the name resolved earlier, or the only known model.
    pub fn led_to(&self, labels: &Labels) -> Option<Arc<str>> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let by_name = labels.request_model.as_deref().and_then(|requested| {
            names.served.get(requested).map(|served| &served.label).or_else(|| names.requested.get(requested))
        });
        let only = || names.served.values().next().filter(|_| names.served.len() == 1).map(|served| &served.label);
        by_name.or_else(only).cloned()
    }

    /// All labels.
    pub fn labels(&self) -> Vec<Arc<str>> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let mut labels: Vec<Arc<str>> = names.served.values().map(|served| Arc::clone(&served.label)).collect();
        labels.sort();
        labels.dedup();
        labels
    }
}

impl Served {
    fn touch(&self, now: u64) -> Arc<str> {
        self.used.fetch_max(now, Ordering::Relaxed);
        Arc::clone(&self.label)
    }
}

impl Names {
    fn since(&self, now: Instant) -> u64 {
        let since = self.epoch.map_or(Duration::ZERO, |epoch| now.saturating_duration_since(epoch));
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the label of this name. Adds the name if there is room.
    fn serve(&mut self, reported: &str, now: u64, most: usize, replaced: &mut dyn FnMut(&str)) -> Arc<str> {
        if let Some(served) = self.served.get(reported) {
            return served.touch(now);
        }
        if self.served.len() >= most && !self.make_room(now, replaced) {
            return OTHER.into();
        }
        let label = readable(reported);
        // Names with the same readable form share one label.
        let same = self.served.values().map(|served| &served.label).find(|known| ***known == *label).cloned();
        let label = same.unwrap_or_else(|| label.into());
        self.served.insert(reported.into(), Served { label: Arc::clone(&label), used: AtomicU64::new(now) });
        label
    }

    /// True if a name was evicted.
    fn make_room(&mut self, now: u64, replaced: &mut dyn FnMut(&str)) -> bool {
        let used = |served: &Served| served.used.load(Ordering::Relaxed);
        let free = self.served.iter().filter(|(name, _)| !self.fixed.contains(*name));
        let Some((name, served)) = free.min_by_key(|(_, served)| used(served)) else { return false };
        if u128::from(now.saturating_sub(used(served))) < LABEL_IDLE.as_millis() {
            return false;
        }
        let (name, label) = (name.clone(), Arc::clone(&served.label));
        self.served.remove(&name);
        // If another name has the same label, the label stays in use.
        if !self.served.values().any(|served| served.label == label) {
            self.requested.retain(|_, resolved| *resolved != label);
            replaced(&label);
        }
        true
    }
}

/// Replaces characters that are unreadable in a label with `_`.
fn readable(name: &str) -> String {
    let plain = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    name.trim().chars().map(|c| if plain(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Outcome;
    use tokometer_decode::Route;

    /// A successful request that started at `start` and ended `at` seconds later.
    fn record(start: Instant, at: u64, requested: Option<&str>, reported: Option<&str>) -> Record {
        let labels = Labels {
            route: Route::Chat,
            request_model: requested.map(Into::into),
            response_model: reported.map(Into::into),
            ..Labels::default()
        };
        let record = Record::new(labels, start, Outcome::Ok, Duration::from_secs(at));
        Record { status: Some(200), ..record }
    }

    fn label(models: &Models, requested: Option<&str>, reported: Option<&str>) -> Option<String> {
        models.of(&record(Instant::now(), 0, requested, reported), |_| ()).map(|label| label.to_string())
    }

    #[test]
    fn model_names_in_error_responses_are_not_added() {
        let models = Models::new(1, &[]);
        let refused = |name: &str| {
            let echoed = record(Instant::now(), 0, Some(name), Some(name));
            let refused = Record { status: Some(404), outcome: Outcome::Http4xx, ..echoed };
            models.of(&refused, |_| ()).map(|label| label.to_string())
        };
        assert_eq!(refused("junk"), None);
        assert_eq!(label(&models, None, Some("real")).as_deref(), Some("real"));
        assert_eq!(refused("junk").as_deref(), Some("real"), "the only model");
    }

    #[test]
    fn full_table_replaces_idle_names_but_not_fixed_ones() {
        let (models, start) = (Models::new(2, &["fixed".to_owned()]), Instant::now());
        let replaced = std::cell::RefCell::new(Vec::new());
        let at = |seconds, name| {
            let label = models.of(&record(start, seconds, Some("alias"), Some(name)), |gone| {
                replaced.borrow_mut().push(gone.to_owned());
            });
            label.map(|label| label.to_string())
        };
        assert_eq!(at(0, "a").as_deref(), Some("a"));
        assert_eq!(at(300, "a").as_deref(), Some("a"));
        assert_eq!(at(899, "b").as_deref(), Some("other"));
        assert_eq!(at(900, "b").as_deref(), Some("b"));
        assert_eq!(*replaced.borrow(), ["a"]);
        assert_eq!(models.labels().iter().map(|label| &**label).collect::<Vec<_>>(), ["b", "fixed"]);
        assert_eq!(at(901, "a").as_deref(), Some("other"));
    }

    #[test]
    fn model_names_sent_by_clients_are_not_added() {
        let models = Models::new(8, &[]);
        assert_eq!(label(&models, Some("made-up"), None), None);
        assert_eq!(label(&models, Some("made-up"), Some(" ")), None);
        assert!(models.labels().is_empty());
    }

    #[test]
    fn unanswered_request_uses_previously_resolved_model() {
        let models = Models::new(8, &[]);
        assert_eq!(label(&models, Some("alias"), Some("llama")).as_deref(), Some("llama"));
        assert_eq!(label(&models, Some("unseen"), None).as_deref(), Some("llama"), "only one model is known");
        assert_eq!(label(&models, Some("qwen"), Some("qwen")).as_deref(), Some("qwen"));
        assert_eq!(label(&models, Some("alias"), None).as_deref(), Some("llama"));
        assert_eq!(label(&models, Some("qwen"), None).as_deref(), Some("qwen"));
        assert_eq!(label(&models, Some("unseen"), None), None, "two models are possible");
        assert_eq!(label(&models, None, None), None);
    }

    #[test]
    fn names_over_limit_are_other_and_same_readable_names_merge() {
        let models = Models::new(2, &["a".to_owned()]);
        assert_eq!(label(&models, None, Some("b\u{0}")).as_deref(), Some("b_"));
        assert_eq!(label(&models, None, Some("c")).as_deref(), Some("other"));
        assert_eq!(label(&models, None, Some("a")).as_deref(), Some("a"));
        let models = Models::new(8, &[]);
        assert_eq!(label(&models, None, Some("b\u{0}")), label(&models, None, Some("b\u{1}")));
        assert_eq!(models.labels().len(), 1);
    }
}
