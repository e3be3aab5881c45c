//! Manifests as text, and the pods in their objects.

use crate::inject::Error;
use crate::inject::value::Value;

/// Format of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Yaml,
    Json,
}

/// Reads every document. Comments are lost and anchors are expanded, because the parser does not report them.
pub(super) fn read(text: &str) -> Result<(Form, Vec<Value>), Error> {
    let (form, documents) = if text.trim_start().starts_with(['{', '[']) {
        let documents = serde_json::Deserializer::from_str(text).into_iter().collect::<Result<Vec<Value>, _>>();
        (Form::Json, documents.map_err(|error| Error::Json(error.to_string()))?)
    } else {
        // A file mode such as 0644 is octal for Kubernetes, which uses YAML 1.1.
        let options = serde_yaml::options! { legacy_octal_numbers: true };
        let documents = serde_yaml::from_multiple_with_options(text, options);
        (Form::Yaml, documents.map_err(|error| Error::Yaml(error.to_string()))?)
    };
    if let Some(number) = documents.iter().position(|document| !matches!(document, Value::Map(_))) {
        return Err(Error::NoObject(number + 1));
    }
    if documents.is_empty() { Err(Error::Empty) } else { Ok((form, documents)) }
}

/// Writes the documents in this format.
pub(super) fn write(form: Form, documents: &[Value]) -> Result<String, Error> {
    let texts = documents.iter().map(|document| match form {
        Form::Yaml => serde_yaml::to_string(document).map_err(|error| Error::Yaml(error.to_string())),
        Form::Json => serde_json::to_string_pretty(document)
            .map(|text| text + "\n")
            .map_err(|error| Error::Json(error.to_string())),
    });
    Ok(texts.collect::<Result<Vec<String>, Error>>()?.join(if form == Form::Yaml { "---\n" } else { "" }))
}

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
        // In a group of pods, the leader serves the clients. Without a leader template, it uses the worker template.
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
