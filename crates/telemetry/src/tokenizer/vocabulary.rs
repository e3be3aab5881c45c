//! Vocabularies, out of their files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use crate::tokenizer::Settings;
use tokometer_observe::measure::Labels;

/// Why a vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "observe.tokenizer: cannot read the tokenizer {}: {why}; set the path of the tokenizer.json that lies beside the model's weights",
    path.display()
)]
pub struct Error {
    path: PathBuf,
    why: String,
}

/// Cuts text into tokens.
pub trait Tokenize: Send + Sync + 'static {
    /// How many tokens the text has, special ones that are not written in it left out. `None`: it cannot be cut.
    fn tokens(&self, text: &str) -> Option<u64>;
}

/// One `tokenizer.json`.
struct Vocabulary(tokenizers::Tokenizer);

impl Vocabulary {
    fn read(path: &Path) -> Result<Vocabulary, Error> {
        let error = |why: String| Error { path: path.to_owned(), why };
        // Read here, so that a missing file is told from one that holds something else.
        let bytes = std::fs::read(path).map_err(|why| error(why.to_string()))?;
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|why| error(why.to_string()))?;
        // Files of embedding models cut and fill up; a count must not.
        tokenizer.with_truncation(None).map_err(|why| error(why.to_string()))?;
        tokenizer.with_padding(None);
        // The library would keep words that it saw, and no text is kept.
        let mut model = tokenizer.get_model().clone();
        model.resize_cache(0);
        tokenizer.with_model(model);
        Ok(Vocabulary(tokenizer))
    }
}

impl Tokenize for Vocabulary {
    fn tokens(&self, text: &str) -> Option<u64> {
        // An error may quote the text: it goes no further.
        let encoding = self.0.encode_fast(text, false).ok()?;
        u64::try_from(encoding.len()).ok()
    }
}

/// The vocabularies of all models.
#[derive(Default)]
pub struct Vocabularies {
    any: Option<Arc<dyn Tokenize>>,
    models: BTreeMap<String, Arc<dyn Tokenize>>,
}

impl fmt::Debug for Vocabularies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let models = self.models.keys().collect::<Vec<_>>();
        f.debug_struct("Vocabularies").field("any", &self.any.is_some()).field("models", &models).finish()
    }
}

impl Vocabularies {
    /// Reads every file of the settings, each once.
    ///
    /// # Errors
    /// When one cannot be read or is no `tokenizer.json`.
    pub fn read(settings: &Settings) -> Result<Vocabularies, Error> {
        let mut known: BTreeMap<&Path, Arc<dyn Tokenize>> = BTreeMap::new();
        for path in settings.path.iter().chain(settings.models.values()) {
            if !known.contains_key(path.as_path()) {
                known.insert(path, Arc::new(Vocabulary::read(path)?));
            }
        }
        let of = |path: &PathBuf| known.get(path.as_path()).cloned();
        Ok(Vocabularies {
            any: settings.path.as_ref().and_then(of),
            models: settings.models.iter().filter_map(|(name, path)| Some((name.clone(), of(path)?))).collect(),
        })
    }

    /// One for every model.
    pub fn of_all(any: Arc<dyn Tokenize>) -> Vocabularies {
        Vocabularies { any: Some(any), models: BTreeMap::new() }
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.any.is_none() && self.models.is_empty()
    }

    /// How many tokens a text of this model has; `None` without a vocabulary for it, or where it cannot be cut.
    pub fn tokens(&self, model: &str, text: &str) -> Option<u64> {
        self.models.get(model).or(self.any.as_ref())?.tokens(text)
    }

    /// That of the model that was asked for, else of the one that answered, else that of all others.
    pub(super) fn of(&self, labels: &Labels) -> Option<&Arc<dyn Tokenize>> {
        let named = [&labels.request_model, &labels.response_model].into_iter().flatten();
        named.into_iter().find_map(|name| self.models.get(&**name)).or(self.any.as_ref())
    }
}
