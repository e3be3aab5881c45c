//! Maps client-supplied tenant names to labels: configured, hashed or plain, with bounded cardinality.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::{digest, hmac};

use crate::accounting::{TenantForm, Tenants};
use tokometer_observe::measure::{Placed, Slots};

/// The label of tenants above the limit, and of new tenants whose request the server rejected.
pub(super) const OTHER: &str = "other";

/// Hexadecimal digits of a hash: 48 bits, so among 100 tenants the chance of a collision is 1 in 50,000,000,000.
const DIGITS: usize = 12;

/// Minimum key length in bytes. A shorter key can be found by brute force.
const SHORTEST_KEY: usize = 16;

/// Why the hash key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("tenants.hash_key_file: cannot read {}: {source}; check the path and its permissions", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The key is too short.
    #[error(
        "tenants.hash_key_file: {} holds {bytes} bytes, which is too short for a key; write at least 16, such as the output of \
         `openssl rand -hex 32`",
        path.display()
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Length of the key in bytes, without surrounding white space.
        bytes: usize,
    },
}

/// Computes tenant labels. Does not store client-supplied names.
#[derive(Debug)]
pub(super) struct TenantLabels {
    settings: Tenants,
    key: Option<hmac::Key>,
}

impl TenantLabels {
    pub(super) fn new(settings: &Tenants) -> Result<TenantLabels, Error> {
        let key = settings.hash_key_file.as_deref().map(read).transpose()?;
        Ok(TenantLabels { settings: settings.clone(), key })
    }

    /// The configured labels, which exist from the start.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.settings.names.values().map(String::as_str)
    }

    /// The label of a client-supplied name. `known` contains the labels in use. A new label is added only if
    /// `admitted`, because the tenant of a rejected request may be made up.
    pub(super) fn label(&self, name: &str, admitted: bool, known: &mut Slots<Arc<str>>, now: u64) -> TenantLabel {
        let found = |label, folded| TenantLabel { label, folded, replaces: None };
        if let Some(label) = self.settings.names.get(name) {
            return found(label.as_str().into(), false);
        }
        if self.settings.only_named {
            return found(OTHER.into(), false);
        }
        let label: Arc<str> = match self.settings.form {
            TenantForm::Hash => self.hash(name).into(),
            TenantForm::Plain => readable(name).into(),
        };
        known.limit(self.settings.most);
        match known.place(&label, admitted, now) {
            Placed::Known => found(label, false),
            Placed::Added { replaces } => TenantLabel { replaces, ..found(label, false) },
            Placed::Refused => found(OTHER.into(), true),
        }
    }

    /// The label of a name with `label: hash`.
    pub(super) fn hash(&self, name: &str) -> String {
        let hash = match &self.key {
            Some(key) => hmac::sign(key, name.as_bytes()).as_ref().to_vec(),
            None => digest::digest(&digest::SHA256, name.as_bytes()).as_ref().to_vec(),
        };
        let mut text: String = hash.iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
        text.truncate(DIGITS);
        text
    }
}

/// A tenant label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TenantLabel {
    pub(super) label: Arc<str>,
    /// True if the label is [`OTHER`] because a new label could not be added.
    pub(super) folded: bool,
    /// The label that was removed to make room for this one.
    pub(super) replaces: Option<Arc<str>>,
}

fn read(path: &Path) -> Result<hmac::Key, Error> {
    let content = std::fs::read(path).map_err(|source| Error::Unreadable { path: path.to_owned(), source })?;
    let key = content.trim_ascii();
    if key.len() < SHORTEST_KEY {
        return Err(Error::Short { path: path.to_owned(), bytes: key.len() });
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, key))
}

/// Replaces unreadable characters with `_`.
pub(super) fn readable(text: &str) -> String {
    let plain = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    text.chars().map(|c| if plain(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(settings: Tenants, name: &str) -> String {
        TenantLabels::new(&settings).unwrap().label(name, true, &mut Slots::new(0), 0).label.to_string()
    }

    #[test]
    fn hash_matches_sha256sum_and_openssl() {
        // printf acme | sha256sum
        assert_eq!(label(Tenants::default(), "acme"), "822b33ad87c1");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        // printf acme | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
        let keyed = Tenants { hash_key_file: Some(path), ..Tenants::default() };
        assert_eq!(label(keyed, "acme"), "d8ad00265ff0");
    }

    #[test]
    fn key_errors_name_the_file_and_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let of = |path: &Path| {
            let settings = Tenants { hash_key_file: Some(path.to_owned()), ..Tenants::default() };
            TenantLabels::new(&settings).unwrap_err().to_string()
        };
        assert!(of(&path).contains("/key: ") && of(&path).contains("check the path"), "{}", of(&path));
        std::fs::write(&path, "  short\n").unwrap();
        assert!(of(&path).contains("holds 5 bytes") && of(&path).contains("openssl rand -hex 32"), "{}", of(&path));
        assert!(!of(&path).contains("short\n"), "the key must not be shown");
    }

    #[test]
    fn configured_names_are_used_and_plain_names_made_readable() {
        let names = [("acme".to_owned(), "Acme Corp".to_owned())].into();
        let plain = Tenants { form: TenantForm::Plain, names, ..Tenants::default() };
        assert_eq!(label(plain.clone(), "acme"), "Acme Corp");
        assert_eq!(label(plain.clone(), "b\u{0}\u{202e}c\n"), "b__c_");
        assert_eq!(label(Tenants { only_named: true, ..plain.clone() }, "b"), "other");
        assert_eq!(label(Tenants { only_named: true, ..plain }, "acme"), "Acme Corp");
    }

    #[test]
    fn tenants_over_the_limit_or_refused_get_no_label() {
        let identity = TenantLabels::new(&Tenants { form: TenantForm::Plain, most: 1, ..Tenants::default() }).unwrap();
        let mut known = Slots::new(1);
        let mut found = |name: &str, admitted, seconds: u64| {
            let found = identity.label(name, admitted, &mut known, seconds * 1000);
            (found.label.to_string(), found.folded, found.replaces.map(|label| label.to_string()))
        };
        let own = |name: &str| (name.to_owned(), false, None);
        let other = ("other".to_owned(), true, None);
        assert_eq!(found("b", false, 0), other, "rejected");
        for at in [0, 1, 2] {
            assert_eq!(found("a", true, at), own("a"));
        }
        assert_eq!(found("a", false, 3), own("a"));
        assert_eq!(found("b", true, 4), other, "less traffic");
        assert_eq!(found("b", false, 700), other);
        assert_eq!(found("b", true, 700), ("b".to_owned(), false, Some("a".to_owned())));
    }
}
