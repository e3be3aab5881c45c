//! Validates a tree against the configuration's shape: unknown keys, wrong types, words and ranges. Reports every
//! problem, not only the first. Messages about unknown words suggest the nearest known word.

use crate::config::secret::is_secret;
use crate::config::shape::{self, Kind, Shape, join};
use crate::config::tree::{Node, Origin, Problem, Value};

/// Appends the problems of `tree` to `problems`.
pub(crate) fn conform(tree: &Node, problems: &mut Vec<Problem>) {
    check("", tree, shape::root(), problems);
}

fn check(path: &str, node: &Node, shape: &Shape, problems: &mut Vec<Problem>) {
    let mut report = |message: String| {
        problems.push(Problem { origin: node.origin.clone(), path: path.to_owned(), message });
    };
    let number = match (&node.value, &shape.kind) {
        (Value::Integer(value), Kind::Integer | Kind::Number) => Some(Ok(*value as f64)),
        (Value::Number(value), Kind::Number) => Some(Ok(*value)),
        (Value::Integer(0), Kind::Duration | Kind::Size) => Some(Ok(0.0)),
        (Value::Text(text), Kind::Duration | Kind::Size) => Some(shape.number(text)),
        _ => None,
    };
    match (&node.value, &shape.kind) {
        (Value::Null, Kind::Block { .. } | Kind::Names(_)) => {} // `relay:` without content counts as absent.
        (Value::Null, _) if shape.nullable => {}
        (Value::Bool(_), Kind::Bool) | (Value::Text(_), Kind::Text) => {}
        _ if number.is_some() => {
            if let Some(Err(message)) = number.map(|number| within(number?, shape)) {
                report(message);
            }
        }
        (Value::Integer(_) | Value::Number(_), Kind::Duration | Kind::Size) => {
            let units = if shape.kind == Kind::Size { "64KiB, 8MiB or 1GiB" } else { "500ms, 10s, 2m or 1h" };
            report(format!("`{}` has no unit; write {}, such as {units}", node.value.inline(), shape.expected()));
        }
        (Value::Text(text), Kind::Words(words)) => {
            if !words.iter().any(|(word, _)| word == text) {
                let near = nearest(text, words.iter().map(|(word, _)| word.as_str()));
                let hint = near.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default();
                report(format!("unknown value `{text}`; write one of {}{hint}", shape.words()));
            }
        }
        (Value::List(items), Kind::List(item)) => {
            for (index, node) in items.iter().enumerate() {
                check(&format!("{path}[{index}]"), node, item, problems);
            }
        }
        (Value::Map(entries), Kind::Names(text)) => {
            for entry in entries {
                check(&join(path, &entry.key), &entry.node, text, problems);
            }
        }
        (Value::Map(entries), Kind::Block { keys, required }) => {
            for entry in entries {
                match keys.iter().find(|(key, _)| *key == entry.key) {
                    Some((key, shape)) if !shape.variable_only || matches!(entry.origin, Origin::Environment(_)) => {
                        check(&join(path, key), &entry.node, shape, problems);
                    }
                    _ => problems.push(Problem {
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
                _ if is_secret(path) => value.kind().to_owned(),
                _ => format!("`{}` ({})", value.inline(), value.kind()),
            };
            let scalar = !matches!(value, Value::List(_) | Value::Map(_) | Value::Null);
            let quotes = scalar && shape.kind == Kind::Text;
            let hint = if quotes { "; put it in quotes" } else { "" };
            report(format!("{shown} is not valid here; write {}{hint}", shape.expected()));
        }
    }
}

fn within(value: f64, shape: &Shape) -> Result<(), String> {
    // Not `value < low || value > high`, which accepts NaN.
    match shape.range {
        Some((low, high)) if !(low..=high).contains(&value) => {
            Err(format!("{} is out of range; write {}", shape.amount(value), shape.expected()))
        }
        _ => Ok(()),
    }
}

fn unknown(path: &str, key: &str, keys: &[(String, Shape)]) -> String {
    if let Some(message) = shape::set_by_variable(&join(path, key)) {
        return message;
    }
    let keys: Vec<&str> = keys.iter().filter(|(_, shape)| !shape.variable_only).map(|(key, _)| key.as_str()).collect();
    let here = if path.is_empty() { "the top level".to_owned() } else { format!("`{path}`") };
    if let Some(near) = nearest(key, keys.iter().copied()) {
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
    let known: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
    format!("unknown key; the keys of {here} are {}", known.join(", "))
}

fn first_sentence(shape: &Shape, key: &str) -> String {
    let doc = shape.find(key).map(|shape| shape.doc.as_str()).unwrap_or_default();
    doc.split(['\n', ':']).next().unwrap_or_default().trim().to_owned()
}

/// The candidate with the smallest edit distance to `word`, if that distance is small for the length of `word`.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(edits, candidate)| *edits <= limit && *edits < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ignores_distant_words() {
        let keys = ["keepalive", "idle_timeout", "unreachable"];
        assert_eq!(nearest("keep_alive", keys), Some("keepalive"));
        assert_eq!(nearest("idle_time", keys), Some("idle_timeout"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("idle_tiemout", keys), Some("idle_timeout"));
        assert_eq!(nearest("UNREACHABEL", keys), Some("unreachable"));
    }
}
