//! The values set by the layers (file, environment, flags), as a tree in which every value records its origin.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde_yaml::Spanned;

use crate::config::secret::shown_path;
use tokometer_settings::{Duration, Size};

/// Where a value was set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A default value.
    #[default]
    Default,
    /// A line and column of the file, both from 1.
    File {
        /// The file path, as given by the user.
        file: String,
        /// Line.
        line: u64,
        /// Column, in characters.
        column: u64,
    },
    /// An environment variable.
    Environment(String),
    /// A command-line flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Origin::Environment(name) => write!(f, "environment variable {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// An error in the configuration, or a warning about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the value was set.
    pub origin: Origin,
    /// The key (`relay.keepalive`); empty if the problem concerns no single key.
    pub path: String,
    /// The problem and the valid form.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin != Origin::Default {
            write!(f, "{}: ", self.origin)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", shown_path(&self.path))?;
        }
        f.write_str(&self.message)
    }
}

/// A value and where it was set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// Position of the key (its value may be on a later line).
    pub(crate) origin: Origin,
    pub(crate) node: Node,
}

/// A YAML value. Maps keep their order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

impl Value {
    /// A map of strings that were set together.
    pub(crate) fn names(names: impl IntoIterator<Item = (String, String)>, origin: &Origin) -> Value {
        let node = |text| Node::new(Value::Text(text), origin.clone());
        let entry = |(key, text)| Entry { key, origin: origin.clone(), node: node(text) };
        Value::Map(names.into_iter().map(entry).collect())
    }

    /// The type in words, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Integer(_) => "an integer",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "an object",
        }
    }

    /// The text of a string.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value on one line, as YAML (maps and lists in flow style).
    pub(crate) fn inline(&self) -> String {
        match self {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Integer(value) => value.to_string(),
            Value::Number(value) => format!("{value:?}"),
            Value::Text(text) => quoted(text),
            Value::List(items) => {
                format!("[{}]", items.iter().map(|item| item.value.inline()).collect::<Vec<_>>().join(", "))
            }
            Value::Map(entries) => {
                let entries =
                    entries.iter().map(|entry| format!("{}: {}", quoted(&entry.key), entry.node.value.inline()));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl Node {
    pub(crate) fn new(value: Value, origin: Origin) -> Node {
        Node { value, origin }
    }

    /// An empty map: a layer that sets nothing.
    pub(crate) fn empty() -> Node {
        Node::new(Value::Map(Vec::new()), Origin::Default)
    }

    /// The node at this path (`relay.keepalive`, `listeners[0].listen`), if it was set.
    pub(crate) fn find(&self, path: &str) -> Option<&Node> {
        let Value::Map(entries) = &self.value else { return None };
        // User-defined names may contain dots (`observe.routes./v1.0/llm`).
        if let Some(whole) = entries.iter().find(|entry| entry.key == path) {
            return Some(&whole.node);
        }
        let (step, rest) = path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)));
        let (key, indices) = step.split_once('[').unwrap_or((step, ""));
        let found = &entries.iter().find(|entry| entry.key == key)?.node;
        let mut indices = indices.split_terminator(['[', ']']).filter(|index| !index.is_empty());
        let found = indices.try_fold(found, |node, index| match &node.value {
            Value::List(items) => items.get(index.parse::<usize>().ok()?),
            _ => None,
        })?;
        rest.map_or(Some(found), |rest| found.find(rest))
    }

    /// Where this path was set. For a missing key, the nearest enclosing block in the file.
    pub(crate) fn origin(&self, path: &str) -> Origin {
        if let Some(node) = self.find(path) {
            return node.origin.clone();
        }
        let mut path = path;
        while let Some(cut) = path.rfind(['.', '[']) {
            path = path.split_at(cut).0;
            match self.find(path) {
                Some(Node { origin: origin @ Origin::File { .. }, .. }) => return origin.clone(),
                Some(_) => break,
                None => {}
            }
        }
        Origin::Default
    }

    /// A tree that sets only this dotted path.
    pub(crate) fn at(path: &str, value: Value, origin: &Origin) -> Node {
        path.rsplit('.').fold(Node::new(value, origin.clone()), |node, key| {
            let entry = Entry { key: key.to_owned(), origin: origin.clone(), node };
            Node::new(Value::Map(vec![entry]), origin.clone())
        })
    }

    /// The values without the blocks around them, each with its dotted path. A list is one value.
    pub(crate) fn leaves(self) -> Vec<(String, Node)> {
        let Value::Map(entries) = self.value else { return vec![(String::new(), self)] };
        let below = entries.into_iter().flat_map(|entry| {
            let leaves = entry.node.leaves().into_iter();
            leaves.map(move |(path, node)| {
                (if path.is_empty() { entry.key.clone() } else { format!("{}.{path}", entry.key) }, node)
            })
        });
        below.collect()
    }

    /// Removes the value at this dotted path.
    pub(crate) fn remove(&mut self, path: &str) {
        let Value::Map(entries) = &mut self.value else { return };
        match path.split_once('.') {
            None => entries.retain(|entry| entry.key != path),
            Some((block, rest)) => {
                if let Some(entry) = entries.iter_mut().find(|entry| entry.key == block) {
                    entry.node.remove(rest);
                }
            }
        }
    }

    /// Merges `top` over this tree: maps key by key, all other values as a whole.
    pub(crate) fn overlay(&mut self, top: Node) {
        match (&mut self.value, top.value) {
            (Value::Map(base), Value::Map(entries)) => {
                for entry in entries {
                    match base.iter_mut().find(|below| below.key == entry.key) {
                        Some(below) => below.node.overlay(entry.node),
                        None => base.push(entry),
                    }
                }
            }
            (_, value) => *self = Node::new(value, top.origin),
        }
    }

    /// The tree as JSON, for serde, without nulls: an empty block (`relay:` alone on its line) sets nothing, and null
    /// is the default of every key that allows it.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Integer(value) => (*value).into(),
            Value::Number(value) => (*value).into(),
            Value::Text(text) => text.clone().into(),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => entries
                .iter()
                .filter(|entry| entry.node.value != Value::Null)
                .map(|entry| (entry.key.clone(), entry.node.to_json()))
                .collect(),
        }
    }
}

/// Parses YAML text; `file` is the file name in the origins. An empty document is an empty map.
///
/// # Errors
///
/// The YAML parser's error, with its line and column.
pub(crate) fn read(text: &str, file: &str) -> Result<Node, serde_yaml::Error> {
    // For the parser, text with only comments is not a document.
    let is_empty = text.lines().map(str::trim).all(|line| line.is_empty() || line == "---" || line.starts_with('#'));
    if is_empty {
        return Ok(Node::empty());
    }
    let parsed: Spanned<Parsed> = serde_yaml::from_str(text)?;
    Ok(node(parsed, file))
}

/// A string as YAML: unquoted if unambiguous, otherwise in double quotes.
pub(crate) fn quoted(text: &str) -> String {
    if text.ends_with(char::is_alphabetic) && (text.parse::<Duration>().is_ok() || text.parse::<Size>().is_ok()) {
        return text.to_owned();
    }
    let plain = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:+@".contains(c))
        && !text.ends_with(':')
        && !["null", "true", "false", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// A value as deserialized by the YAML parser.
enum Parsed {
    Scalar(Value),
    List(Vec<Spanned<Parsed>>),
    Map(Vec<(Spanned<String>, Spanned<Parsed>)>),
}

/// The tree of a parsed value; `file` is the file name in the origins.
fn node(parsed: Spanned<Parsed>, file: &str) -> Node {
    let origin =
        |at: serde_yaml::Location| Origin::File { file: file.to_owned(), line: at.line(), column: at.column() };
    let entry = |(key, value): (Spanned<String>, _)| Entry {
        origin: origin(key.referenced),
        key: key.value,
        node: node(value, file),
    };
    let value = match parsed.value {
        Parsed::Scalar(value) => value,
        Parsed::List(items) => Value::List(items.into_iter().map(|item| node(item, file)).collect()),
        Parsed::Map(entries) => Value::Map(entries.into_iter().map(entry).collect()),
    };
    Node::new(value, origin(parsed.referenced))
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Parsed, D::Error> {
        deserializer.deserialize_any(ParsedVisitor)
    }
}

struct ParsedVisitor;

impl<'de> Visitor<'de> for ParsedVisitor {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Parsed, E> {
        self.visit_unit()
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Integer(value)))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Parsed, E> {
        let wide = Value::Number(value as f64);
        Ok(Parsed::Scalar(i64::try_from(value).map_or(wide, Value::Integer)))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Number(value)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Parsed, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Parsed::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Parsed::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_quoted_text_parses_back(key in any::<String>(), text in any::<String>()) {
            let yaml = format!("top:\n  {}: {}\n", quoted(&key), quoted(&text));
            let node = read(&yaml, "t").unwrap();
            let json = node.to_json();
            prop_assert_eq!(&json["top"][&key], &serde_json::Value::from(text), "{}", yaml);
        }

        #[test]
        fn quoted_yaml_keywords_stay_text(text in "(null|true|No|~|0x1|1e3|1_000|0o7|\\.inf|-|[a-z]:|=|<<|[0-9:.]{1,8})") {
            let node = read(&format!("k: {}\n", quoted(&text)), "t").unwrap();
            prop_assert_eq!(&node.to_json()["k"], &serde_json::Value::from(text));
        }

        #[test]
        fn invalid_yaml_is_an_error_without_panic(text in "[a-z:\\[\\]{}&*!|>'\"%@`#,\\-? \t\n]{0,40}") {
            drop(read(&text, "t"));
        }
    }

    #[test]
    fn overlay_merges_maps_and_replaces_lists() {
        let mut base = read("a: {x: 1, y: 2}\nl: [1, 2]\n", "base").unwrap();
        base.overlay(read("a: {y: 3, z: 4}\nl: [5]\n", "top").unwrap());
        assert_eq!(base.to_json(), serde_json::json!({"a": {"x": 1, "y": 3, "z": 4}, "l": [5]}));
        assert!(base.origin("a.x").to_string().starts_with("base:1:8"));
        assert!(base.origin("a.y").to_string().starts_with("top:1:8"));
    }

    #[test]
    fn missing_key_has_the_origin_of_its_enclosing_block() {
        let node = read("listeners:\n  - listen: x\n", "t").unwrap();
        assert_eq!(node.origin("listeners[0].listen").to_string(), "t:2:13");
        assert_eq!(node.origin("listeners[0].upstream").to_string(), "t:2:5");
        assert_eq!(node.origin("relay.x"), Origin::Default);
    }
}
