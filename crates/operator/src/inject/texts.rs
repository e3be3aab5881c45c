//! The texts of the checks before a pod is changed, and the words that start an engine, from
//! `charts/tokometer/files/preflight.yaml`, which the admission policy uses too.

use std::sync::LazyLock;

use tokometer_decode::Engine;

use crate::inject::value::Value;

static TEXTS: LazyLock<Value> = LazyLock::new(|| {
    serde_yaml::from_str(include_str!("../../../../charts/tokometer/files/preflight.yaml"))
        .expect("a committed file, which the unit tests read")
});

/// The words that start this engine in shell text, each followed by a space.
pub(super) fn starts(engine: Engine) -> Vec<String> {
    let starts = TEXTS.get("starts").map(|all| all.texts(engine.as_str())).unwrap_or_default();
    starts.into_iter().map(|start| format!("{start} ")).collect()
}

/// The flags with which engines serve TLS.
pub(super) fn tls_flags() -> Vec<&'static str> {
    TEXTS.texts("tls")
}

/// The text of a reason or warning.
pub(super) fn text(kind: &str, name: &str, values: &[(&str, &str)]) -> String {
    let text = TEXTS.get(kind).and_then(|all| all.text(name)).unwrap_or(name);
    values.iter().fold(text.to_owned(), |text, (key, value)| text.replace(&format!("{{{key}}}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_no_unknown_value_and_starts_name_engines() {
        let names = ["port", "admin", "mode", "flag", "portFlag", "container", "secret"];
        let all = names.map(|name| (name, "x"));
        for kind in ["reasons", "warnings"] {
            let Some(Value::Map(entries)) = TEXTS.get(kind) else { panic!("{kind}") };
            for (name, _) in entries {
                let text = text(kind, name, &all);
                assert!(!text.contains('{') && text != *name, "{name}: {text}");
            }
        }
        let Some(Value::Map(entries)) = TEXTS.get("starts") else { panic!("starts") };
        for (name, _) in entries {
            assert!(!starts(Engine::of_name(name).unwrap()).is_empty(), "{name}");
        }
    }
}
