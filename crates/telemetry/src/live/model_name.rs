//! A model name in atomics, written by one thread and read by any. Each name is stored in its request's slot, so that
//! names made up by clients cannot evict other names.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// 88 bytes, so that a slot takes three cache lines. Longer names are truncated.
const WORDS: usize = 11;

/// The bytes of a name.
pub(super) type Bytes = [u8; WORDS * 8];

/// Padded with zeros; all zeros: the request named no model.
#[derive(Debug, Default)]
pub(super) struct ModelName([AtomicU64; WORDS]);

impl ModelName {
    pub(super) fn store(&self, name: Option<&str>) {
        let mut bytes = [0; WORDS * 8];
        let name = name.unwrap_or_default();
        let kept = (0..=bytes.len()).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        for (to, from) in bytes.iter_mut().zip(name.bytes().take(kept)) {
            *to = from;
        }
        for (word, bytes) in self.0.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
    }

    pub(super) fn load(&self) -> Bytes {
        let mut bytes = [0; WORDS * 8];
        for (word, bytes) in self.0.iter().zip(bytes.as_chunks_mut().0) {
            *bytes = word.load(Relaxed).to_le_bytes();
        }
        bytes
    }
}

/// Decodes a name; `None` when the request named no model.
pub(super) fn text(bytes: &Bytes) -> Option<Box<str>> {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let name = bytes.get(..len).filter(|name| !name.is_empty())?;
    Some(String::from_utf8_lossy(name).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_name_replaces_the_previous_one() {
        let name = ModelName::default();
        let longest = "m".repeat(WORDS * 8);
        for stored in [Some(longest.as_str()), Some("qwen"), Some("模型"), None] {
            name.store(stored);
            assert_eq!(text(&name.load()).as_deref(), stored);
        }
        name.store(Some(&format!("{}é", &longest[1..])));
        assert_eq!(text(&name.load()).as_deref(), Some(&longest[1..]), "truncated at a character boundary");
    }
}
