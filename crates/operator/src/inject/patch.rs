//! JSON Patch (RFC 6902) with undo, and the undo record in a pod's annotation.

use serde::{Deserialize, Serialize};

use crate::inject::value::Value;

/// One change. Paths are JSON Pointers (RFC 6901).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(super) enum Operation {
    /// Sets a key of a map, or inserts an item into a list before this index (`-`: at the end).
    Add {
        /// Path of the value.
        path: String,
        /// The new value.
        value: Value,
    },
    /// Replaces an existing value.
    Replace {
        /// Path of the value.
        path: String,
        /// The new value.
        value: Value,
    },
    /// Removes a key or an item.
    Remove {
        /// Path of the value.
        path: String,
    },
    /// Fails unless the value at the path equals this one.
    Test {
        /// Path of the value.
        path: String,
        /// The expected value.
        value: Value,
    },
}

/// Short for [`Operation::Add`].
pub(super) fn add(path: impl Into<String>, value: impl Into<Value>) -> Operation {
    Operation::Add { path: path.into(), value: value.into() }
}

/// Short for [`Operation::Replace`].
pub(super) fn replace(path: impl Into<String>, value: impl Into<Value>) -> Operation {
    Operation::Replace { path: path.into(), value: value.into() }
}

pub(super) fn is_list(parent: &Value, name: &str) -> bool {
    matches!(parent.get(name), Some(Value::List(_)))
}

/// Appends items to a list. A missing list is created by a separate operation, so that undo keeps items that others add
/// later.
pub(super) fn appended(
    parent: &Value,
    at: &str,
    name: &str,
    items: impl IntoIterator<Item: Into<Value>>,
) -> Vec<Operation> {
    let items: Vec<Operation> = items.into_iter().map(|item| add(format!("{at}/{name}/-"), item)).collect();
    let is_missing = !items.is_empty() && !is_list(parent, name);
    let list = is_missing.then(|| add(format!("{at}/{name}"), Value::List(Vec::new())));
    list.into_iter().chain(items).collect()
}

/// Applies `changes` inside a map. A missing map is created by a separate operation, so that undo keeps entries that
/// others add later.
pub(super) fn entry(
    parent: &Value,
    at: &str,
    name: &str,
    changes: impl IntoIterator<Item = Operation>,
) -> Vec<Operation> {
    let is_map = matches!(parent.get(name), Some(Value::Map(_)));
    let made = (!is_map).then(|| add(format!("{at}/{name}"), Value::Map(Vec::new())));
    made.into_iter().chain(changes).collect()
}

/// Escapes a name as one segment of a JSON Pointer.
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Applies all operations, or none.
///
/// # Errors
/// The path that does not match, and why.
pub(super) fn apply(target: &mut Value, patch: &[Operation]) -> Result<(), String> {
    apply_with_undo(target, patch).map(drop)
}

/// Like [`apply`], and returns the undo record. The record contains JSON Patch `test` operations, so undo fails if a
/// value was changed in the meantime.
///
/// # Errors
/// As for [`apply`].
fn apply_with_undo(target: &mut Value, patch: &[Operation]) -> Result<Record, String> {
    let mut changed = target.clone();
    let (mut undo, mut made) = (Vec::new(), Vec::new());
    for operation in patch {
        let back = one(&mut changed, operation)?;
        match operation {
            Operation::Add { value, .. } if is_empty(value) => made.extend(back.into_iter().last()),
            _ => undo.push(back),
        }
    }
    *target = changed;
    made.reverse();
    Ok(Record { made, undo: undo.into_iter().rev().flatten().collect() })
}

/// True for a map or a list without entries.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Map(entries) => entries.is_empty(),
        Value::List(items) => items.is_empty(),
        _ => false,
    }
}

fn one(target: &mut Value, operation: &Operation) -> Result<Vec<Operation>, String> {
    match operation {
        Operation::Add { path, value } => {
            let (parent, last) = parent(target, path)?;
            let path = match parent {
                Value::Map(entries) => match entries.iter_mut().find(|(name, _)| *name == last) {
                    Some((_, old)) => {
                        let old = std::mem::replace(old, value.clone());
                        return Ok(back(path, value, Operation::Replace { path: path.clone(), value: old }));
                    }
                    None => {
                        entries.push((last, value.clone()));
                        path.clone()
                    }
                },
                Value::List(items) => {
                    let at = if last == "-" { items.len() } else { index(&last, items.len() + 1, path)? };
                    items.insert(at, value.clone());
                    let (before, _) = path.rsplit_once('/').unwrap_or_default();
                    format!("{before}/{at}")
                }
                _ => return Err(nowhere(path)),
            };
            Ok(back(&path, value, Operation::Remove { path: path.clone() }))
        }
        Operation::Replace { path, value } => {
            let place = find(target, path)?;
            let old = std::mem::replace(place, value.clone());
            Ok(back(path, value, Operation::Replace { path: path.clone(), value: old }))
        }
        Operation::Remove { path } => {
            let (parent, last) = parent(target, path)?;
            match parent {
                Value::Map(entries) => {
                    let at = entries.iter().position(|(name, _)| *name == last).ok_or_else(|| nowhere(path))?;
                    entries.remove(at);
                }
                Value::List(items) => drop(items.remove(index(&last, items.len(), path)?)),
                _ => return Err(nowhere(path)),
            }
            Ok(Vec::new())
        }
        Operation::Test { path, value } => match find(target, path)? {
            found if found == value => Ok(Vec::new()),
            _ => Err(format!("{path} was changed in the meantime")),
        },
    }
}

/// The operation `undo`, preceded by tests that the value is still the injected one.
fn back(path: &str, ours: &Value, undo: Operation) -> Vec<Operation> {
    still(path, ours).into_iter().chain([undo]).collect()
}

/// Tests that the value at the path is still the injected one. A map is compared by its `name` or, without a name, only
/// by the injected fields, because the API server adds defaults for other fields.
fn still(path: &str, ours: &Value) -> Vec<Operation> {
    match ours {
        Value::Map(entries) => match ours.get("name") {
            Some(name) => still(&format!("{path}/name"), name),
            None => entries.iter().flat_map(|(key, value)| still(&format!("{path}/{}", escape(key)), value)).collect(),
        },
        // The API server omits it.
        Value::Null => Vec::new(),
        _ => vec![Operation::Test { path: path.to_owned(), value: ours.clone() }],
    }
}

fn steps(path: &str) -> impl Iterator<Item = String> {
    path.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"))
}

fn nowhere(path: &str) -> String {
    format!("{path} does not exist")
}

fn index(text: &str, end: usize, path: &str) -> Result<usize, String> {
    text.parse().ok().filter(|at| *at < end).ok_or_else(|| nowhere(path))
}

fn find<'a>(target: &'a mut Value, path: &str) -> Result<&'a mut Value, String> {
    let mut value = target;
    for step in steps(path) {
        value = match value {
            Value::List(items) => {
                let at = index(&step, items.len(), path)?;
                items.get_mut(at)
            }
            other => other.get_mut(&step),
        }
        .ok_or_else(|| nowhere(path))?;
    }
    Ok(value)
}

/// The parent of the last segment of a path, and that segment.
fn parent<'a>(target: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), String> {
    let (before, _) = path.rsplit_once('/').ok_or_else(|| nowhere(path))?;
    let last = steps(path).last().ok_or_else(|| nowhere(path))?;
    Ok((find(target, before).map_err(|_| nowhere(path))?, last))
}

/// The annotation.
pub(super) const ANNOTATION: &str = "tokometer/undo";

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Removes the maps and lists that were created as parents. Applied after `undo`, and only to those that are empty
    /// by then. Their paths stay valid, because the patch changes no list index in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    made: Vec<Operation>,
    /// Undoes all other changes.
    undo: Vec<Operation>,
}

/// Changes a pod and stores the undo record in its annotation.
///
/// # Errors
/// If the patch does not match. The pod is then unchanged.
pub(super) fn change(pod: &mut Value, patch: &[Operation]) -> Result<(), String> {
    let mut changed = pod.clone();
    let mut record = apply_with_undo(&mut changed, patch)?;
    for path in ["/metadata", "/metadata/annotations"] {
        let names: Vec<&str> = path.split('/').skip(1).collect();
        if !matches!(changed.at(&names), Some(Value::Map(_))) {
            record.made.splice(0..0, apply_with_undo(&mut changed, &[add(path, Value::Map(Vec::new()))])?.made);
        }
    }
    let record = serde_json::to_string(&record).map_err(|error| error.to_string())?;
    apply(&mut changed, &[add(path(), record)])?;
    *pod = changed;
    Ok(())
}

/// Undoes the injection; returns false if the pod has no undo record.
///
/// # Errors
/// If an injected value was modified since, or the undo record is invalid. The pod is then unchanged.
pub(super) fn restore(pod: &mut Value) -> Result<bool, String> {
    let Some(text) = pod.at(&["metadata", "annotations"]).and_then(|annotations| annotations.text(ANNOTATION)) else {
        return Ok(false);
    };
    let record: Record =
        serde_json::from_str(text).map_err(|error| format!("the annotation {ANNOTATION} cannot be read: {error}"))?;
    let mut changed = pod.clone();
    apply(&mut changed, &[Operation::Remove { path: path() }])?;
    apply(&mut changed, &record.undo)
        .map_err(|why| format!("it was changed since the injection, so the sidecar is not removed: {why}"))?;
    for operation in record.made {
        let (Operation::Remove { path } | Operation::Replace { path, .. }) = &operation else { continue };
        if find(&mut changed, path).is_ok_and(|left| is_empty(left)) {
            apply(&mut changed, &[operation])?;
        }
    }
    *pod = changed;
    Ok(true)
}

fn path() -> String {
    format!("/metadata/annotations/{}", escape(ANNOTATION))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn changes_are_applied_and_undone() {
        let before = value(r#"{"b":1,"a":{"x/y":[1,2]},"l":[]}"#);
        let patch: Vec<Operation> = serde_json::from_str(
            r#"[{"op":"test","path":"/b","value":1},{"op":"add","path":"/a/x~1y/1","value":9},
                {"op":"add","path":"/l/-","value":{"name":"n"}},{"op":"replace","path":"/b","value":2},
                {"op":"add","path":"/c","value":[]},{"op":"add","path":"/c/-","value":"t"}]"#,
        )
        .unwrap();
        let mut changed = before.clone();
        change(&mut changed, &patch).unwrap();
        let mut ours = changed.clone();
        ours.remove("metadata");
        assert_eq!(ours, value(r#"{"b":2,"a":{"x/y":[1,9,2]},"l":[{"name":"n"}],"c":["t"]}"#));
        assert_eq!(restore(&mut changed), Ok(true));
        assert_eq!(changed, before);
    }

    #[test]
    fn invalid_patch_changes_nothing_and_names_the_path() {
        let before = value(r#"{"l":[1],"m":{"k":true}}"#);
        for (patch, path) in [
            (r#"[{"op":"replace","path":"/m/k","value":1},{"op":"remove","path":"/l/1"}]"#, "/l/1"),
            (r#"[{"op":"test","path":"/m/k","value":false}]"#, "/m/k"),
            (r#"[{"op":"add","path":"/no/k","value":1}]"#, "/no/k"),
            (r#"[{"op":"add","path":"/m/k/x","value":1}]"#, "/m/k/x"),
            (r#"[{"op":"add","path":"/l/2","value":1}]"#, "/l/2"),
            (r#"[{"op":"remove","path":""}]"#, ""),
        ] {
            let mut target = before.clone();
            let patch: Vec<Operation> = serde_json::from_str(patch).unwrap();
            assert!(apply(&mut target, &patch).unwrap_err().contains(path));
            assert_eq!(target, before);
        }
    }

    #[test]
    fn undo_fails_on_later_changes() {
        let mut target = value(r#"{"args":["a"]}"#);
        let Record { undo, .. } = apply_with_undo(&mut target, &[add("/args/-", "--host=127.0.0.1")]).unwrap();
        apply(&mut target, &[add("/args/0", "b")]).unwrap();
        assert!(apply(&mut target, &undo).unwrap_err().contains("/args/1"));
    }

    #[test]
    fn undo_keeps_later_entries_of_created_parents() {
        let patch = [
            add("/m", Value::Map(Vec::new())),
            add("/m/l", Value::List(Vec::new())),
            add("/m/l/-", value(r#"{"name":"ours"}"#)),
        ];
        for (later, expected) in [
            (vec![], r#"{"m":null}"#),
            (vec![add("/m/l/-", value(r#"{"name":"theirs"}"#))], r#"{"m":{"l":[{"name":"theirs"}]}}"#),
            (vec![add("/m/k", 1_u64)], r#"{"m":{"k":1}}"#),
            (vec![Operation::Remove { path: "/m/l/0".to_owned() }, Operation::Remove { path: "/m/l".to_owned() }], ""),
        ] {
            let mut target = value(r#"{"m":null}"#);
            change(&mut target, &patch).unwrap();
            apply(&mut target, &later).unwrap();
            match expected {
                "" => assert!(restore(&mut target).unwrap_err().contains("/m/l/0")),
                _ => {
                    assert_eq!(restore(&mut target), Ok(true));
                    assert_eq!(target, value(expected));
                }
            }
        }
    }

    #[test]
    fn undo_fails_if_a_map_without_name_was_replaced() {
        let patch = [add("/preStop", value(r#"{"httpGet":{"path":"/drain/wait","port":9464}}"#))];
        for (later, is_ours) in [
            (r#"{"httpGet":{"path":"/drain/wait","port":9464,"scheme":"HTTP"}}"#, true),
            (r#"{"exec":{"command":["sleep","5"]}}"#, false),
        ] {
            let mut target = value("{}");
            change(&mut target, &patch).unwrap();
            apply(&mut target, &[replace("/preStop", value(later))]).unwrap();
            assert_eq!(restore(&mut target).is_ok(), is_ours, "{later}");
        }
    }
}
