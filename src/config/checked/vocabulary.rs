//! The vocabularies, and how much text is kept for them.

use std::path::PathBuf;

use crate::config::checked::Problems;
use crate::config::checked::size;
use crate::config::raw::Tokenizer;
use tokometer_observe::observer;
use tokometer_telemetry::tokenizer;

pub(super) fn checked(raw: &Tokenizer, problems: &mut Problems<'_>) -> tokenizer::Settings {
    if raw.path.as_deref() == Some("") {
        problems.error("observe.tokenizer.path", "the path is empty; write that of a tokenizer.json, or null for none");
    }
    for (model, _) in raw.models.iter().filter(|(_, path)| path.is_empty()) {
        let key = format!("observe.tokenizer.models.{model}");
        problems.error(&key, "the path is empty; write that of a tokenizer.json, or leave the model out");
    }
    if raw.answer_bytes > raw.memory_bytes {
        let all = raw.memory_bytes;
        problems.error(
            "observe.tokenizer.answer_bytes",
            format!("one answer may take more than all together ({all}); raise observe.tokenizer.memory_bytes"),
        );
    }
    tokenizer::Settings {
        path: raw.path.as_ref().map(PathBuf::from),
        models: raw.models.iter().map(|(model, path)| (model.clone(), PathBuf::from(path))).collect(),
        queue_answers: size(raw.queue_answers),
    }
}

/// `None`: no vocabulary is set, so that no text is kept.
pub(super) fn text(raw: &Tokenizer) -> Option<observer::Text> {
    let on = raw.path.is_some() || !raw.models.is_empty();
    on.then(|| observer::Text { answer_bytes: size(raw.answer_bytes), memory_bytes: size(raw.memory_bytes) })
}
