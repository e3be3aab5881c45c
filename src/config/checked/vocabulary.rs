//! The vocabularies, and the amount of text stored for them.

use std::path::PathBuf;

use crate::config::checked::Problems;
use crate::config::checked::size;
use crate::config::raw::Tokenizer;
use tokometer_observe::observer;
use tokometer_telemetry::tokenizer;

pub(super) fn checked(raw: &Tokenizer, problems: &mut Problems<'_>) -> tokenizer::Settings {
    if raw.path.as_deref() == Some("") {
        problems
            .error("observe.tokenizer.path", "the path is empty; write the path of a tokenizer.json, or null for none");
    }
    for (model, _) in raw.models.iter().filter(|(_, path)| path.is_empty()) {
        let key = format!("observe.tokenizer.models.{model}");
        problems.error(&key, "the path is empty; write the path of a tokenizer.json, or remove the model");
    }
    if raw.answer_bytes > raw.memory_bytes {
        let all = raw.memory_bytes;
        problems.error(
            "observe.tokenizer.answer_bytes",
            format!("is above the maximum for all responses together ({all}); raise observe.tokenizer.memory_bytes"),
        );
    }
    tokenizer::Settings {
        path: raw.path.as_ref().map(PathBuf::from),
        models: raw.models.iter().map(|(model, path)| (model.clone(), PathBuf::from(path))).collect(),
        queue_answers: size(raw.queue_answers),
    }
}

/// `None` if no vocabulary is set: no text is stored then.
pub(super) fn text(raw: &Tokenizer) -> Option<observer::Text> {
    let on = raw.path.is_some() || !raw.models.is_empty();
    on.then(|| observer::Text { answer_bytes: size(raw.answer_bytes), memory_bytes: size(raw.memory_bytes) })
}
