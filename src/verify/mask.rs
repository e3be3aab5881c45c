//! Masks JSON values that differ between responses; every other byte is unchanged.

use serde::de::IgnoredAny;

/// Members that differ in every response: ids, times and durations. The objects with durations are those of llama.cpp,
/// vLLM, SGLang, Dynamo and TGI. The number of cached tokens differs between the first response and later ones.
const VARYING: &str = "id created created_at request_id timings metrics meta_info nvext time_info \
                       prompt_tokens_details cached_tokens";

/// Members with the model's output, or derived from it.
const OUTPUT: &str = "content text reasoning reasoning_content refusal arguments token_ids logprobs finish_reason \
                      stop_reason usage";

/// Which members are masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hide {
    /// Ids, times and durations.
    Varying,
    /// Ids, times, durations, and the model's output.
    Output,
}

impl Hide {
    fn hides(self, key: &[u8]) -> bool {
        let is_in = |names: &str| names.split(' ').any(|name| name.as_bytes() == key);
        is_in(VARYING) || (self == Hide::Output && is_in(OUTPUT))
    }
}

/// Returns the JSON with masked values replaced by `"?"`, `0` and `[]`. Text that is not JSON is returned unchanged.
pub(super) fn masked(json: &[u8], hide: Hide) -> Vec<u8> {
    if serde_json::from_slice::<IgnoredAny>(json).is_err() {
        return json.to_vec();
    }
    let mut out = Vec::with_capacity(json.len());
    // For each open object and array: whether it is masked, and where its contents start in `out`.
    let mut open: Vec<(bool, usize)> = Vec::new();
    // Whether the next value is masked.
    let mut hidden = false;
    let mut rest = json;
    while let Some(first) = rest.first() {
        let length = match first {
            b'"' => string_length(rest),
            b'-' | b'0'..=b'9' => {
                rest.iter().take_while(|byte| byte.is_ascii_digit() || b"-+.eE".contains(byte)).count()
            }
            _ => 1,
        };
        let (token, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        rest = after;
        match first {
            b'"' if rest.trim_ascii_start().starts_with(b":") => {
                let key = token.get(1..length - 1).unwrap_or_default();
                hidden = open.last().is_some_and(|(hidden, _)| *hidden) || hide.hides(key);
                out.extend_from_slice(token);
            }
            b'"' if hidden => out.extend_from_slice(b"\"?\""),
            b'-' | b'0'..=b'9' if hidden => out.push(b'0'),
            b'{' | b'[' => {
                out.push(*first);
                open.push((hidden, out.len()));
            }
            b'}' | b']' => {
                // The number of items of a masked array is masked too.
                if let Some((true, start)) = open.pop().filter(|_| *first == b']') {
                    out.truncate(start);
                }
                out.push(*first);
                hidden = open.last().is_some_and(|(hidden, _)| *hidden);
            }
            _ => out.extend_from_slice(token),
        }
    }
    out
}

/// Length of the string at the start of this JSON, quotes included.
fn string_length(json: &[u8]) -> usize {
    let mut escaped = false;
    let end = json.iter().skip(1).position(|byte| {
        let is_end = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        is_end
    });
    end.map_or(json.len(), |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(json: &str, hide: Hide) -> String {
        String::from_utf8(masked(json.as_bytes(), hide)).unwrap()
    }

    #[test]
    fn varying_members_are_masked_and_other_bytes_kept() {
        let event =
            r#"{"id":"chatcmpl-1\"2", "created":17,"choices":[{"delta":{"content":"a\u00e9"},"finish_reason":null}]} "#;
        assert_eq!(
            shown(event, Hide::Varying),
            r#"{"id":"?", "created":0,"choices":[{"delta":{"content":"a\u00e9"},"finish_reason":null}]} "#
        );
        assert_eq!(
            shown(event, Hide::Output),
            r#"{"id":"?", "created":0,"choices":[{"delta":{"content":"?"},"finish_reason":null}]} "#
        );
    }

    #[test]
    fn all_values_within_a_masked_member_are_masked() {
        let timings = r#"{"timings":{"prompt_ms":1.5e-3,"on":true,"n":[1,[2]],"none":[]},"n":[1, 2]}"#;
        let hidden = r#"{"timings":{"prompt_ms":0,"on":true,"n":[],"none":[]},"n":[1, 2]}"#;
        assert_eq!(shown(timings, Hide::Varying), hidden);
        let usage = r#"{"usage":{"completion_tokens":32}}"#;
        assert_eq!(shown(usage, Hide::Varying), usage);
        assert_eq!(shown(usage, Hide::Output), r#"{"usage":{"completion_tokens":0}}"#);
    }

    #[test]
    fn text_that_is_not_json_is_unchanged() {
        let deep = "[".repeat(100);
        for text in ["[DONE]", "", "{\"id\":\"1\"", "{\"id\":\"1\"} x", "{\"id\":\"1\",}", "nul", "\"\\", deep.as_str()]
        {
            assert_eq!(shown(text, Hide::Output), text);
        }
    }
}
