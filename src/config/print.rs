//! The configuration as YAML: the commented default, and what is in effect.

use crate::config::raw::Raw;
use crate::config::redact;
use crate::config::shape;
use crate::config::shape::Kind;
use crate::config::shape::Shape;
use crate::config::value;
use crate::config::value::Entry;
use crate::config::value::Node;
use crate::config::value::Origin;
use crate::config::value::Value;

const WIDTH: usize = 100;

const HEAD: &str = "\
# Configuration of tokometer: every key, with its default. Made by `tokometer config --print-default`.
#
# Nothing here is needed: `tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001` works without a file.
# Keep only the lines that you change. A key ending in _ms, _secs or _bytes takes a plain number of that unit.
# Each key outside `pairs` can also be set by a variable (relay.keepalive_secs: TOKOMETER_RELAY_KEEPALIVE_SECS) or a flag
# (--set relay.keepalive_secs=30); the order is: defaults, this file, OTEL_* variables, TOKOMETER_* variables, flags.
";

/// Every key with its default, its documentation as comments. Parses back to the defaults.
pub fn default_yaml() -> String {
    let mut text = HEAD.to_owned();
    if let Value::Map(entries) = &tree(&Raw::default()).value {
        block("", entries, 0, &mut text, &Comments::Documentation);
    }
    text
}

/// What is in effect, with the place of each value that is not a default, secrets hidden.
pub(crate) fn effective(raw: &Raw, set: &Node) -> String {
    let mut tree = tree(raw);
    redact::tree("", &mut tree);
    let mut text = String::new();
    if let Value::Map(entries) = &tree.value {
        block("", entries, 0, &mut text, &Comments::Origins(Some(set)));
    }
    text
}

/// The tree of a raw configuration, keys in the order of the structs.
pub(crate) fn tree(raw: &Raw) -> Node {
    let text = serde_yaml::to_string(raw).expect("plain structs of scalars, lists and maps are YAML");
    value::read(&text, "").expect("what the YAML writer wrote, the reader reads")
}

/// What stands beside the values.
enum Comments<'a> {
    Documentation,
    /// Where each was set: the node of the same place in what the layers set.
    Origins(Option<&'a Node>),
}

impl<'a> Comments<'a> {
    /// For the value under this key.
    fn of_key(&self, key: &str) -> Comments<'a> {
        match self {
            Comments::Origins(Some(Node { value: Value::Map(entries), .. })) => {
                Comments::Origins(entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node))
            }
            Comments::Origins(_) => Comments::Origins(None),
            Comments::Documentation => Comments::Documentation,
        }
    }

    /// For the item with this index.
    fn of_item(&self, index: usize) -> Comments<'a> {
        match self {
            Comments::Origins(Some(Node { value: Value::List(items), .. })) => Comments::Origins(items.get(index)),
            Comments::Origins(_) => Comments::Origins(None),
            Comments::Documentation => Comments::Documentation,
        }
    }

    fn note(&self) -> String {
        match self {
            Comments::Origins(Some(Node { origin, .. })) if *origin != Origin::Default => format!("  # {origin}"),
            _ => String::new(),
        }
    }
}

fn block(path: &str, entries: &[Entry], depth: usize, text: &mut String, comments: &Comments<'_>) {
    for (index, entry) in entries.iter().enumerate() {
        let path = shape::join(path, &entry.key);
        let shape = shape::root().find(&path);
        if let (Comments::Documentation, Some(shape)) = (comments, shape) {
            if depth == 0 || index > 0 {
                text.push('\n');
            }
            document(shape, depth, text);
        }
        put(text, depth, &value::quoted(&entry.key));
        text.push(':');
        let comments = comments.of_key(&entry.key);
        match &entry.node.value {
            Value::Map(inner) if !inner.is_empty() => {
                text.push('\n');
                block(&path, inner, depth + 1, text, &comments);
            }
            Value::List(items) if items.iter().any(|item| matches!(item.value, Value::Map(_))) => {
                text.push('\n');
                list(&path, items, depth + 1, text, &comments);
            }
            value => {
                // Written by hand: a formatter's error is impossible for a String, and lines must stay lines.
                text.push(' ');
                text.push_str(&value.inline());
                text.push_str(&comments.note());
                text.push('\n');
            }
        }
    }
}

fn list(path: &str, items: &[Node], depth: usize, text: &mut String, comments: &Comments<'_>) {
    for (index, item) in items.iter().enumerate() {
        let Value::Map(entries) = &item.value else { continue };
        let mut inner = String::new();
        block(&format!("{path}[{index}]"), entries, depth + 1, &mut inner, &comments.of_item(index));
        // The dash stands in the indentation of the item's first key.
        let comments_above = inner.split_inclusive('\n').take_while(|line| line.trim_start().starts_with('#'));
        let first_key: usize = comments_above.map(str::len).sum();
        let dash = format!("{}- ", "  ".repeat(depth));
        inner.replace_range(first_key..first_key + dash.len(), &dash);
        text.push_str(&inner);
    }
}

fn document(shape: &Shape, depth: usize, text: &mut String) {
    let mut doc = shape.doc.replace('\n', " ");
    if let Kind::Words(words) = &shape.kind {
        comment(&doc, depth, text);
        for (word, doc) in words {
            comment(&format!("- {word}: {}", doc.replace('\n', " ")), depth, text);
        }
        return;
    }
    if let Some((low, high)) = shape.range {
        doc.push_str(&format!(" From {low} to {high}."));
    }
    comment(&doc, depth, text);
}

fn comment(doc: &str, depth: usize, text: &mut String) {
    let width = WIDTH - 2 * depth;
    let mut line = String::new();
    for word in doc.split_whitespace() {
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            put(text, depth, &format!("# {line}\n"));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        put(text, depth, &format!("# {line}\n"));
    }
}

fn put(text: &mut String, depth: usize, what: &str) {
    text.push_str(&"  ".repeat(depth));
    text.push_str(what);
}
