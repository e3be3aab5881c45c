//! Under which model an exchange is counted.
//!
//! Always a name that a server gave itself: a client's word makes no series. A request that was never answered is counted
//! with the model that its name led to before, so that a model's failures stand beside its successes.

use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use crate::measure::Labels;
use crate::measure::Record;

/// How long a name has to be unused before another one may replace it in a full table.
pub const LABEL_IDLE: Duration = Duration::from_secs(600);

/// The label of every model over the cap.
const OTHER: &str = "other";

/// The models that are known by name, for counters that outlive an exchange. A full table replaces the name that was not used
/// for the longest time, if that is [`LABEL_IDLE`].
#[derive(Debug)]
pub struct Models {
    most: usize,
    names: RwLock<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// As the server wrote them, and the label of each.
    served: HashMap<Box<str>, Served>,
    /// What requests called them.
    asked: HashMap<Box<str>, Arc<str>>,
    /// The names that have a place whether they are used or not.
    fixed: HashSet<Box<str>>,
    /// The moment from which uses are counted: that of the first.
    epoch: Option<Instant>,
}

#[derive(Debug)]
struct Served {
    label: Arc<str>,
    /// When it was used last, milliseconds since the epoch.
    used: AtomicU64,
}

impl Models {
    /// At most so many names; those of `known` have a place from the start.
    pub fn new(most: usize, known: &[String]) -> Models {
        let mut names = Names::default();
        for name in known {
            names.serve(name, 0, most, &mut |_| ());
            names.fixed.insert(name.as_str().into());
        }
        Models { most, names: RwLock::new(names) }
    }

    /// The label of this request's model; `None` when no response has proved one yet. A name that is new takes a place only
    /// if the record proves the model. `replaced` receives a label that loses its place: its counters are to be removed.
    pub fn of(&self, record: &Record, mut replaced: impl FnMut(&str)) -> Option<Arc<str>> {
        let labels = &record.labels;
        let asked = labels.request_model.as_deref();
        let Some(told) = labels.response_model.as_deref().filter(|name| !name.trim().is_empty()) else {
            return self.led_to(labels);
        };
        let now = record.started + record.ended;
        let (known, is_new) = {
            let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
            let is_new = asked.filter(|asked| *asked != told && !names.asked.contains_key(*asked));
            (names.served.get(told).map(|served| served.touch(names.since(now))), is_new)
        };
        let label = match known {
            Some(label) => label,
            None if record.proves_model() => {
                let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
                names.epoch.get_or_insert(now);
                let now = names.since(now);
                names.serve(told, now, self.most, &mut replaced)
            }
            None => return self.led_to(labels),
        };
        if let Some(asked) = is_new.filter(|_| *label != *OTHER) {
            let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
            // Clients choose these: few per model are remembered, any of them until there is a newer one.
            if names.asked.len() >= self.most.saturating_mul(4)
                && let Some(any) = names.asked.keys().next().cloned()
            {
                names.asked.remove(&any);
            }
            names.asked.entry(asked.into()).or_insert_with(|| Arc::clone(&label));
        }
        Some(label)
    }

    /// The model of a request without a response that proves one: the one of this name, the one that this name led to, or the
    /// only one.
    pub fn led_to(&self, labels: &Labels) -> Option<Arc<str>> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let by_name = labels
            .request_model
            .as_deref()
            .and_then(|asked| names.served.get(asked).map(|served| &served.label).or_else(|| names.asked.get(asked)));
        let only = || names.served.values().next().filter(|_| names.served.len() == 1).map(|served| &served.label);
        by_name.or_else(only).cloned()
    }

    /// Every label so far.
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

    /// The label of this name, which gets a place if there is one.
    fn serve(&mut self, told: &str, now: u64, most: usize, replaced: &mut dyn FnMut(&str)) -> Arc<str> {
        if let Some(served) = self.served.get(told) {
            return served.touch(now);
        }
        if self.served.len() >= most && !self.make_room(now, replaced) {
            return OTHER.into();
        }
        let label = readable(told);
        // Two names that read the same are one series.
        let same = self.served.values().map(|served| &served.label).find(|known| ***known == *label).cloned();
        let label = same.unwrap_or_else(|| label.into());
        self.served.insert(told.into(), Served { label: Arc::clone(&label), used: AtomicU64::new(now) });
        label
    }

    /// True when a name has lost its place.
    fn make_room(&mut self, now: u64, replaced: &mut dyn FnMut(&str)) -> bool {
        let used = |served: &Served| served.used.load(Ordering::Relaxed);
        let free = self.served.iter().filter(|(name, _)| !self.fixed.contains(*name));
        let Some((name, served)) = free.min_by_key(|(_, served)| used(served)) else { return false };
        if u128::from(now.saturating_sub(used(served))) < LABEL_IDLE.as_millis() {
            return false;
        }
        let (name, label) = (name.clone(), Arc::clone(&served.label));
        self.served.remove(&name);
        // Another name that reads the same keeps the series.
        if !self.served.values().any(|served| served.label == label) {
            self.asked.retain(|_, led_to| *led_to != label);
            replaced(&label);
        }
        true
    }
}

/// The name with what cannot be read in a label as `_`.
fn readable(name: &str) -> String {
    let plain = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    name.trim().chars().map(|c| if plain(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Outcome;
    use tokometer_decode::Route;

    /// A request that ended well, so many seconds after `start`.
    fn record(start: Instant, at: u64, asked: Option<&str>, told: Option<&str>) -> Record {
        let labels = Labels {
            route: Route::Chat,
            request_model: asked.map(Into::into),
            response_model: told.map(Into::into),
            ..Labels::default()
        };
        let record = Record::new(labels, start, Outcome::Ok, Duration::from_secs(at));
        Record { status: Some(200), ..record }
    }

    fn label(models: &Models, asked: Option<&str>, told: Option<&str>) -> Option<String> {
        models.of(&record(Instant::now(), 0, asked, told), |_| ()).map(|label| label.to_string())
    }

    #[test]
    fn names_in_errors_take_no_place() {
        let models = Models::new(1, &[]);
        let refused = |name: &str| {
            let echoed = record(Instant::now(), 0, Some(name), Some(name));
            let refused = Record { status: Some(404), outcome: Outcome::Http4xx, ..echoed };
            models.of(&refused, |_| ()).map(|label| label.to_string())
        };
        assert_eq!(refused("junk"), None);
        assert_eq!(label(&models, None, Some("real")).as_deref(), Some("real"));
        assert_eq!(refused("junk").as_deref(), Some("real"), "the only one");
    }

    #[test]
    fn a_name_unused_for_ten_minutes_is_replaced_in_a_full_table_and_a_fixed_one_never() {
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
    fn a_clients_word_makes_no_name() {
        let models = Models::new(8, &[]);
        assert_eq!(label(&models, Some("made-up"), None), None);
        assert_eq!(label(&models, Some("made-up"), Some(" ")), None);
        assert!(models.labels().is_empty());
    }

    #[test]
    fn a_request_without_an_answer_is_counted_where_its_name_led_before() {
        let models = Models::new(8, &[]);
        assert_eq!(label(&models, Some("alias"), Some("llama")).as_deref(), Some("llama"));
        assert_eq!(label(&models, Some("unseen"), None).as_deref(), Some("llama"), "there is only one");
        assert_eq!(label(&models, Some("qwen"), Some("qwen")).as_deref(), Some("qwen"));
        assert_eq!(label(&models, Some("alias"), None).as_deref(), Some("llama"));
        assert_eq!(label(&models, Some("qwen"), None).as_deref(), Some("qwen"));
        assert_eq!(label(&models, Some("unseen"), None), None, "it may be either");
        assert_eq!(label(&models, None, None), None);
    }

    #[test]
    fn names_over_the_cap_are_other_and_what_reads_the_same_is_one() {
        let models = Models::new(2, &["a".to_owned()]);
        assert_eq!(label(&models, None, Some("b\u{0}")).as_deref(), Some("b_"));
        assert_eq!(label(&models, None, Some("c")).as_deref(), Some("other"));
        assert_eq!(label(&models, None, Some("a")).as_deref(), Some("a"));
        let models = Models::new(8, &[]);
        assert_eq!(label(&models, None, Some("b\u{0}")), label(&models, None, Some("b\u{1}")));
        assert_eq!(models.labels().len(), 1);
    }
}
