//! The `model` label under which a request is counted.
//!
//! Labels are names reported by servers; names sent by clients create no series. A request without a response is
//! counted under the model to which the requested name resolved before, so that failures and successes of a model share
//! a label.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::measure::slots::{Placed, Slots};
use crate::measure::{Labels, Record};

/// Label of all models beyond the limit.
const OTHER: &str = "other";

/// Table of model labels. If the table is full, a new name replaces a name with less traffic ([`Slots`]).
#[derive(Debug)]
pub struct Models {
    /// Never locked by the data path.
    names: Mutex<Names>,
}

#[derive(Debug)]
struct Names {
    /// Labels by server-reported name.
    served: HashMap<Box<str>, Arc<str>>,
    served_slots: Slots<Box<str>>,
    /// Labels by requested name, if it differs from the reported name. Clients choose these names.
    requested: HashMap<Box<str>, Arc<str>>,
    requested_slots: Slots<Box<str>>,
    /// The first use of the table.
    epoch: Option<Instant>,
}

impl Models {
    /// Creates a table of at most `most` names. The names in `known` are never removed.
    pub fn new(most: usize, known: &[String]) -> Models {
        let mut names = Names {
            served: HashMap::new(),
            served_slots: Slots::new(most),
            requested: HashMap::new(),
            requested_slots: Slots::new(most.saturating_mul(4)),
            epoch: None,
        };
        for name in known.iter().take(most) {
            names.served_slots.fix(name.as_str().into());
            names.add(name);
        }
        Models { names: Mutex::new(names) }
    }

    /// Returns the label of this request's model, or `None` if no response has confirmed a model yet. A new name is
    /// added only if the record confirms the model. `replaced` is called with each removed label: the caller must
    /// remove the label's counters.
    pub fn of(&self, record: &Record, mut replaced: impl FnMut(&str)) -> Option<Arc<str>> {
        let labels = &record.labels;
        let Some(reported) = labels.response_model.as_deref().filter(|name| !name.trim().is_empty()) else {
            return self.led_to(labels);
        };
        let (mut names, now) = (self.names(), record.started + record.times.ended);
        let epoch = *names.epoch.get_or_insert(now);
        let now = u64::try_from(now.saturating_duration_since(epoch).as_millis()).unwrap_or(u64::MAX);
        let is_admitted = record.proves_model();
        let Some(label) = names.serve(reported, is_admitted, now, &mut replaced) else {
            drop(names);
            return if is_admitted { Some(OTHER.into()) } else { self.led_to(labels) };
        };
        if let Some(requested) = labels.request_model.as_deref().filter(|requested| *requested != reported) {
            names.request(requested, &label, now);
        }
        Some(label)
    }

    /// Returns the label of a request whose response confirms no model. This is the model with the requested name, the
    /// model to which the name resolved earlier, or the only known model.
    pub fn led_to(&self, labels: &Labels) -> Option<Arc<str>> {
        let names = self.names();
        let by_name = labels
            .request_model
            .as_deref()
            .and_then(|requested| names.served.get(requested).or_else(|| names.requested.get(requested)));
        let only = || names.served.values().next().filter(|_| names.served.len() == 1);
        by_name.or_else(only).cloned()
    }

    /// All labels.
    pub fn labels(&self) -> Vec<Arc<str>> {
        let mut labels: Vec<Arc<str>> = self.names().served.values().cloned().collect();
        labels.sort();
        labels.dedup();
        labels
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    /// Returns the label of this name. Adds the name if it is admitted and gets a place.
    fn serve(
        &mut self,
        reported: &str,
        is_admitted: bool,
        now: u64,
        replaced: &mut dyn FnMut(&str),
    ) -> Option<Arc<str>> {
        match self.served_slots.place(&reported.into(), is_admitted, now) {
            Placed::Known => self.served.get(reported).cloned(),
            Placed::Refused => None,
            Placed::Added { replaces } => {
                if let Some(gone) = replaces {
                    self.remove(&gone, replaced);
                }
                Some(self.add(reported))
            }
        }
    }

    fn add(&mut self, name: &str) -> Arc<str> {
        let label = readable(name);
        // Names with the same readable form share one label.
        let label = self.served.values().find(|known| ***known == *label).cloned().unwrap_or_else(|| label.into());
        self.served.insert(name.into(), Arc::clone(&label));
        label
    }

    fn remove(&mut self, name: &str, replaced: &mut dyn FnMut(&str)) {
        let Some(label) = self.served.remove(name) else { return };
        // If another name has the same label, the label stays in use.
        if !self.served.values().any(|known| *known == label) {
            let Names { requested, requested_slots, .. } = self;
            requested.retain(|_, resolved| *resolved != label);
            requested_slots.remove(|name| !requested.contains_key(name));
            replaced(&label);
        }
    }

    /// Notes that this name was requested, and that the server used the model with this label.
    fn request(&mut self, requested: &str, label: &Arc<str>, now: u64) {
        if let Placed::Added { replaces } = self.requested_slots.place(&requested.into(), true, now) {
            if let Some(gone) = replaces {
                self.requested.remove(&gone);
            }
            self.requested.insert(requested.into(), Arc::clone(label));
        }
    }
}

/// Replaces characters that are unreadable in a label with `_`.
fn readable(name: &str) -> String {
    let plain = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    name.trim().chars().map(|c| if plain(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        record.with(|r| r.response.status = Some(200))
    }

    fn label(models: &Models, requested: Option<&str>, reported: Option<&str>) -> Option<String> {
        models.of(&record(Instant::now(), 0, requested, reported), |_| ()).map(|label| label.to_string())
    }

    #[test]
    fn model_names_in_error_responses_are_not_added() {
        let models = Models::new(1, &[]);
        let refused = |name: &str| {
            let echoed = record(Instant::now(), 0, Some(name), Some(name));
            let refused = echoed.with(|r| {
                r.response.status = Some(404);
                r.outcome = Outcome::Http4xx;
            });
            models.of(&refused, |_| ()).map(|label| label.to_string())
        };
        assert_eq!(refused("junk"), None);
        assert_eq!(label(&models, None, Some("real")).as_deref(), Some("real"));
        assert_eq!(refused("junk").as_deref(), Some("real"), "the only model");
    }

    #[test]
    fn full_table_replaces_names_with_less_traffic_but_not_fixed_ones() {
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
        assert_eq!(at(301, "b").as_deref(), Some("other"), "less traffic than `a`");
        (0..14).for_each(|_| assert_eq!(at(302, "b").as_deref(), Some("other")));
        assert_eq!(at(302, "b").as_deref(), Some("b"), "more traffic");
        assert_eq!(*replaced.borrow(), ["a"]);
        assert_eq!(models.labels().iter().map(|label| &**label).collect::<Vec<_>>(), ["b", "fixed"]);
        assert_eq!(at(303, "a").as_deref(), Some("other"));
    }

    #[test]
    fn real_model_gets_a_label_after_a_server_echoed_junk_names() {
        let (models, start) = (Models::new(64, &[]), Instant::now());
        let at = |seconds, name: &str| {
            models.of(&record(start, seconds, Some(name), Some(name)), |_| ()).map(|label| label.to_string())
        };
        (0..200).for_each(|junk| drop(at(junk / 50, &format!("junk-{junk}"))));
        let labels: Vec<_> = (0..60).filter_map(|request| at(10 + request, "real")).collect();
        let other = labels.iter().filter(|label| *label == "other").count();
        assert!(labels.len() == 60 && other < 16, "{other}");
        assert!(models.labels().len() == 64);
    }

    #[test]
    fn junk_requested_names_do_not_push_out_a_name_with_traffic() {
        let (models, start) = (Models::new(1, &["m".to_owned(), "n".to_owned()]), Instant::now());
        let ask = |requested: &str, reported| models.of(&record(start, 1, Some(requested), reported), |_| ());
        (0..10).for_each(|_| drop(ask("alias", Some("m"))));
        (0..1000).for_each(|junk| drop(ask(&format!("junk-{junk}"), Some("m"))));
        assert_eq!(models.names().requested.len(), 4);
        assert_eq!(ask("alias", None).as_deref(), Some("m"));
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
