//! The members of a JSON object with their positions, so that one member can be changed and every other byte kept.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// One member of an object.
#[derive(Debug, PartialEq)]
pub(crate) struct Member<'a> {
    /// The key, without quotes and escapes.
    pub(crate) key: Cow<'a, str>,
    /// Position of the key, with its quotes.
    pub(crate) name: Range<usize>,
    /// The value as written.
    pub(crate) value: &'a str,
    /// Position of the value.
    pub(crate) at: Range<usize>,
}

/// The members of the JSON object `text`, in order, including duplicates. `None` if `text` is not an object or not
/// valid JSON.
pub(crate) fn members(text: &[u8]) -> Option<Vec<Member<'_>>> {
    let Pairs(pairs) = serde_json::from_slice(text).ok()?;
    let start = text.as_ptr() as usize;
    let position = |part: &str| {
        let from = (part.as_ptr() as usize).checked_sub(start)?;
        Some(from..from + part.len())
    };
    pairs
        .into_iter()
        .map(|(name, value)| {
            let (name, value) = (name.get(), value.get());
            let plain = name.get(1..name.len().saturating_sub(1))?;
            let key = match plain.contains('\\') {
                false => Cow::Borrowed(plain),
                true => Cow::Owned(serde_json::from_str(name).ok()?),
            };
            Some(Member { key, name: position(name)?, value, at: position(value)? })
        })
        .collect()
}

/// Keys and values as written.
struct Pairs<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<'a>, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::with_capacity(8);
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_keys_and_values_as_written() {
        let text = br#" { "a" :1.50e+3 , "\u0062":{"a":"}"},"a":[ ] } "#;
        let members = members(text).unwrap();
        let written = |range: &Range<usize>| std::str::from_utf8(&text[range.clone()]).unwrap();
        let all: Vec<_> = members.iter().map(|m| (m.key.as_ref(), written(&m.name), written(&m.at))).collect();
        assert_eq!(all, [("a", r#""a""#, "1.50e+3"), ("b", r#""\u0062""#, r#"{"a":"}"}"#), ("a", r#""a""#, "[ ]")]);
        assert!(members.iter().all(|m| m.value == written(&m.at)));
    }

    #[test]
    fn anything_but_one_valid_object_has_no_members() {
        let cut = br#"{"a":1"#;
        for text in [&b""[..], b"[]", b"null", b"{\"a\":01}", cut, b"{} {}", b"{\"a\":\"\xff\"}", b"{\"\\ud800\":1}"] {
            assert_eq!(members(text), None, "{}", text.escape_ascii());
        }
        assert_eq!(members(b" {}\n"), Some(Vec::new()));
    }
}
