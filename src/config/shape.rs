//! All keys of the configuration, read from the JSON schema of [`Raw`]: the single source for validation, YAML, tables,
//! variable names and the keys that a reload applies.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::config::raw::Raw;
use tokometer_settings::{Duration, Size};

/// Type and documentation of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// The doc comment.
    pub(crate) doc: String,
    pub(crate) kind: Kind,
    /// `null` is allowed.
    pub(crate) nullable: bool,
    /// Minimum and maximum of a number; milliseconds of a duration, bytes of a size.
    pub(crate) range: Option<(f64, f64)>,
    /// A reload applies the key, or the whole block.
    pub(crate) reload: bool,
    /// Only an `OTEL_*` variable can set the key.
    pub(crate) variable_only: bool,
}

/// The type of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Bool,
    Integer,
    Number,
    Duration,
    Size,
    Text,
    /// One of these words, each with its doc comment.
    Words(Vec<(String, String)>),
    List(Box<Shape>),
    /// A block with a fixed set of keys.
    Block {
        keys: Vec<(String, Shape)>,
        required: Vec<String>,
    },
    /// A map with user-defined keys; the shape is that of the values, which are text.
    Names(Box<Shape>),
}

fn raw_schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Raw>().to_value()
}

/// The JSON schema of the configuration file.
pub fn schema() -> Value {
    let mut schema = raw_schema();
    close(&mut schema);
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".to_owned(), "tokometer configuration".into());
    }
    schema
}

/// Forbids unknown keys in every block, and removes keys that only variables can set.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::Object(keys)) = object.get_mut("properties") {
                keys.retain(|_, schema| !is_marked(schema, "x-variable"));
                object.insert("additionalProperties".to_owned(), false.into());
            }
            object.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// The path of `key` in the block `path`; the root's path is empty.
pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The shape of the whole configuration.
pub(crate) fn root() -> &'static Shape {
    static ROOT: LazyLock<Shape> = LazyLock::new(|| read(&raw_schema()));
    &ROOT
}

/// Every key with a value that a file can set, as (`listeners[].listen`, shape), without blocks, in alphabetical order.
pub(crate) fn keys() -> Vec<(String, &'static Shape)> {
    all_keys().into_iter().filter(|(_, shape)| !shape.variable_only).collect()
}

/// Like [`keys`], including keys that only variables can set.
pub(crate) fn all_keys() -> Vec<(String, &'static Shape)> {
    fn walk(path: &str, shape: &'static Shape, into: &mut Vec<(String, &'static Shape)>) {
        match &shape.kind {
            Kind::Block { keys, .. } => keys.iter().for_each(|(key, shape)| walk(&join(path, key), shape, into)),
            Kind::List(item) if matches!(item.kind, Kind::Block { .. }) => walk(&format!("{path}[]"), item, into),
            _ => into.push((path.to_owned(), shape)),
        }
    }
    let mut keys = Vec::new();
    walk("", root(), &mut keys);
    keys
}

/// Keys and blocks of keys that take effect on a reload. Open connections keep their old settings; all other keys take
/// effect at the next start.
pub(crate) fn reloaded() -> Vec<String> {
    fn walk(path: &str, shape: &Shape, into: &mut Vec<String>) {
        match &shape.kind {
            _ if shape.reload => into.push(path.to_owned()),
            Kind::Block { keys, .. } => keys.iter().for_each(|(key, shape)| walk(&join(path, key), shape, into)),
            _ => {}
        }
    }
    let mut paths = Vec::new();
    walk("", root(), &mut paths);
    paths
}

/// True if a change of this key takes effect without a restart.
pub(crate) fn is_reloaded(path: &str) -> bool {
    let below = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
    reloaded().iter().any(|marked| path.strip_prefix(marked.as_str()).is_some_and(below))
}

/// The variable that sets this key: `relay.keepalive` is `TOKOMETER_RELAY_KEEPALIVE`. Keys of `listeners` have no such
/// variable; use `TOKOMETER_LISTEN`, `TOKOMETER_UPSTREAM` and `TOKOMETER_LISTENERS`.
pub(crate) fn variable(path: &str) -> Option<String> {
    (!path.contains("[]")).then(|| format!("TOKOMETER_{}", path.replace('.', "_").to_ascii_uppercase()))
}

/// The standard variable that sets this key of `otlp`.
pub(crate) fn exporter_variable(path: &str) -> String {
    format!("OTEL_EXPORTER_{}", path.replace('.', "_").to_ascii_uppercase())
}

/// The message for a key that only a standard variable sets, such as `otlp.traces.endpoint`.
pub(crate) fn set_by_variable(path: &str) -> Option<String> {
    root().find(path).filter(|shape| shape.variable_only)?;
    let name = match path {
        "prometheus.exemplars" => "OTEL_METRICS_EXEMPLAR_FILTER",
        "otlp.traces.queue_size" => "OTEL_BSP_MAX_QUEUE_SIZE",
        "otlp.traces.batch_size" => "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        "otlp.traces.schedule_delay" => "OTEL_BSP_SCHEDULE_DELAY",
        _ => &exporter_variable(path),
    };
    Some(format!("not a key; set the variable {name}"))
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

    /// The type in words with an article, for messages: "write a duration from 0s to 1h".
    pub(crate) fn expected(&self) -> String {
        let words = self.words();
        match words.chars().next() {
            _ if matches!(self.kind, Kind::Bool | Kind::Words(_)) => words,
            Some('a' | 'e' | 'i' | 'o' | 'u') => format!("an {words}"),
            _ => format!("a {words}"),
        }
    }

    /// The type in words, for tables.
    pub(crate) fn words(&self) -> String {
        let name = match &self.kind {
            Kind::Bool => "true or false".to_owned(),
            Kind::Integer => "integer".to_owned(),
            Kind::Number => "number".to_owned(),
            Kind::Duration => "duration".to_owned(),
            Kind::Size => "size".to_owned(),
            Kind::Text => "string".to_owned(),
            Kind::Words(words) => words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", "),
            Kind::List(item) if matches!(item.kind, Kind::Text | Kind::Block { .. }) => {
                format!("list of {}s", item.words())
            }
            Kind::List(item) => format!("list of {}", item.words()),
            Kind::Block { .. } => "object".to_owned(),
            Kind::Names(_) => "map (`name: value`)".to_owned(),
        };
        let bounds = |(low, high)| format!(" from {} to {}", self.amount(low), self.amount(high));
        let null = if self.nullable { " or null" } else { "" };
        format!("{name}{}{null}", self.range.map(bounds).unwrap_or_default())
    }

    /// Formats a number for this key as users write it.
    pub(crate) fn amount(&self, number: f64) -> String {
        match self.kind {
            Kind::Duration => Duration::from_millis(number as u64).to_string(),
            Kind::Size => Size(number as u64).to_string(),
            _ => number.to_string(),
        }
    }

    /// Converts a text with a unit to a number: milliseconds or bytes.
    pub(crate) fn number(&self, text: &str) -> Result<f64, String> {
        match self.kind {
            Kind::Duration => text.parse().map(|Duration(duration)| duration.as_millis() as f64),
            _ => text.parse().map(|Size(bytes)| bytes as f64),
        }
    }
}

fn read(schema: &Value) -> Shape {
    let doc = text(schema, "description");
    let (reload, variable_only) = (is_marked(schema, "x-reload"), is_marked(schema, "x-variable"));
    if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
        // `Option` of a referenced type: `anyOf: [type, null]`.
        let inner = choices.iter().find(|choice| text(choice, "type") != "null");
        let inner = inner.map(read).expect("schemars writes an `anyOf` with the type for Option");
        return Shape { doc, nullable: true, reload, variable_only, ..inner };
    }
    let list = |key| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    let (name, nullable) = match schema.get("type") {
        Some(Value::Array(types)) => {
            let named = types.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default();
            (named, types.iter().any(|name| name == "null"))
        }
        Some(Value::String(name)) => (name.as_str(), false),
        _ => ("", false),
    };
    let kind = match (name, text(schema, "x-unit").as_str()) {
        _ if schema.get("oneOf").is_some() => {
            Kind::Words(list("oneOf").map(|word| (text(word, "const"), text(word, "description"))).collect())
        }
        (_, "duration") => Kind::Duration,
        (_, "size") => Kind::Size,
        ("boolean", _) => Kind::Bool,
        ("integer", _) => Kind::Integer,
        ("number", _) => Kind::Number,
        ("array", _) => Kind::List(Box::new(read(schema.get("items").unwrap_or(&Value::Null)))),
        ("object", _) => match schema.get("properties").and_then(Value::as_object) {
            Some(keys) => Kind::Block {
                keys: keys.iter().map(|(key, schema)| (key.clone(), read(schema))).collect(),
                required: list("required").filter_map(|key| key.as_str().map(str::to_owned)).collect(),
            },
            None => Kind::Names(Box::new(read(schema.get("additionalProperties").unwrap_or(&Value::Null)))),
        },
        _ => Kind::Text,
    };
    let bound = |name| schema.get(name).and_then(Value::as_f64);
    let mut shape = Shape { doc, kind, nullable, range: bound("minimum").zip(bound("maximum")), reload, variable_only };
    let mut bounds = list("x-range").filter_map(Value::as_str).filter_map(|text| shape.number(text).ok());
    if let Some(range) = bounds.next().zip(bounds.next()) {
        shape.range = Some(range);
    }
    shape
}

fn text(schema: &Value, key: &str) -> String {
    schema.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn is_marked(schema: &Value, mark: &str) -> bool {
    schema.get(mark).is_some_and(|mark| mark == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_marks_cover_their_subkeys_only() {
        let table = [("observe.stall", true), ("observe.path_prefixes[0]", true), ("log.level", true)];
        for (path, live) in table.into_iter().chain([("log.level_x", false), ("listeners[0].listen", false)]) {
            assert_eq!(is_reloaded(path), live, "{path}");
        }
    }

    #[test]
    fn each_duration_and_size_has_bounds_with_units() {
        for (path, shape) in keys() {
            let unit = matches!(shape.kind, Kind::Duration | Kind::Size);
            assert!(!unit || shape.range.is_some(), "{path}");
        }
    }
}
