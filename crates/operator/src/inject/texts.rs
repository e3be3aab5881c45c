//! The texts of the checks before a pod is changed, and the words that start an engine, from
//! `charts/tokometer/files/preflight.yaml`, which the admission policy uses too.

use std::sync::LazyLock;

use tokometer_decode::Engine;

use crate::inject::value::Value;

static TEXTS: LazyLock<Value> = LazyLock::new(|| {
    serde_yaml::from_str(include_str!("../../../../charts/tokometer/files/preflight.yaml"))
        .expect("a committed file, which the unit tests read")
});

/// The words that start this engine, each followed by a space.
pub(super) fn starts(engine: Engine) -> Vec<String> {
    of_engine("starts", Some(engine)).unwrap_or_default().into_iter().map(|start| format!("{start} ")).collect()
}

/// The texts of a list, such as `tls`.
pub(super) fn list(name: &str) -> Vec<&'static str> {
    TEXTS.texts(name)
}

/// The texts of an engine in a map of lists, such as `follow`; `None` if the map does not contain the engine.
pub(super) fn of_engine(name: &str, engine: Option<Engine>) -> Option<Vec<&'static str>> {
    let all = TEXTS.get(name)?;
    engine.filter(|engine| all.get(engine.as_str()).is_some()).map(|engine| all.texts(engine.as_str()))
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
    fn texts_have_no_unknown_value_and_maps_name_engines() {
        let names = ["port", "moved", "admin", "mode", "flag", "host", "portFlag", "container", "secret"];
        let all = names.map(|name| (name, "x"));
        for kind in ["reasons", "warnings"] {
            let Some(Value::Map(entries)) = TEXTS.get(kind) else { panic!("{kind}") };
            for (name, _) in entries {
                let text = text(kind, name, &all);
                assert!(!text.contains('{') && text != *name, "{name}: {text}");
            }
        }
        for map in ["starts", "loopback", "follow", "register"] {
            let Some(Value::Map(entries)) = TEXTS.get(map) else { panic!("{map}") };
            assert!(entries.iter().all(|(name, _)| Engine::of_name(name).is_some()), "{map}");
        }
        let alone = list("alone");
        for engine in Engine::ALL.into_iter().filter(|engine| engine.info().listen.is_some()) {
            assert!(!starts(engine).is_empty(), "{engine:?}");
        }
        assert!(!alone.is_empty() && alone.into_iter().all(|name| Engine::of_name(name).is_some()));
    }
}
