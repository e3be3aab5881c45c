//! Committed files that are generated from the code, and the example configurations. `UPDATE=1` regenerates them.

use std::path::Path;

use tokometer::config;
use tokometer::config::{Config, Environment, Flags};
use tokometer_decode::Engine;

fn read(text: &str, name: &str) -> Config {
    Config::from_layers(Some((Path::new(name), text)), &Flags::default(), &Environment::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Compares a committed file with the generated text.
pub(crate) fn same_as_committed(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::vars_os().any(|(name, _)| name == "UPDATE") {
        std::fs::write(&path, made).expect("the repository is writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "{name} is not up to date; run UPDATE=1 cargo test --test it config_documents");
}

#[test]
fn default_file_is_up_to_date_and_parses_to_the_defaults() {
    let made = config::default_yaml();
    same_as_committed("config/tokometer.yaml", &made);
    let read_back = read(&made, "config/tokometer.yaml");
    assert_eq!(*read_back.raw(), config::raw::Raw::default());
    assert_eq!(read_back.settings, read("", "none").settings);
    assert_eq!(read_back.warnings, []);
}

#[test]
fn every_key_of_the_default_file_has_a_comment() {
    let made = config::default_yaml();
    let mut documented = false;
    for (number, line) in made.lines().enumerate() {
        let is_key = line.trim_start().trim_start_matches("- ").split_once(':').is_some();
        match line.trim_start() {
            comment if comment.starts_with('#') => documented = true,
            "" => documented = false,
            _ if is_key => {
                // The first key of a list item needs no comment, because the comment of the list describes the item.
                assert!(documented || line.contains("- "), "line {}: {line}", number + 1);
                documented = false;
            }
            _ => {}
        }
    }
}

#[test]
fn schema_is_up_to_date_and_rejects_unknown_keys() {
    let schema = config::schema();
    same_as_committed("config/schema.json", &format!("{:#}\n", schema));
    fn closed(path: &str, schema: &serde_json::Value) {
        if let Some(keys) = schema.get("properties").and_then(|keys| keys.as_object()) {
            assert_eq!(schema.get("additionalProperties"), Some(&false.into()), "{path} accepts unknown keys");
            for (key, schema) in keys {
                assert!(schema.get("description").is_some(), "{path}.{key} has no documentation");
                closed(&format!("{path}.{key}"), schema);
            }
        }
        if let Some(items) = schema.get("items") {
            closed(&format!("{path}[]"), items);
        }
    }
    closed("", &schema);
}

#[test]
fn each_example_loads_without_warnings() {
    let engines = [
        ("vllm", Some("vllm")),
        ("sglang", Some("sglang")),
        ("llama-cpp", Some("llama_cpp")),
        ("tgi", Some("tgi")),
        ("ollama", Some("ollama")),
        ("tensorrt-llm", Some("tensorrt_llm")),
    ];
    for (name, engine) in engines {
        let name = format!("config/{name}.yaml");
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&name)).expect(&name);
        let config = read(&text, &name);
        assert_eq!(config.settings.observe.engine.0.map(Engine::as_str), engine, "{name}");
        assert_eq!(config.warnings, [], "{name}");
    }
}
