//! The undo record in a pod's annotation, from which the sidecar is removed again.

use serde::Deserialize;
use serde::Serialize;

use crate::inject::patch;
use crate::inject::patch::Operation;
use crate::inject::patch::add;
use crate::inject::patch::escape;
use crate::inject::value::Value;

/// The annotation.
pub const ANNOTATION: &str = "tokometer/undo";

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Removes the maps created for the annotation itself, unless they have other entries by then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    made: Vec<Operation>,
    /// Undoes everything else.
    undo: Vec<Operation>,
}

/// Changes a pod and stores in it how to undo the change.
///
/// # Errors
/// When the patch does not match; nothing is changed then.
pub(super) fn change(pod: &mut Value, patch: &[Operation]) -> Result<(), String> {
    let mut changed = pod.clone();
    let undo = patch::undoing(&mut changed, patch)?;
    let mut made = Vec::new();
    for path in ["/metadata", "/metadata/annotations"] {
        let names: Vec<&str> = path.split('/').skip(1).collect();
        if !matches!(changed.at(&names), Some(Value::Map(_))) {
            made.splice(0..0, patch::undoing(&mut changed, &[add(path, Value::Map(Vec::new()))])?);
        }
    }
    let record = serde_json::to_string(&Record { made, undo }).map_err(|error| error.to_string())?;
    patch::apply(&mut changed, &[add(path(), record)])?;
    *pod = changed;
    Ok(())
}

/// Undoes the injection; returns false if the pod has no undo record.
///
/// # Errors
/// When the changes were modified since, or the undo record is invalid; nothing is changed then.
pub(super) fn restore(pod: &mut Value) -> Result<bool, String> {
    let Some(text) = pod.at(&["metadata", "annotations"]).and_then(|annotations| annotations.text(ANNOTATION)) else {
        return Ok(false);
    };
    let record: Record =
        serde_json::from_str(text).map_err(|error| format!("the annotation {ANNOTATION} cannot be read: {error}"))?;
    let mut changed = pod.clone();
    patch::apply(&mut changed, &[Operation::Remove { path: path() }])?;
    patch::apply(&mut changed, &record.undo)
        .map_err(|why| format!("it was changed since the injection, so the sidecar is not removed: {why}"))?;
    for operation in record.made {
        let (Operation::Remove { path } | Operation::Replace { path, .. }) = &operation else { continue };
        let names: Vec<&str> = path.split('/').skip(1).collect();
        if changed.at(&names) == Some(&Value::Map(Vec::new())) {
            patch::apply(&mut changed, &[operation])?;
        }
    }
    *pod = changed;
    Ok(true)
}

fn path() -> String {
    format!("/metadata/annotations/{}", escape(ANNOTATION))
}
