//! Under which model an exchange is counted.
//!
//! Always a name that a server gave itself: a client's word makes no series. A request that was never answered is counted
//! with the model that its name led to before, so that a model's failures stand beside its successes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;

use crate::measure::Labels;

/// The label of every model over the cap.
const OTHER: &str = "other";

/// The models that are known by name, for counters that outlive an exchange.
#[derive(Debug)]
pub struct Models {
    most: usize,
    names: RwLock<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// As the server wrote them, and the label of each.
    served: HashMap<Box<str>, Arc<str>>,
    /// What requests called them.
    asked: HashMap<Box<str>, Arc<str>>,
}

impl Models {
    /// At most so many names; those of `known` have a place from the start.
    pub fn new(most: usize, known: &[String]) -> Models {
        let models = Models { most, names: RwLock::default() };
        for name in known {
            models.serve(name);
        }
        models
    }

    /// The label of this exchange's model; `None` when no server has told of one yet.
    pub fn of(&self, labels: &Labels) -> Option<Arc<str>> {
        let asked = labels.request_model.as_deref();
        let Some(told) = labels.response_model.as_deref().filter(|name| !name.trim().is_empty()) else {
            return self.led_to(asked);
        };
        let (label, is_new) = {
            let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
            // Clients choose these: few per model are remembered.
            let room = names.asked.len() < self.most.saturating_mul(4);
            let is_new = asked.filter(|asked| room && *asked != told && !names.asked.contains_key(*asked));
            let full = names.served.len() >= self.most;
            (names.served.get(told).cloned().or_else(|| full.then(|| OTHER.into())), is_new)
        };
        let label = label.unwrap_or_else(|| self.serve(told));
        if let Some(asked) = is_new {
            let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
            names.asked.entry(asked.into()).or_insert_with(|| Arc::clone(&label));
        }
        Some(label)
    }

    /// The model of a request without an answer: the one of this name, the one that this name led to, or the only one.
    fn led_to(&self, asked: Option<&str>) -> Option<Arc<str>> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let by_name = asked.and_then(|asked| names.served.get(asked).or_else(|| names.asked.get(asked)));
        let only = || names.served.values().next().filter(|_| names.served.len() == 1);
        by_name.or_else(only).cloned()
    }

    fn serve(&self, told: &str) -> Arc<str> {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = names.served.get(told) {
            return Arc::clone(label);
        }
        if names.served.len() >= self.most {
            return OTHER.into();
        }
        let label = readable(told);
        // Two names that read the same are one series.
        let same = names.served.values().find(|known| ***known == *label).cloned();
        let label = same.unwrap_or_else(|| label.into());
        names.served.insert(told.into(), Arc::clone(&label));
        label
    }

    /// Every label so far.
    pub fn labels(&self) -> Vec<Arc<str>> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let mut labels: Vec<Arc<str>> = names.served.values().cloned().collect();
        labels.sort();
        labels.dedup();
        labels
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

    fn labels(asked: Option<&str>, told: Option<&str>) -> Labels {
        Labels { request_model: asked.map(Into::into), response_model: told.map(Into::into), ..Labels::default() }
    }

    fn label(models: &Models, asked: Option<&str>, told: Option<&str>) -> Option<String> {
        models.of(&labels(asked, told)).map(|label| label.to_string())
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
