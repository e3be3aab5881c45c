//! Masks JSON values that always differ between responses; every other byte is unchanged.

/// Members that differ in every response: ids, times and durations.
const MOMENTARY: &[&str] = &[
    "id",
    "created",
    "created_at",
    "request_id",
    // Durations: llama.cpp, vLLM, SGLang, Dynamo, TGI.
    "timings",
    "metrics",
    "meta_info",
    "nvext",
    "time_info",
    // The number of cached tokens differs between the first response and later ones.
    "prompt_tokens_details",
    "cached_tokens",
];

/// Members with the model's output, or derived from it.
const SPOKEN: &[&str] = &[
    "content",
    "text",
    "reasoning",
    "reasoning_content",
    "refusal",
    "arguments",
    "token_ids",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "usage",
];

/// Which members are masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hide {
    /// Ids, times and durations.
    Momentary,
    /// These, and the model's output.
    Spoken,
}

/// This JSON with `"?"`, `0` and `[]` in place of masked values. Text that is not JSON is returned unchanged.
pub(super) fn masked(json: &[u8], hide: Hide) -> Vec<u8> {
    let mut mask = Mask { json, at: 0, out: Vec::with_capacity(json.len()), hide };
    match mask.value(false, 0) {
        Some(()) if json.get(mask.at..).unwrap_or_default().trim_ascii().is_empty() => {
            mask.out.extend_from_slice(json.get(mask.at..).unwrap_or_default());
            mask.out
        }
        _ => json.to_vec(),
    }
}

/// Maximum nesting depth; deeper JSON is returned unchanged.
const MOST_DEPTH: usize = 64;

struct Mask<'a> {
    json: &'a [u8],
    at: usize,
    out: Vec<u8>,
    hide: Hide,
}

impl Mask<'_> {
    fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    /// Copies white space.
    fn blanks(&mut self) {
        while let Some(byte) = self.peek().filter(u8::is_ascii_whitespace) {
            self.out.push(byte);
            self.at += 1;
        }
    }

    /// Copies `byte`, which must be next.
    fn expect(&mut self, byte: u8) -> Option<()> {
        self.peek().filter(|next| *next == byte)?;
        self.out.push(byte);
        self.at += 1;
        Some(())
    }

    /// Range of the string that is next, quotes included; copies nothing.
    fn string(&mut self) -> Option<(usize, usize)> {
        let begin = self.at;
        self.peek().filter(|byte| *byte == b'"')?;
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some((begin, self.at))
    }

    fn copy(&mut self, (begin, end): (usize, usize)) {
        self.out.extend_from_slice(self.json.get(begin..end).unwrap_or_default());
    }

    fn value(&mut self, hidden: bool, depth: usize) -> Option<()> {
        if depth > MOST_DEPTH {
            return None;
        }
        self.blanks();
        match self.peek()? {
            b'{' => self.object(hidden, depth),
            b'[' => self.array(hidden, depth),
            b'"' => {
                let range = self.string()?;
                if hidden {
                    self.out.extend_from_slice(b"\"?\"")
                } else {
                    self.copy(range)
                }
                Some(())
            }
            b'-' | b'0'..=b'9' => {
                let begin = self.at;
                while self.peek().is_some_and(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) {
                    self.at += 1;
                }
                if hidden {
                    self.out.push(b'0')
                } else {
                    self.copy((begin, self.at))
                }
                Some(())
            }
            _ => {
                let rest = self.json.get(self.at..)?;
                let word = [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word))?;
                self.copy((self.at, self.at + word.len()));
                self.at += word.len();
                Some(())
            }
        }
    }

    fn object(&mut self, hidden: bool, depth: usize) -> Option<()> {
        self.expect(b'{')?;
        self.blanks();
        if self.expect(b'}').is_some() {
            return Some(());
        }
        loop {
            self.blanks();
            let (begin, end) = self.string()?;
            self.copy((begin, end));
            let key = self.json.get(begin + 1..end - 1).unwrap_or_default();
            let hides = |names: &[&str]| names.iter().any(|name| name.as_bytes() == key);
            let hidden = hidden || hides(MOMENTARY) || (self.hide == Hide::Spoken && hides(SPOKEN));
            self.blanks();
            self.expect(b':')?;
            self.value(hidden, depth + 1)?;
            self.blanks();
            if self.expect(b',').is_none() {
                return self.expect(b'}');
            }
        }
    }

    fn array(&mut self, hidden: bool, depth: usize) -> Option<()> {
        self.expect(b'[')?;
        let kept = self.out.len();
        self.blanks();
        if self.expect(b']').is_some() {
            return Some(());
        }
        loop {
            self.value(hidden, depth + 1)?;
            self.blanks();
            if self.expect(b',').is_none() {
                // The number of items is masked too.
                if hidden {
                    self.out.truncate(kept);
                }
                return self.expect(b']');
            }
        }
    }
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
            shown(event, Hide::Momentary),
            r#"{"id":"?", "created":0,"choices":[{"delta":{"content":"a\u00e9"},"finish_reason":null}]} "#
        );
        assert_eq!(
            shown(event, Hide::Spoken),
            r#"{"id":"?", "created":0,"choices":[{"delta":{"content":"?"},"finish_reason":null}]} "#
        );
    }

    #[test]
    fn all_values_within_a_masked_member_are_masked() {
        let timings = r#"{"timings":{"prompt_ms":1.5e-3,"on":true,"n":[1,[2]],"none":[]},"n":[1, 2]}"#;
        let hidden = r#"{"timings":{"prompt_ms":0,"on":true,"n":[],"none":[]},"n":[1, 2]}"#;
        assert_eq!(shown(timings, Hide::Momentary), hidden);
        let usage = r#"{"usage":{"completion_tokens":32}}"#;
        assert_eq!(shown(usage, Hide::Momentary), usage);
        assert_eq!(shown(usage, Hide::Spoken), r#"{"usage":{"completion_tokens":0}}"#);
    }

    #[test]
    fn text_that_is_not_json_is_unchanged() {
        let deep = "[".repeat(100);
        for text in ["[DONE]", "", "{\"id\":\"1\"", "{\"id\":\"1\"} x", "{\"id\":\"1\",}", "nul", "\"\\", deep.as_str()]
        {
            assert_eq!(shown(text, Hide::Spoken), text);
        }
    }
}
