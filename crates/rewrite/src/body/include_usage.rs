//! Requests the token counts of a stream: sets `stream_options.include_usage` in the body of a chat or completions
//! request. Every other byte of the body stays unmodified.

use std::ops::Range;

use crate::body::members::{Member, members};

/// The option, as a member of the body and as the value of `stream_options`.
const MEMBER: &str = r#","stream_options":{"include_usage":true}"#;
const OPTIONS: &str = r#"{"include_usage":true}"#;

/// Maximum number of bytes that an edit adds to a body.
pub(crate) const ADDED_BYTES: usize = MEMBER.len();

/// Why a body is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unchanged {
    /// The client set `stream_options`: it requested the counts, or the effect of its options depends on the engine.
    Asked,
    /// The response is not a stream and has the counts anyway.
    NotStreamed,
    /// Not a JSON object, or `stream_options` is not what the API defines.
    NotJson,
}

/// A change to a body: the bytes at `at` are replaced by `with`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    at: Range<usize>,
    with: &'static str,
}

impl Edit {
    /// Changes the body, which is the one passed to [`edit`]. Allocates nothing if [`ADDED_BYTES`] are free.
    pub(crate) fn apply(&self, body: &mut Vec<u8>) {
        body.splice(self.at.clone(), self.with.bytes());
    }
}

/// The change that requests the token counts of this request's stream.
///
/// Of duplicate keys, the last one counts, as in the JSON parsers of Python and llama.cpp.
pub(crate) fn edit(body: &[u8]) -> Result<Edit, Unchanged> {
    let (mut stream, mut options, mut end) = (None, None, 0);
    members(body, |member| {
        end = member.at.end;
        if member.is("stream") {
            stream = Some(member.value == "true");
        } else if member.is("stream_options") {
            options = Some(member.at);
        }
    })
    .ok_or(Unchanged::NotJson)?;
    if stream != Some(true) {
        return Err(Unchanged::NotStreamed);
    }
    let Some(at) = options else { return Ok(Edit { at: end..end, with: MEMBER }) };
    let value = body.get(at.clone()).unwrap_or_default();
    if value == b"null" {
        return Ok(Edit { at, with: OPTIONS });
    }
    let is_off = |member: &Member<'_>| matches!(member.value, "false" | "null");
    let (mut continuous, mut include) = (false, None);
    members(value, |member| {
        if member.is("continuous_usage_stats") {
            continuous = !is_off(&member);
        } else if member.is("include_usage") {
            include = Some(member);
        }
    })
    .ok_or(Unchanged::NotJson)?;
    // With this option and `include_usage`, vLLM writes counts to every event, and `strip_usage` would not remove them.
    if continuous {
        return Err(Unchanged::Asked);
    }
    match include {
        Some(option) if is_off(&option) => {
            Ok(Edit { at: at.start + option.at.start..at.start + option.at.end, with: "true" })
        }
        // If `include_usage` is absent, the default is true in vLLM, and false in SGLang and llama.cpp.
        None => Err(Unchanged::Asked),
        Some(option) if option.value == "true" => Err(Unchanged::Asked),
        Some(_) => Err(Unchanged::NotJson),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn edited(body: &str) -> Result<String, Unchanged> {
        edit(body.as_bytes()).map(|edit| {
            let mut bytes = body.as_bytes().to_vec();
            edit.apply(&mut bytes);
            assert!(bytes.len() <= body.len() + ADDED_BYTES);
            String::from_utf8(bytes).unwrap()
        })
    }

    #[test]
    fn option_is_added_and_no_other_byte_changes() {
        for (body, expected) in [
            (r#"{"stream":true}"#, r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
            (
                "{ \"stream\" : true ,\r\n \"n\": 1.0 \n}\n",
                "{ \"stream\" : true ,\r\n \"n\": 1.0,\"stream_options\":{\"include_usage\":true} \n}\n",
            ),
            (r#"{"stream_options":null,"stream":true}"#, r#"{"stream_options":{"include_usage":true},"stream":true}"#),
            (
                r#"{"stream_options": {"include_usage": false, "x": 1}, "stream":true}"#,
                r#"{"stream_options": {"include_usage": true, "x": 1}, "stream":true}"#,
            ),
            (
                r#"{"stream":true,"stream_options":{"continuous_usage_stats":false,"include_usage":null }}"#,
                r#"{"stream":true,"stream_options":{"continuous_usage_stats":false,"include_usage":true }}"#,
            ),
            // The last of duplicate keys counts, and escaped keys are the same keys.
            (
                r#"{"stream":false,"stream":true}"#,
                r#"{"stream":false,"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stre\u0061m":true,"seed":123456789012345678901234567890}"#,
                r#"{"stre\u0061m":true,"seed":123456789012345678901234567890,"stream_options":{"include_usage":true}}"#,
            ),
        ] {
            assert_eq!(edited(body).as_deref(), Ok(expected), "{body}");
        }
    }

    #[test]
    fn other_bodies_are_left_as_they_are() {
        for (body, why) in [
            (r#"{"stream":true,"stream_options":{"include_usage":true}}"#, Unchanged::Asked),
            (r#"{"stream":true,"stream_options":{}}"#, Unchanged::Asked),
            (r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#, Unchanged::Asked),
            (
                r#"{"stream":true,"stream_options":{"include_usage":false,"continuous_usage_stats":true}}"#,
                Unchanged::Asked,
            ),
            (r#"{"stream":true,"stream":false}"#, Unchanged::NotStreamed),
            (r#"{"messages":[{"stream":true}]}"#, Unchanged::NotStreamed),
            (r#"{"stream":"true"}"#, Unchanged::NotStreamed),
            ("{}", Unchanged::NotStreamed),
            ("", Unchanged::NotJson),
            (r#"{"stream":true"#, Unchanged::NotJson),
            (r#"{"stream":true,"top_p":NaN}"#, Unchanged::NotJson),
            (r#"{"stream":true,"stream_options":[]}"#, Unchanged::NotJson),
            (r#"{"stream":true,"stream_options":{"include_usage":1}}"#, Unchanged::NotJson),
        ] {
            assert_eq!(edited(body), Err(why), "{body}");
        }
    }

    /// A JSON text of an object: keys with and without escapes, duplicates, odd spacing, numbers of any length.
    fn object() -> impl Strategy<Value = String> {
        let space = "[ \t\r\n]{0,2}";
        let number = "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?";
        let leaf = prop_oneof![
            Just("true".to_owned()),
            Just("false".to_owned()),
            Just("null".to_owned()),
            number.prop_map(|number| number),
            any::<String>().prop_map(|text| Value::from(text).to_string()),
        ];
        let value = leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
                prop::collection::vec(("[a-c]", inner), 0..4).prop_map(|members| {
                    let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
                    format!("{{{}}}", members.join(" ,"))
                }),
            ]
        });
        let key = prop_oneof![
            4 => "[a-z]{1,3}",
            1 => Just("stream".to_owned()),
            1 => Just("str\\u0065am".to_owned()),
            1 => Just("stream_options".to_owned()),
            1 => Just("include_usage".to_owned()),
        ];
        let options = prop_oneof![
            3 => value,
            1 => Just("{\"include_usage\":false}".to_owned()),
            1 => Just("{ \"continuous_usage_stats\" : true, \"include_usage\":null}".to_owned()),
            2 => Just("true".to_owned()),
        ];
        let member = (space, key, space, space, options, space)
            .prop_map(|(a, key, b, c, value, d)| format!("{a}\"{key}\"{b}:{c}{value}{d}"));
        (prop::collection::vec(member, 0..6), space, space)
            .prop_map(|(members, before, after)| format!("{before}{{{}}}{after}", members.join(",")))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        /// The changed body differs from the original in one place, and only in the value of this option.
        #[test]
        fn changed_body_is_the_original_with_the_option(body in object()) {
            // serde_json's map keeps the last of duplicate keys.
            let mut expected: Value = serde_json::from_str(&body).unwrap();
            match edit(body.as_bytes()) {
                Ok(edit) => {
                    let text = edited(&body).unwrap();
                    let changed: Value = serde_json::from_str(&text).unwrap();
                    prop_assert_eq!(&expected["stream"], &Value::Bool(true));
                    if !expected["stream_options"].is_object() {
                        expected["stream_options"] = Value::Object(Default::default());
                    }
                    expected["stream_options"]["include_usage"] = Value::Bool(true);
                    prop_assert_eq!(changed, expected);
                    prop_assert!(text.starts_with(&body[..edit.at.start]));
                    prop_assert!(text.ends_with(&body[edit.at.end..]));
                }
                Err(Unchanged::Asked) => {
                    let options = &expected["stream_options"];
                    let asked = [&Value::Null, &Value::Bool(false)].iter().all(|off| options.get("include_usage") != Some(off));
                    prop_assert!(options.is_object() && (asked || options.get("continuous_usage_stats").is_some()));
                }
                Err(Unchanged::NotStreamed) => prop_assert_ne!(&expected["stream"], &Value::Bool(true)),
                Err(Unchanged::NotJson) => prop_assert!(!expected["stream_options"].is_null()),
            }
        }
    }
}
