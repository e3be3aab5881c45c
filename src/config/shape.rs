//! The existing keys, read from the JSON schema of [`Raw`]: the single source for validation, YAML, tables and variable
//! names.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::config::raw::Raw;

/// Type and documentation of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// The doc comment.
    pub(crate) doc: String,
    pub(crate) kind: Kind,
    /// `null` is allowed.
    pub(crate) nullable: bool,
    /// Minimum and maximum of a number.
    pub(crate) range: Option<(f64, f64)>,
}

/// The type of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Bool,
    Integer,
    Number,
    Text,
    /// One of these words, each with its doc comment.
    Words(Vec<(String, String)>),
    List(Box<Shape>),
    /// A block with a fixed set of keys.
    Block {
        keys: Vec<(String, Shape)>,
        required: Vec<String>,
    },
    /// Map with free keys and string values.
    Names,
}

/// The JSON schema of the configuration file.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Raw>().to_value();
    close(&mut schema);
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".to_owned(), "tokometer configuration".into());
    }
    schema
}

/// Forbids unknown keys in every block, including those where `flatten` prevents serde's `deny_unknown_fields`.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("properties").is_some_and(Value::is_object) {
                object.insert("additionalProperties".to_owned(), false.into());
            }
            object.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// The path of a key in the block with this path; the root's path is empty.
pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The shape of the whole configuration.
pub(crate) fn root() -> &'static Shape {
    static ROOT: LazyLock<Shape> = LazyLock::new(|| read(&schema()));
    &ROOT
}

/// Every key with a value, as (`pairs[].listen`, shape), without blocks, in alphabetical order.
pub(crate) fn keys() -> Vec<(String, &'static Shape)> {
    fn walk(path: &str, shape: &'static Shape, into: &mut Vec<(String, &'static Shape)>) {
        match &shape.kind {
            Kind::Block { keys, .. } => {
                for (key, shape) in keys {
                    walk(&join(path, key), shape, into);
                }
            }
            Kind::List(item) if matches!(item.kind, Kind::Block { .. }) => walk(&format!("{path}[]"), item, into),
            _ => into.push((path.to_owned(), shape)),
        }
    }
    let mut keys = Vec::new();
    walk("", root(), &mut keys);
    keys
}

/// The variable that sets this key: `relay.keepalive_secs` is `TOKOMETER_RELAY_KEEPALIVE_SECS`. Keys of `pairs` have
/// none; use `TOKOMETER_LISTEN`, `TOKOMETER_UPSTREAM` and `TOKOMETER_PAIRS`.
pub(crate) fn variable(path: &str) -> Option<String> {
    (!path.contains("[]")).then(|| format!("TOKOMETER_{}", path.replace('.', "_").to_ascii_uppercase()))
}

impl Shape {
    /// The shape at this path, with or without list indices.
    pub(crate) fn find(&self, path: &str) -> Option<&Shape> {
        path.split('.').try_fold(self, |shape, step| {
            let (key, index) = step.split_once('[').map_or((step, false), |(key, _)| (key, true));
            let Kind::Block { keys, .. } = &shape.kind else { return None };
            let found = keys.iter().find(|(name, _)| name == key).map(|(_, shape)| shape)?;
            match &found.kind {
                Kind::List(item) if index => Some(item),
                _ => Some(found),
            }
        })
    }

    /// The type in words, for tables and messages.
    pub(crate) fn words(&self) -> String {
        let name = match &self.kind {
            Kind::Bool => "true or false".to_owned(),
            Kind::Integer => "integer".to_owned(),
            Kind::Number => "number".to_owned(),
            Kind::Text => "string".to_owned(),
            Kind::Words(words) => words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", "),
            Kind::List(item) => format!("list of {}", item.words()),
            Kind::Block { .. } => "block of keys".to_owned(),
            Kind::Names => "`name: value` pairs".to_owned(),
        };
        let range = self.range.map(|(low, high)| format!(" from {low} to {high}")).unwrap_or_default();
        let null = if self.nullable { " or null" } else { "" };
        format!("{name}{range}{null}")
    }
}

fn read(schema: &Value) -> Shape {
    let doc = text(schema, "description");
    if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
        // `Option` of a referenced type: `anyOf: [type, null]`.
        let inner = choices.iter().find(|choice| text(choice, "type") != "null");
        let inner = inner.map(read).expect("schemars writes an `anyOf` with the type for Option");
        return Shape { doc, nullable: true, ..inner };
    }
    let (name, nullable) = match schema.get("type") {
        Some(Value::Array(types)) => {
            let named = types.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default();
            (named, types.iter().any(|name| name == "null"))
        }
        Some(Value::String(name)) => (name.as_str(), false),
        _ => ("", false),
    };
    let kind = match name {
        _ if schema.get("oneOf").is_some() => Kind::Words(
            schema
                .get("oneOf")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(|word| (text(word, "const"), text(word, "description")))
                .collect(),
        ),
        "boolean" => Kind::Bool,
        "integer" => Kind::Integer,
        "number" => Kind::Number,
        "array" => Kind::List(Box::new(read(schema.get("items").unwrap_or(&Value::Null)))),
        "object" => match schema.get("properties").and_then(Value::as_object) {
            Some(keys) => Kind::Block {
                keys: keys.iter().map(|(key, schema)| (key.clone(), read(schema))).collect(),
                required: schema
                    .get("required")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(|key| key.as_str().map(str::to_owned))
                    .collect(),
            },
            None => Kind::Names,
        },
        _ => Kind::Text,
    };
    let bound = |name| schema.get(name).and_then(Value::as_f64);
    let range = bound("minimum").zip(bound("maximum"));
    Shape { doc, kind, nullable, range }
}

fn text(schema: &Value, key: &str) -> String {
    schema.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}
