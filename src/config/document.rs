//! Generates `docs/CONFIG.md`: tables of keys, variables and flags, from the same shape that validation uses.

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
        "`pairs[0].listen`, if there is only one listener. A list in brackets, `[10.0.0.7,fd00::7]:8000`, creates one listener per address: \
         `[$(POD_IPS)]:8000` works in every Kubernetes pod.",
    ),
    ("--upstream ADDRESS", "`pairs[0].upstream`, if there is only one listener."),
    ("--pair LISTEN=UPSTREAM", "A listener; can be repeated, and replaces the `pairs` of the file."),
    ("--admin ADDRESS", "`admin.listen`."),
    ("--otlp-receiver ADDRESS", "`queue.otlp_listen`; can be repeated, and replaces the addresses of the file."),
    ("--set KEY=VALUE", "Any key outside `pairs`; can be repeated."),
];

const HEAD: &str = "\
# Configuration

Generated from the code by the test `config_documents`; do not edit. `config/tokometer.yaml` contains every key with its
default and documentation, `config/schema.json` is a JSON schema for editors, and the other files in `config/` are
examples for one engine each.

No configuration is required: `tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001` works. Settings are merged
in this order; later sources override earlier ones: defaults, file, `OTEL_*` variables, `TOKOMETER_*` variables, flags.
`tokometer check` explains the effective settings; `tokometer config` prints them and where each was set. Unknown keys are
errors.

An invalid value in the file, in a `TOKOMETER_*` variable or in a flag is an error, and tokometer exits with code 2. An
invalid value of an `OTEL_*` variable is ignored with a warning, because those variables are often set for every program
of a cluster. An empty variable counts as not set. In variables, separate list entries with commas, and write maps as
`name=value,name=value`, percent-encoded where needed.

SIGHUP reloads the file. A file with errors changes nothing. Keys marked *reload* then apply to new connections; all
others need a restart, and the log names them.

";

/// The content of `docs/CONFIG.md`.
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
    text.push_str("\n## Variables that do not map to one key\n\n| variable | meaning |\n|---|---|\n");
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
        "\n## Detected resource attributes\n\nSet the variables with the downward API. `telemetry.resource`, \
         `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` override them. `service.instance.id` is \
         `<namespace>.<pod>.<container>` if these are known, otherwise `<host name>/<admin address>`.\n\n\
         | attribute | variable (the first one set is used) |\n|---|---|\n",
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
            "\nVariables: `{}...`: the path in uppercase, joined with `_`.\n",
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
            // Lists that are empty by default still get rows for the keys of an item.
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

/// True for a key that its block requires: its default belongs to the default of the whole list.
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
