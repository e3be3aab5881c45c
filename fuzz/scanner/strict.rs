//! The contents of a JSON text according to `serde_json`: the known places in order.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::tree::{DEPTH, Finds, Found, LONGEST, Node};
use tokometer_decode::scan::{Place, Shape};

/// The expected findings in this text; `None` if it is not JSON (or has a key that is not Unicode).
pub fn finds(text: &[u8]) -> Option<Finds> {
    let mut finds = Finds::default();
    let value: &RawValue = serde_json::from_slice(text).ok()?;
    walk(value, Node::Tree, 0, &mut finds).ok()?;
    Some(finds)
}

fn walk(value: &RawValue, node: Node, depth: usize, finds: &mut Finds) -> serde_json::Result<()> {
    let text = value.get();
    let first = text.bytes().next().unwrap_or_default();
    finds.found.push(Found::Begin(node, first));
    match (node.shape(), first) {
        (Shape::Object(_) | Shape::OneOrMany(..), b'{') if depth < DEPTH => {
            serde_json::Deserializer::from_str(text).deserialize_map(Members { depth, finds })?;
        }
        (Shape::Array(element) | Shape::OneOrMany(_, element), b'[') if depth < DEPTH => {
            for value in serde_json::from_str::<Vec<&RawValue>>(text)? {
                walk(value, element, depth + 1, finds)?;
            }
        }
        (Shape::Text, b'"') => finds.found.push(Found::Text(node, text == "\"\"")),
        (Shape::Word | Shape::Number, b'"') if finds.want(node) => {
            finds.found.push(Found::Word(node, serde_json::from_str(text).ok()));
        }
        (Shape::Number, b'-' | b'0'..=b'9') if text.len() <= LONGEST => {
            finds.found.push(Found::Number(node, text.into()));
        }
        _ => {}
    }
    Ok(())
}

/// The members of a known object.
struct Members<'a> {
    depth: usize,
    finds: &'a mut Finds,
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(node) = map.next_key_seed(Key)? {
            let value: &RawValue = map.next_value()?;
            if let Some(node) = node {
                walk(value, node, self.depth + 1, self.finds).map_err(A::Error::custom)?;
            }
        }
        Ok(())
    }
}

/// The place for a key.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Option<Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Option<Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Node::of_key(key.as_bytes()))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Node::of_key(key.as_bytes()))
    }
}
