//! Manifests as text: one or more YAML or JSON documents.

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

/// Writes the documents in the format they were read in.
pub(super) fn write(form: Form, documents: &[Value]) -> Result<String, Error> {
    let texts = documents.iter().map(|document| match form {
        Form::Yaml => serde_yaml::to_string(document).map_err(|error| Error::Yaml(error.to_string())),
        Form::Json => serde_json::to_string_pretty(document)
            .map(|text| text + "\n")
            .map_err(|error| Error::Json(error.to_string())),
    });
    Ok(texts.collect::<Result<Vec<String>, Error>>()?.join(if form == Form::Yaml { "---\n" } else { "" }))
}
