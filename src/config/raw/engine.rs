//! The setting `observe.engine`: the name of an engine, or `auto`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

const AUTO: &str = "auto";

/// The engine behind a listener; `None`: detected from its responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engine(pub Option<tokometer_decode::Engine>);

impl Serialize for Engine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.map_or(AUTO, tokometer_decode::Engine::as_str))
    }
}

impl<'de> Deserialize<'de> for Engine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Engine, D::Error> {
        let name = String::deserialize(deserializer)?;
        let engine = tokometer_decode::Engine::of_name(&name);
        if engine.is_none() && name != AUTO {
            return Err(de::Error::invalid_value(de::Unexpected::Str(&name), &"an engine, or auto"));
        }
        Ok(Engine(engine))
    }
}

impl JsonSchema for Engine {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Engine".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let auto = (AUTO, "Detected from its responses.");
        let engines = tokometer_decode::Engine::ALL.map(|engine| (engine.as_str(), engine.meaning()));
        let one = |(name, meaning)| json_schema!({"const": name, "description": meaning, "type": "string"}).to_value();
        let names: Vec<Value> = std::iter::once(auto).chain(engines).map(one).collect();
        json_schema!({"oneOf": names})
    }
}
