//! Validates a tree against the configuration's shape: unknown keys, wrong types, words and ranges. Reports every
//! problem, not only the first.

use crate::config::error::Problem;
use crate::config::nearest::nearest;
use crate::config::redact;
use crate::config::shape::{self, Kind, Shape, join};
use crate::config::value::{Node, Value};

/// Appends the problems of `tree` to `problems`.
pub(crate) fn conform(tree: &Node, problems: &mut Vec<Problem>) {
    check("", tree, shape::root(), problems);
}

fn check(path: &str, node: &Node, shape: &Shape, problems: &mut Vec<Problem>) {
    let mut tell = |message: String| {
        problems.push(Problem { origin: node.origin.clone(), path: path.to_owned(), message });
    };
    match (&node.value, &shape.kind) {
        (Value::Null, Kind::Block { .. } | Kind::Names) => {} // `relay:` without content counts as absent.
        (Value::Null, _) if shape.nullable => {}
        (Value::Bool(_), Kind::Bool) => {}
        (Value::Integer(value), Kind::Integer | Kind::Number) => {
            if let Some(message) = outside(*value as f64, shape) {
                tell(message);
            }
        }
        (Value::Number(value), Kind::Number) => {
            if let Some(message) = outside(*value, shape) {
                tell(message);
            }
        }
        (Value::Text(_), Kind::Text) => {}
        (Value::Text(text), Kind::Words(words)) => {
            if !words.iter().any(|(word, _)| word == text) {
                let near = nearest(text, words.iter().map(|(word, _)| word.as_str()));
                let hint = near.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default();
                tell(format!("unknown value `{text}`; write one of {}{hint}", shape.words()));
            }
        }
        (Value::List(items), Kind::List(item)) => {
            for (index, node) in items.iter().enumerate() {
                check(&format!("{path}[{index}]"), node, item, problems);
            }
        }
        (Value::Map(entries), Kind::Names) => {
            for entry in entries {
                if !matches!(entry.node.value, Value::Text(_)) {
                    problems.push(Problem {
                        origin: entry.node.origin.clone(),
                        path: join(path, &entry.key),
                        message: format!("expected a string, found {}; put it in quotes", entry.node.value.kind()),
                    });
                }
            }
        }
        (Value::Map(entries), Kind::Block { keys, required }) => {
            for entry in entries {
                match keys.iter().find(|(key, _)| *key == entry.key) {
                    Some((key, shape)) => check(&join(path, key), &entry.node, shape, problems),
                    None => problems.push(Problem {
                        origin: entry.origin.clone(),
                        path: join(path, &entry.key),
                        message: unknown(path, &entry.key, keys),
                    }),
                }
            }
            for key in required.iter().filter(|key| !entries.iter().any(|entry| entry.key == **key)) {
                let message = format!("missing; add `{key}: ...` ({})", first_sentence(shape, key));
                problems.push(Problem { origin: node.origin.clone(), path: join(path, key), message });
            }
        }
        (value, _) => {
            let shown = match value {
                Value::List(_) | Value::Map(_) => value.kind().to_owned(),
                _ if redact::is_secret(path) => value.kind().to_owned(),
                _ => format!("`{}` ({})", value.inline(), value.kind()),
            };
            let scalar = !matches!(value, Value::List(_) | Value::Map(_) | Value::Null);
            let quotes = scalar && shape.kind == Kind::Text;
            let hint = if quotes { "; put it in quotes" } else { "" };
            tell(format!("{shown} is not valid here; write {}{hint}", shape.words()));
        }
    }
}

fn outside(value: f64, shape: &Shape) -> Option<String> {
    let (low, high) = shape.range?;
    // Not `value < low \|\| value > high`, which accepts NaN.
    (!(low..=high).contains(&value)).then(|| format!("{value} is out of range; write {}", shape.words()))
}

fn unknown(path: &str, key: &str, keys: &[(String, Shape)]) -> String {
    let here = if path.is_empty() { "the top level".to_owned() } else { format!("`{path}`") };
    if let Some(near) = nearest(key, keys.iter().map(|(key, _)| key.as_str())) {
        return format!("unknown key; did you mean `{near}`?");
    }
    let elsewhere: Vec<String> = shape::keys()
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.rsplit('.').next() == Some(key))
        .map(|path| format!("`{path}`"))
        .collect();
    if !elsewhere.is_empty() {
        return format!("unknown key in {here}; did you mean {}?", elsewhere.join(" or "));
    }
    let known: Vec<String> = keys.iter().map(|(key, _)| format!("`{key}`")).collect();
    format!("unknown key; the keys of {here} are {}", known.join(", "))
}

fn first_sentence(shape: &Shape, key: &str) -> String {
    let doc = shape.find(key).map(|shape| shape.doc.as_str()).unwrap_or_default();
    doc.split(['\n', ':']).next().unwrap_or_default().trim().to_owned()
}
