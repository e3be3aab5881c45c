//! Manifest data: JSON values with the order of keys preserved.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, de};
use serde_json::Number;

/// A value of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Value>),
    /// Keys and values, in their original order.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// The value of a key of a map.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Map(entries) => entries.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Like [`Value::get`], mutable.
    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        match self {
            Value::Map(entries) => entries.iter_mut().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Sets the value of a key of a map.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        if let Value::Map(entries) = self {
            match entries.iter_mut().find(|(key, _)| key == name) {
                Some((_, old)) => *old = value,
                None => entries.push((name.to_owned(), value)),
            }
        }
    }

    /// Removes a key of a map.
    pub(super) fn remove(&mut self, name: &str) {
        if let Value::Map(entries) = self {
            entries.retain(|(key, _)| key != name);
        }
    }

    /// The value at a path of map keys.
    pub(super) fn at(&self, names: &[&str]) -> Option<&Value> {
        names.iter().try_fold(self, |value, name| value.get(name))
    }

    /// The text of a key.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The items of the list at a key; empty if there is no list.
    pub(super) fn list(&self, name: &str) -> &[Value] {
        match self.get(name) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    /// The texts in the list at a key; other items are omitted.
    pub(super) fn texts(&self, name: &str) -> Vec<&str> {
        let texts = self.list(name).iter().filter_map(|item| match item {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// The value as an integer, even if it is quoted.
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Value::Number(number) => number.as_i64(),
            Value::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }
}

/// Conversions of scalars.
macro_rules! from {
    ($($type:ty => $variant:path),+ $(,)?) => { $(
        impl From<$type> for Value {
            fn from(value: $type) -> Value {
                $variant(value.into())
            }
        }
    )+ };
}

from! {
    &str => Value::Text,
    String => Value::Text,
    bool => Value::Bool,
    i64 => Value::Number,
    u64 => Value::Number,
    u16 => Value::Number,
}

impl<V: Into<Value>> From<Vec<V>> for Value {
    fn from(items: Vec<V>) -> Value {
        Value::List(items.into_iter().map(Into::into).collect())
    }
}

/// A map with these entries.
pub(super) fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

impl Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Number(number) => number.serialize(serializer),
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(items) => serializer.collect_seq(items),
            Value::Map(entries) => serializer.collect_map(entries.iter().map(|(name, value)| (name, value))),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number).map(Value::Number).ok_or_else(|| E::custom("the number is not finite"))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }
}
