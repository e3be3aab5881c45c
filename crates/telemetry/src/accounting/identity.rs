//! From what a client says of itself to a label: named, hashed or plain, and never more labels than the cap.

use std::collections::HashMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use ring::digest;
use ring::hmac;

use crate::accounting::TenantForm;
use crate::accounting::Tenants;
use tokometer_observe::measure::LABEL_IDLE;

/// The label of every tenant over the cap, and of those that no server vouched for.
pub(super) const OTHER: &str = "other";

/// Hexadecimal digits of a hash: 48 bits, so that among 100 tenants two meet with a chance of 1 in 50,000,000,000.
const DIGITS: usize = 12;

/// A key that is shorter can be found by trying.
const SHORTEST_KEY: usize = 16;

/// Why the key of the hash cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("tenants.hash_key_file: cannot read {}: {source}; check the path and its permissions", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// There is too little in it.
    #[error(
        "tenants.hash_key_file: {} holds {bytes} bytes, which is too short for a key; write at least 16, such as the output of \
         `openssl rand -hex 32`",
        path.display()
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Bytes in it, white space around them left out.
        bytes: usize,
    },
}

/// Labels that have a place, and when each was used last. Locked by the threads that record alone.
pub(super) type Places = HashMap<Arc<str>, Mutex<Instant>>;

/// Makes labels of tenants. Remembers labels alone, nothing of what clients said.
#[derive(Debug)]
pub(super) struct Identity {
    settings: Tenants,
    key: Option<hmac::Key>,
}

impl Identity {
    pub(super) fn new(settings: &Tenants) -> Result<Identity, Error> {
        let key = settings.hash_key_file.as_deref().map(read).transpose()?;
        Ok(Identity { settings: settings.clone(), key })
    }

    /// The label of a tenant that has a name of its own.
    fn named(&self, said: &str) -> Option<&str> {
        self.settings.names.get(said).map(String::as_str)
    }

    /// Labels that stand from the start.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.settings.names.values().map(String::as_str)
    }

    /// The label of what a client says. `known` are the labels that have a place already; a new one gets a place only if
    /// `admitted`: where the server refused the request, its tenant may be made up. Where all places are taken it replaces the
    /// one that was not used for the longest time, if that is [`LABEL_IDLE`].
    pub(super) fn label(&self, said: &str, admitted: bool, known: &Places, now: Instant) -> Found {
        let found = |label, is_new, folded| Found { label, is_new, folded, replaces: None };
        if let Some(name) = self.named(said) {
            return found(name.into(), false, false);
        }
        let other = found(OTHER.into(), false, true);
        if self.settings.only_named {
            return Found { folded: false, ..other };
        }
        let label = match self.settings.form {
            TenantForm::Hash => self.hash(said),
            TenantForm::Plain => readable(said),
        };
        if let Some((label, used)) = known.get_key_value(label.as_str()) {
            let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
            *used = now.max(*used);
            return found(Arc::clone(label), false, false);
        }
        if admitted && known.len() < self.settings.most {
            return found(label.into(), true, false);
        }
        let used = |used: &Mutex<Instant>| *used.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = known.iter().map(|(label, at)| (used(at), label)).min().filter(|_| admitted);
        match oldest.filter(|(used, _)| now.saturating_duration_since(*used) >= LABEL_IDLE) {
            Some((_, oldest)) => Found { replaces: Some(Arc::clone(oldest)), ..found(label.into(), true, false) },
            None => other,
        }
    }

    fn hash(&self, said: &str) -> String {
        let hash = match &self.key {
            Some(key) => hmac::sign(key, said.as_bytes()).as_ref().to_vec(),
            None => digest::digest(&digest::SHA256, said.as_bytes()).as_ref().to_vec(),
        };
        let mut text: String = hash.iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
        text.truncate(DIGITS);
        text
    }
}

/// The label of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) label: Arc<str>,
    /// It takes one of the places.
    pub(super) is_new: bool,
    /// It stands for others because there was no place.
    pub(super) folded: bool,
    /// The label whose place it takes.
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

/// The text with what cannot be read in a label as `_`.
fn readable(text: &str) -> String {
    let plain = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    text.chars().map(|c| if plain(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn label(settings: Tenants, said: &str) -> String {
        Identity::new(&settings).unwrap().label(said, true, &Places::new(), Instant::now()).label.to_string()
    }

    #[test]
    fn a_hash_is_that_of_the_usual_tools_with_and_without_a_key() {
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
    fn a_key_that_cannot_be_used_is_told_with_its_file_and_mend() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let of = |path: &Path| {
            let settings = Tenants { hash_key_file: Some(path.to_owned()), ..Tenants::default() };
            Identity::new(&settings).unwrap_err().to_string()
        };
        assert!(of(&path).contains("/key: ") && of(&path).contains("check the path"), "{}", of(&path));
        std::fs::write(&path, "  short\n").unwrap();
        assert!(of(&path).contains("holds 5 bytes") && of(&path).contains("openssl rand -hex 32"), "{}", of(&path));
        assert!(!of(&path).contains("short\n"), "a key is never shown");
    }

    #[test]
    fn a_name_stands_for_its_tenant_and_plain_text_is_made_readable() {
        let names = [("acme".to_owned(), "Acme Corp".to_owned())].into();
        let plain = Tenants { form: TenantForm::Plain, names, ..Tenants::default() };
        assert_eq!(label(plain.clone(), "acme"), "Acme Corp");
        assert_eq!(label(plain.clone(), "b\u{0}\u{202e}c\n"), "b__c_");
        assert_eq!(label(Tenants { only_named: true, ..plain.clone() }, "b"), "other");
        assert_eq!(label(Tenants { only_named: true, ..plain }, "acme"), "Acme Corp");
    }

    #[test]
    fn over_the_cap_and_without_a_server_that_vouches_there_is_no_place() {
        let identity = Identity::new(&Tenants { form: TenantForm::Plain, most: 1, ..Tenants::default() }).unwrap();
        let now = Instant::now();
        let after = |said: &str, admitted, known: &[&str], idle| {
            let known = known.iter().map(|label| (Arc::from(*label), Mutex::new(now))).collect();
            let found = identity.label(said, admitted, &known, now + idle);
            (found.label.to_string(), found.is_new, found.folded)
        };
        let found = |said: &str, admitted, known: &[&str]| after(said, admitted, known, Duration::from_secs(599));
        assert_eq!(found("a", true, &[]), ("a".to_owned(), true, false));
        assert_eq!(found("a", false, &["a"]), ("a".to_owned(), false, false));
        assert_eq!(found("b", false, &[]), ("other".to_owned(), false, true));
        assert_eq!(found("b", true, &["a"]), ("other".to_owned(), false, true));
        assert_eq!(after("b", true, &["a"], LABEL_IDLE), ("b".to_owned(), true, false));
        assert_eq!(after("b", false, &["a"], LABEL_IDLE), ("other".to_owned(), false, true));
    }
}
