//! `docs/CONFIG.md`: tables of keys, variables and flags, made from the same shape that checks use.

use crate::config::environment;
use crate::config::otel;
use crate::config::print;
use crate::config::raw::Raw;
use crate::config::reload;
use crate::config::resource;
use crate::config::shape;
use crate::config::shape::Kind;
use crate::config::shape::Shape;
use crate::config::value::Entry;
use crate::config::value::Node;
use crate::config::value::Value;

/// The flags of `tokometer run` and `tokometer check`.
const FLAGS: [(&str, &str); 7] = [
    ("--config FILE", "Configuration file (YAML)."),
    (
        "--listen ADDRESS",
        "`pairs[0].listen`, where there is one pair. A list in brackets, `[10.0.0.7,fd00::7]:8000`, makes a pair of each address: \
         `[$(POD_IPS)]:8000` fits every pod of Kubernetes.",
    ),
    ("--upstream ADDRESS", "`pairs[0].upstream`, where there is one pair."),
    ("--pair LISTEN=UPSTREAM", "A pair; may be given several times, and replaces the pairs of the file."),
    ("--admin ADDRESS", "`admin.listen`."),
    (
        "--otlp-receiver ADDRESS",
        "`queue.otlp_listen`; may be given several times, and replaces the addresses of the file.",
    ),
    ("--set KEY=VALUE", "Any key outside `pairs`; may be given several times."),
];

const HEAD: &str = "\
# Configuration

Made from the code by the test `config_documents`; do not edit. `config/tokometer.yaml` holds every key with its default
and its documentation, `config/schema.json` is a JSON schema for editors, and the other files in `config/` are examples
for one engine each.

Nothing needs to be set: `tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001` works. What is set is laid over
each other in this order, a later layer winning: defaults, file, `OTEL_*` variables, `TOKOMETER_*` variables, flags.
`tokometer check` tells what is in effect and where it was set; unknown keys are errors.

A value in the file, in a `TOKOMETER_*` variable or in a flag that cannot be used is an error, and tokometer ends with exit
code 2. A value of an `OTEL_*` variable that cannot be used is a warning and is left out: those are often set for every
program of a cluster. An empty variable counts as not set. Lists in variables have commas between their entries; names
with values are written `name=value,name=value`, with percent-encoding where needed.

On SIGHUP the file is read again. A file with errors changes nothing. Keys marked *reload* then hold for new connections;
all others need a restart, and the log tells which.

";

/// The document.
pub fn document() -> String {
    let mut text = HEAD.to_owned();
    let defaults = print::tree(&Raw::default());
    if let Value::Map(entries) = &defaults.value {
        for entry in entries {
            section(entry, &mut text);
        }
    }
    text.push_str("## Flags of `run` and `check`\n\n| flag | meaning |\n|---|---|\n");
    for (flag, meaning) in FLAGS {
        row(&mut text, &[&format!("`{flag}`"), meaning]);
    }
    text.push_str("\n## Variables for no single key\n\n| variable | meaning |\n|---|---|\n");
    for (name, meaning) in environment::SPECIAL {
        row(&mut text, &[&format!("`{name}`"), meaning]);
    }
    text.push_str("\n## Standard OpenTelemetry variables\n\n| variable | sets |\n|---|---|\n");
    for variable in otel::variables() {
        let sets = if variable.sets.contains(' ') { variable.sets.clone() } else { format!("`{}`", variable.sets) };
        row(&mut text, &[&format!("`{}`", variable.name), &sets]);
    }
    row(
        &mut text,
        &["`OTEL_EXPORTER_PROMETHEUS_HOST`, `OTEL_EXPORTER_PROMETHEUS_PORT`", "host and port of `admin.listen`"],
    );
    text.push_str(
        "\n## Resource attributes found by themselves\n\nFill the variables by the downward API. `telemetry.resource`, \
         `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` win over them. `service.instance.id` is \
         `<namespace>.<pod>.<container>` where these are known, else `<host name>/<admin address>`.\n\n\
         | attribute | variable, the first one set |\n|---|---|\n",
    );
    for (attribute, names) in resource::FROM_ENVIRONMENT {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        row(&mut text, &[&format!("`{attribute}`"), &names.join(", ")]);
    }
    text
}

fn section(entry: &Entry, text: &mut String) {
    let Some(shape) = shape::root().find(&entry.key) else { return };
    text.push_str(&format!("## `{}`\n\n{}\n\n", entry.key, shape.doc.replace('\n', " ")));
    text.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
    rows(&entry.key, &entry.node, text);
    let block = entry.key.as_str();
    if !matches!(entry.node.value, Value::List(_)) {
        let name = shape::variable(&format!("{block}.key")).unwrap_or_default();
        text.push_str(&format!(
            "\nVariables: `{}...`, the path in capitals with `_` between.\n",
            name.trim_end_matches("KEY")
        ));
    }
    text.push('\n');
}

fn rows(path: &str, node: &Node, text: &mut String) {
    let Some(shape) = shape::root().find(path) else { return };
    match (&node.value, &shape.kind) {
        (Value::Map(entries), Kind::Block { .. }) => {
            for entry in entries {
                rows(&format!("{path}.{}", entry.key), &entry.node, text);
            }
        }
        (Value::List(items), Kind::List(item)) if matches!(item.kind, Kind::Block { .. }) => {
            for item in items.iter().take(1) {
                rows(&format!("{path}[]"), item, text);
            }
            // Where the default has none, what one of them may have is told all the same.
            if let (true, Kind::Block { keys, .. }) = (items.is_empty(), &item.kind) {
                let live = if reload::is_live(path) { " *reload*" } else { "" };
                row(text, &[&format!("`{path}`{live}"), &shape.words(), "`[]`", &meaning(shape)]);
                for (key, shape) in keys {
                    row(text, &[&format!("`{path}[].{key}`{live}"), &shape.words(), "", &meaning(shape)]);
                }
            }
        }
        (value, _) => {
            let live = if reload::is_live(path) { " *reload*" } else { "" };
            let default = if is_required(path) { "required".to_owned() } else { format!("`{}`", value.inline()) };
            row(text, &[&format!("`{path}`{live}"), &shape.words(), &default, &meaning(shape)]);
        }
    }
}

/// True for a key without which its block cannot be used: what stands there by default is a default of the whole list.
fn is_required(path: &str) -> bool {
    let Some((block, key)) = path.rsplit_once('.') else { return false };
    let shape = shape::root().find(block);
    matches!(shape.map(|shape| &shape.kind), Some(Kind::Block { required, .. }) if required.iter().any(|name| name == key))
}

fn meaning(shape: &Shape) -> String {
    let mut meaning = shape.doc.replace('\n', " ");
    if let Kind::Words(words) = &shape.kind {
        for (word, doc) in words {
            meaning.push_str(&format!("<br>`{word}`: {}", doc.replace('\n', " ")));
        }
    }
    meaning
}

fn row(text: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    text.push_str(&format!("| {} |\n", cells.join(" | ")));
}
