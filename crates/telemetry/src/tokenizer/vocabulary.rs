//! Vocabularies, loaded from files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::tokenizer::Settings;
use tokometer_observe::measure::Labels;

/// Why a vocabulary cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error(
    "observe.tokenizer: cannot read the tokenizer {}: {why}; set the path to the tokenizer.json of the model",
    path.display()
)]
pub struct Error {
    path: PathBuf,
    why: String,
}

/// Splits text into tokens.
pub trait Tokenize: Send + Sync + 'static {
    /// Number of tokens of the text, without added special tokens. `None` if it cannot be tokenized.
    fn tokens(&self, text: &str) -> Option<u64>;
}

/// Loads one `tokenizer.json`.
#[cfg(not(feature = "tokenizer"))]
fn load(path: &Path) -> Result<Arc<dyn Tokenize>, Error> {
    let why = "this build cannot count tokens; use the image, or build with `--features tokenizer`".to_owned();
    Err(Error { path: path.to_owned(), why })
}

/// Loads one `tokenizer.json`.
#[cfg(feature = "tokenizer")]
fn load(path: &Path) -> Result<Arc<dyn Tokenize>, Error> {
    let error = |why: String| Error { path: path.to_owned(), why };
    // The file is read here, so that the error distinguishes a missing file from an invalid one.
    let bytes = std::fs::read(path).map_err(|why| error(why.to_string()))?;
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|why| error(why.to_string()))?;
    // Files of embedding models enable truncation and padding, which would distort a count.
    tokenizer.with_truncation(None).map_err(|why| error(why.to_string()))?;
    tokenizer.with_padding(None);
    // Disable the library's word cache, because no response text may be kept.
    let mut model = tokenizer.get_model().clone();
    model.resize_cache(0);
    tokenizer.with_model(model);
    Ok(Arc::new(Vocabulary(tokenizer)))
}

#[cfg(feature = "tokenizer")]
struct Vocabulary(tokenizers::Tokenizer);

#[cfg(feature = "tokenizer")]
impl Tokenize for Vocabulary {
    fn tokens(&self, text: &str) -> Option<u64> {
        // Drop the error: it may quote the text.
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
    /// Loads each file in the settings once.
    ///
    /// # Errors
    /// A file cannot be read or is not a `tokenizer.json`.
    pub fn read(settings: &Settings) -> Result<Vocabularies, Error> {
        let mut known: BTreeMap<&Path, Arc<dyn Tokenize>> = BTreeMap::new();
        for path in settings.path.iter().chain(settings.models.values()) {
            if !known.contains_key(path.as_path()) {
                known.insert(path, load(path)?);
            }
        }
        let of = |path: &PathBuf| known.get(path.as_path()).cloned();
        Ok(Vocabularies {
            any: settings.path.as_ref().and_then(of),
            models: settings.models.iter().filter_map(|(name, path)| Some((name.clone(), of(path)?))).collect(),
        })
    }

    /// Uses one vocabulary for all models.
    pub fn of_all(any: Arc<dyn Tokenize>) -> Vocabularies {
        Vocabularies { any: Some(any), models: BTreeMap::new() }
    }

    /// True if there are no vocabularies.
    pub fn is_empty(&self) -> bool {
        self.any.is_none() && self.models.is_empty()
    }

    /// Counts the tokens in `text` with the vocabulary for `model`, or with the default vocabulary. `None` if there is
    /// neither, or if the text cannot be tokenized.
    pub fn tokens(&self, model: &str, text: &str) -> Option<u64> {
        self.models.get(model).or(self.any.as_ref())?.tokens(text)
    }

    /// The vocabulary for the requested model, otherwise for the model named in the response, otherwise the default
    /// vocabulary.
    pub(super) fn of(&self, labels: &Labels) -> Option<&Arc<dyn Tokenize>> {
        let named = [&labels.request_model, &labels.response_model].into_iter().flatten();
        named.into_iter().find_map(|name| self.models.get(&**name)).or(self.any.as_ref())
    }
}
