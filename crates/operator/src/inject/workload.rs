//! Where Kubernetes objects have their pods.

use crate::inject::value::Value;

/// Kind and name of an object.
pub(super) fn title(object: &Value) -> String {
    let kind = object.text("kind").unwrap_or("an object without a kind");
    let name = object.get("metadata").and_then(|metadata| metadata.text("name").or(metadata.text("generateName")));
    name.map_or_else(|| kind.to_owned(), |name| format!("{kind}/{name}"))
}

/// Path to the pod or pod template of an object; `None` for objects that start no pods, or of an unknown kind.
pub(super) fn template(object: &Value) -> Option<&'static [&'static str]> {
    Some(match object.text("kind")? {
        "Pod" => &[],
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
            &["spec", "template"]
        }
        "CronJob" => &["spec", "jobTemplate", "spec", "template"],
        "PodTemplate" => &["template"],
        // A group of pods; the leader serves.
        "LeaderWorkerSet" => match object.at(&["spec", "leaderWorkerTemplate", "leaderTemplate"]) {
            Some(Value::Map(_)) => &["spec", "leaderWorkerTemplate", "leaderTemplate"],
            _ => &["spec", "leaderWorkerTemplate", "workerTemplate"],
        },
        _ => return None,
    })
}

/// Calls `each_one` with every object: with each item of a list, or with the object itself.
pub(super) fn each(object: &mut Value, each_one: &mut dyn FnMut(&mut Value)) {
    let is_list = object.text("kind").is_some_and(|kind| kind.ends_with("List"));
    match object.get_mut("items") {
        Some(Value::List(items)) if is_list => items.iter_mut().for_each(|item| each(item, each_one)),
        _ => each_one(object),
    }
}

/// The value at a path of names.
pub(super) fn find<'a>(object: &'a mut Value, names: &[&str]) -> Option<&'a mut Value> {
    names.iter().try_fold(object, |value, name| value.get_mut(name))
}
