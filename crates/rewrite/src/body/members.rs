//! The members of a JSON object with their positions, so that one member can be changed and every other byte kept.
//!
//! The scan needs constant memory, however large and deeply nested the text is: members are passed to a function, keys
//! are compared without being copied, and open brackets are one bit each.

use std::char::{REPLACEMENT_CHARACTER, decode_utf16};
use std::ops::Range;

/// Maximum depth of nested objects and arrays. Python's parser rejects deeper texts too.
const MAX_DEPTH: usize = 1024;

/// One member of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member<'a> {
    /// The key as written, without quotes.
    key: &'a str,
    /// Position of the key, with its quotes.
    pub(crate) name: Range<usize>,
    /// The value as written.
    pub(crate) value: &'a str,
    /// Position of the value.
    pub(crate) at: Range<usize>,
}

impl Member<'_> {
    /// True for this key, which has no escapes.
    pub(crate) fn is(&self, key: &str) -> bool {
        self.key == key || (self.key.contains('\\') && unescaped(self.key).eq(key.chars()))
    }

    /// True if both members have the same key.
    pub(crate) fn same_key(&self, other: &Member<'_>) -> bool {
        self.key == other.key || unescaped(self.key).eq(unescaped(other.key))
    }
}

/// Passes the members of the JSON object `text` to `each`, in order, including duplicates. `None` if `text` is not an
/// object, not valid JSON, or nested too deeply; `each` then may have been called for the valid beginning.
pub(crate) fn members<'a>(text: &'a [u8], mut each: impl FnMut(Member<'a>)) -> Option<()> {
    let text = std::str::from_utf8(text).ok()?;
    let mut scan = Scan { text: text.as_bytes(), at: 0 };
    scan.skip_space();
    scan.expect(b'{')?;
    scan.skip_space();
    if !scan.take(b'}') {
        loop {
            let name = scan.range(Scan::string)?;
            let key = text.get(name.start + 1..name.end - 1)?;
            if key.contains('\\') && unescaped(key).any(|c| c == REPLACEMENT_CHARACTER) {
                return None;
            }
            scan.colon()?;
            let at = scan.range(Scan::value)?;
            each(Member { key, name, value: text.get(at.clone())?, at });
            scan.skip_space();
            if scan.take(b'}') {
                break;
            }
            scan.expect(b',')?;
            scan.skip_space();
        }
    }
    scan.skip_space();
    (scan.at == text.len()).then_some(())
}

/// The characters of a valid string; U+FFFD for an invalid surrogate.
fn unescaped(written: &str) -> impl Iterator<Item = char> + '_ {
    let mut rest = written.chars();
    let units = std::iter::from_fn(move || {
        let c = match rest.next()? {
            '\\' => match rest.next()? {
                'u' => {
                    let digits = rest.as_str().get(..4)?;
                    rest = rest.as_str().get(4..)?.chars();
                    return Some([u16::from_str_radix(digits, 16).ok()?, 0]);
                }
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            },
            c => c,
        };
        let mut units = [0; 2];
        c.encode_utf16(&mut units);
        Some(units)
    });
    // The second unit of a character is never 0.
    let units = units.flat_map(|[first, second]| [Some(first), Some(second).filter(|unit| *unit != 0)]).flatten();
    decode_utf16(units).map(|c| c.unwrap_or(REPLACEMENT_CHARACTER))
}

/// The opening brackets that are not closed yet: one bit each, 1 for an object.
struct Brackets {
    bits: [u64; MAX_DEPTH / 64],
    depth: usize,
}

impl Brackets {
    fn open(&mut self, is_object: bool) -> Option<()> {
        let word = self.bits.get_mut(self.depth / 64)?;
        *word = *word & !(1 << (self.depth % 64)) | u64::from(is_object) << (self.depth % 64);
        self.depth += 1;
        Some(())
    }

    fn close(&mut self) {
        self.depth -= 1;
    }

    /// The innermost bracket: `Some(true)` in an object, `Some(false)` in an array.
    fn innermost(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.bits.get(last / 64)? >> (last % 64) & 1 == 1)
    }
}

/// A position in a JSON text (RFC 8259). Functions return `None` if the text is not valid at the position.
struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn next(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.next() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.take(byte).then_some(())
    }

    fn skip_space(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// The range that `skip` passes over.
    fn range(&mut self, skip: impl FnOnce(&mut Self) -> Option<()>) -> Option<Range<usize>> {
        let start = self.at;
        skip(self)?;
        Some(start..self.at)
    }

    fn colon(&mut self) -> Option<()> {
        self.skip_space();
        self.expect(b':')?;
        self.skip_space();
        Some(())
    }

    /// Skips a value with everything in it.
    fn value(&mut self) -> Option<()> {
        let mut open = Brackets { bits: [0; MAX_DEPTH / 64], depth: 0 };
        loop {
            match self.next()? {
                bracket @ (b'{' | b'[') => {
                    let is_object = bracket == b'{';
                    self.at += 1;
                    self.skip_space();
                    if !self.take(if is_object { b'}' } else { b']' }) {
                        open.open(is_object)?;
                        if is_object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                b'"' => self.string()?,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                _ => self.number()?,
            }
            // The value is complete: so are the brackets that close after it.
            loop {
                let Some(in_object) = open.innermost() else { return Some(()) };
                self.skip_space();
                if self.take(b',') {
                    self.skip_space();
                    if in_object {
                        self.key()?;
                    }
                    break;
                }
                self.expect(if in_object { b'}' } else { b']' })?;
                open.close();
            }
        }
    }

    /// Skips a key and its colon.
    fn key(&mut self) -> Option<()> {
        self.string()?;
        self.colon()
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    fn string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        loop {
            let rest = self.text.get(self.at..)?;
            self.at += rest.iter().position(|byte| *byte < b' ' || matches!(byte, b'"' | b'\\'))?;
            if self.take(b'"') {
                return Some(());
            }
            // A control character is not valid.
            self.expect(b'\\')?;
            let escape = self.next()?;
            self.at += 1;
            match escape {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                b'u' => {
                    let digits = self.text.get(self.at..self.at + 4)?;
                    digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                    self.at += 4;
                }
                _ => return None,
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.next().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// All members; `None` if the text is not an object.
    fn all(text: &[u8]) -> Option<Vec<Member<'_>>> {
        let mut all = Vec::new();
        members(text, |member| all.push(member)).map(|()| all)
    }

    #[test]
    fn positions_are_those_of_keys_and_values_as_written() {
        let text = br#" { "a" :1.50e+3 , "\u0062":{"a":"}"},"a":[ ] } "#;
        let members = all(text).unwrap();
        let written = |range: &Range<usize>| std::str::from_utf8(&text[range.clone()]).unwrap();
        let ranges: Vec<_> = members.iter().map(|m| (written(&m.name), written(&m.at))).collect();
        assert_eq!(ranges, [(r#""a""#, "1.50e+3"), (r#""\u0062""#, r#"{"a":"}"}"#), (r#""a""#, "[ ]")]);
        assert!(members.iter().all(|m| m.value == written(&m.at)));
        assert!(members[0].is("a") && members[1].is("b") && members[2].is("a"));
        assert!(members[0].same_key(&members[2]) && !members[0].same_key(&members[1]));
    }

    #[test]
    fn anything_but_one_valid_object_has_no_members() {
        let cut = br#"{"a":1"#;
        for text in [&b""[..], b"[]", b"null", b"{\"a\":01}", cut, b"{} {}", b"{\"a\":\"\xff\"}", b"{\"\\ud800\":1}"] {
            assert_eq!(all(text), None, "{}", text.escape_ascii());
        }
        for text in ["{\"a\":[}]}", "{\"a\":[1 2]}", "{\"a\":{\"b\"}}", "{\"a\":\"\n\"}", "{\"a\":1,}", "{\"a\":-}"] {
            assert_eq!(all(text.as_bytes()), None, "{text}");
        }
        assert_eq!(all(b" {}\n"), Some(Vec::new()));
    }

    #[test]
    fn deep_nesting_is_limited() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(all(nested(MAX_DEPTH).as_bytes()).unwrap().len(), 1);
        assert_eq!(all(nested(MAX_DEPTH + 2).as_bytes()), None);
        assert_eq!(all("{\"a\":".repeat(100_000).as_bytes()), None);
    }

    /// A valid JSON text.
    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..4).prop_map(Value::from_iter),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// One changed byte makes a text valid or invalid for both parsers.
        #[test]
        fn scan_accepts_what_serde_json_accepts(
            value in json(), at in any::<prop::sample::Index>(), byte in prop::sample::select(&b"{}[]\",:\\ u0-1e.tn\n\x1f\xff"[..]),
        ) {
            let mut text = format!("{{\"a\": {value:#}}}").into_bytes();
            prop_assert_eq!(all(&text).unwrap().len(), 1);
            let at = at.index(text.len());
            text[at] = byte;
            let is_object = std::str::from_utf8(&text).is_ok_and(|text| {
                text.trim_start().starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
            });
            let scanned = all(&text);
            if scanned.is_some() != is_object {
                // The scan rejects invalid surrogates in keys.
                prop_assert!(scanned.is_none() && text.windows(2).any(|pair| pair == b"\\u"), "{}", text.escape_ascii());
            }
        }

        #[test]
        fn keys_are_compared_without_their_escapes(key in any::<String>()) {
            let escaped: String = key.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            let text = format!("{{\"{escaped}\":1,{}:2}}", Value::from(key.as_str()));
            let found = all(text.as_bytes());
            // U+FFFD is indistinguishable from an invalid surrogate.
            if !key.contains(REPLACEMENT_CHARACTER) {
                let found = found.unwrap();
                prop_assert!(found[0].is(&key) && found[1].is(&key) && found[0].same_key(&found[1]));
                prop_assert!(!found[0].is("other key"));
            }
        }
    }
}
