//! `docs/reference/configuration.md`, generated from the settings. `UPDATE=1` writes it.

use crate::config::output::tree;
use crate::config::raw::Raw;
use crate::config::shape::{self, Kind, Shape};
use crate::config::tree::{Entry, Node, Value};
use crate::config::{otel, sources};

#[test]
fn reference_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/configuration.md");
    let made = document();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(committed == made, "docs/reference/configuration.md is not up to date; run tests/generated.sh write");
}

#[test]
fn message_names_the_variable_that_sets_a_key() {
    let only = |path: &String| shape::set_by_variable(path);
    let keys = shape::all_keys();
    let messages: Vec<_> = keys.iter().filter_map(|(path, _)| Some((path, only(path)?))).collect();
    assert!(messages.len() > 20, "{messages:?}");
    for (path, message) in messages {
        let name = message.rsplit(' ').next().unwrap();
        let sets = otel::variables().into_iter().find(|variable| variable.name == name).map(|variable| variable.sets);
        assert_eq!(sets.as_ref(), Some(path), "{message}");
    }
}

#[test]
fn reference_names_every_route() {
    let document = document();
    for name in tokometer_observe::observer::OwnPath::routes() {
        assert!(document.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn reference_names_every_flag_of_run() {
    use clap::CommandFactory;
    let (document, command) = (document(), crate::cli::Cli::command());
    let run = command.find_subcommand("run").expect("`run` is a command");
    for flag in run.get_arguments().filter_map(|argument| argument.get_long()).filter(|flag| *flag != "help") {
        assert!(document.contains(&format!("| `--{flag} ")), "--{flag} is not in docs/reference/configuration.md");
    }
}

/// The flags of `tokometer run` and `tokometer check`.
const FLAGS: [(&str, &str); 8] = [
    ("--config FILE", "Configuration file (YAML)."),
    (
        "--listen ADDRESS",
        "Sets `listeners[0].listen`; an error if more than one listener is configured. A list in brackets, `[10.0.0.7,fd00::7]:8000`, creates one listener per address. \
         In Kubernetes, set the environment variable `POD_IPS` from the field `status.podIPs` and use `[$(POD_IPS)]:8000`.",
    ),
    ("--upstream ADDRESS", "Sets `listeners[0].upstream`; an error if more than one listener is configured."),
    (
        "--listener LISTEN=UPSTREAM",
        "Adds a listener; can be repeated. A list of addresses in brackets adds one listener per address. \
         If this flag is set, `listeners` in the file is ignored.",
    ),
    ("--admin ADDRESS", "Sets `admin.listen`."),
    (
        "--rewrite CHANGES",
        "Sets `listeners[].mode: rewrite` for every listener, and the listed keys of `rewrite` to true: `include_usage,traceparent,request_id`.",
    ),
    (
        "--otlp-receiver ADDRESS",
        "Adds an address to `engine_spans.listen`; can be repeated. If this flag is set, the addresses in the file are ignored.",
    ),
    (
        "--set KEY=VALUE",
        "Sets one configuration key; can be repeated. Keys of list items cannot be set, except `listeners[].KEY` (such as `listeners[].mode`), which applies to every listener.",
    ),
];

const DOCUMENT_HEAD: &str = "\
# Configuration

Generated from the code by the test `config::tests`; do not edit. `config/tokometer.yaml` contains every key with its
default and documentation, `config/schema.json` is a JSON schema for editors, and the other files in `config/` are
examples for one engine each.

No configuration file is required: `tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001` works. Settings are
merged in this order: defaults, file, `OTEL_*` variables, `TOKOMETER_*` variables, flags. Later sources override earlier
ones. `tokometer check` explains the effective settings; `tokometer config` prints each setting with its source. Unknown
keys are errors.

Durations and sizes are written with their unit: `500ms`, `10s`, `2m`, `1h`; `64KiB`, `8MiB`, `1GiB`. Only 0 needs no
unit. All objectives in `slo` have the keys `name`, `target_percent` and `applies_to`. These keys are listed once, under
`slo.availability`.

An invalid value in the file, in a `TOKOMETER_*` variable or in a flag is an error, and tokometer exits with code 2. An
invalid value of an `OTEL_*` variable is ignored with a warning, because these variables are often set for every program
in a cluster. An empty variable counts as not set. In variables, separate list entries with commas, and write maps as
`name=value,name=value`. Percent-encode special characters in names and values, such as a comma (`%2C`).

Tokometer reloads a changed configuration file within 2 s, or immediately on SIGHUP. In a terminal, SIGHUP
stops tokometer instead. If the file has errors, the previous configuration stays in effect, the errors are logged, and
`tokometer_config_last_reload_successful` is 0. After a reload, keys marked *reload* apply to new connections. Changes
to all other keys take effect only after a restart; tokometer logs the names of the changed keys.

";

/// The content of `docs/reference/configuration.md`.
fn document() -> String {
    let mut text = DOCUMENT_HEAD.to_owned();
    let defaults = tree(&Raw::default());
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
    for (name, meaning) in sources::SPECIAL {
        row(&mut text, &[&format!("`{name}`"), meaning]);
    }
    text.push_str("\n## Standard OpenTelemetry variables\n\n| variable | key or effect |\n|---|---|\n");
    for variable in otel::variables() {
        let sets = sets(&variable.sets);
        row(&mut text, &[&format!("`{}`", variable.name), &sets]);
    }
    row(
        &mut text,
        &["`OTEL_EXPORTER_PROMETHEUS_HOST`, `OTEL_EXPORTER_PROMETHEUS_PORT`", "host and port of `admin.listen`"],
    );
    text.push_str(
        "\n## Detected resource attributes\n\nSet the variables in the table with the downward API. \
         `telemetry.resource`, `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` override the detected attributes. \
         `service.instance.id` is `<namespace>.<pod>.<container>`. If the container is unknown, the value is \
         `<namespace>.<pod>`. If the namespace or the pod is unknown, the value is `<host name>/<admin address>`.\n\n\
         | attribute | variable (the first one set is used) |\n|---|---|\n",
    );
    for (attribute, names) in otel::RESOURCE {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        row(&mut text, &[&format!("`{attribute}`"), &names.join(", ")]);
    }
    text
}

/// The table cell for a variable: the key that it sets, or the key's meaning if only variables can set the key.
fn sets(path: &str) -> String {
    let shape = shape::root().find(path).filter(|shape| shape.variable_only);
    let (signal, key) = path.trim_start_matches("otlp.").split_once('.').unwrap_or(("both signals", path));
    let common = format!("otlp.{key}");
    match (shape, shape::root().find(&common)) {
        (Some(_), Some(both)) if both.variable_only => {
            format!("as `{}`, for {signal} only", shape::exporter_variable(&common))
        }
        (Some(_), Some(_)) => format!("`{common}`, for {signal} only"),
        (Some(shape), None) => shape.doc.replace('\n', " "),
        (None, _) if path.contains(' ') => path.to_owned(),
        (None, _) => format!("`{path}`"),
    }
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
            "\nEnvironment variables: `TOKOMETER_` followed by the key in uppercase, with `_` for each dot (`{}...`).\n",
            name.trim_end_matches("KEY")
        ));
    }
    text.push('\n');
}

fn rows(path: &str, node: &Node, text: &mut String) {
    let Some(shape) = shape::root().find(path).filter(|shape| !shape.variable_only) else { return };
    // Keys that every objective has are explained with the first kind.
    let common = ["name", "target_percent", "applies_to"].iter().any(|key| path.ends_with(&format!("[].{key}")));
    let first_kind = path.strip_prefix("slo.availability[].").filter(|_| common);
    if common && path.starts_with("slo.") && first_kind.is_none() {
        return;
    }
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
            // Lists that are empty by default still have rows for the keys of an item.
            if let (true, Kind::Block { keys, .. }) = (items.is_empty(), &item.kind) {
                let live = if shape::is_reloaded(path) { " *reload*" } else { "" };
                row(text, &[&format!("`{path}`{live}"), &shape.words(), "`[]`", &meaning(shape)]);
                for (key, shape) in keys {
                    row(text, &[&format!("`{path}[].{key}`{live}"), &shape.words(), "", &meaning(shape)]);
                }
            }
        }
        (value, _) => {
            let live = if shape::is_reloaded(path) { " *reload*" } else { "" };
            let default = match first_kind {
                Some(key) => defaults_by_kind(key),
                None if is_required(path) => "required".to_owned(),
                None => format!("`{}`", value.inline()),
            };
            row(text, &[&format!("`{path}`{live}"), &shape.words(), &default, &meaning(shape)]);
        }
    }
}

/// The default of a key that every objective has, by kind.
fn defaults_by_kind(key: &str) -> String {
    let defaults = tree(&Raw::default());
    let of = |kind: &&str| Some(format!("{kind} `{}`", defaults.find(&format!("slo.{kind}[0].{key}"))?.value.inline()));
    ["availability", "ttft", "decode_rate", "stall", "goodput"].iter().filter_map(of).collect::<Vec<_>>().join(", ")
}

/// True for a key that its block requires. Such a key has no default of its own.
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
