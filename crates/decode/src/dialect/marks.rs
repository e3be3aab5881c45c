//! Engine marks in `system_fingerprint`, `id` and `model`.

use crate::EngineFacts;

/// The mark in `system_fingerprint`. vLLM: `vllm-0.32.0-9bb3537e`; llama.cpp: `b<build>-<commit>`; Ollama: `fp_ollama`;
/// TGI 3.3: its version and `native`, `dev0` or a commit (`3.3.6-sha-db931fc`).
pub(super) fn of_fingerprint(word: &[u8]) -> EngineFacts {
    if word.starts_with(b"vllm-") {
        return EngineFacts::VLLM;
    }
    if word == b"fp_ollama" {
        return EngineFacts::OLLAMA;
    }
    if is_tgi_version(word) {
        return EngineFacts::TGI;
    }
    let build = word.strip_prefix(b"b").unwrap_or_default();
    let digits = count(build, u8::is_ascii_digit);
    if digits > 0 && build.get(digits) == Some(&b'-') { EngineFacts::LLAMA_CPP } else { EngineFacts::default() }
}

/// The mark in `id`: formats that few engines use (from recordings of vLLM 0.32 with both front ends and of Ollama
/// 0.17).
pub(super) fn of_id(id: &[u8]) -> EngineFacts {
    let hex = |rest: &[u8], len: usize| rest.len() == len && count(rest, is_lower_hex) == len;
    let digits = |rest: &[u8], most: usize| (1..=most).contains(&rest.len()) && rest.iter().all(u8::is_ascii_digit);
    if let Some(rest) = id.strip_prefix(b"chatcmpl-").or(id.strip_prefix(b"cmpl-")) {
        return match rest {
            rest if hex(rest, 8) && !digits(rest, 8) => EngineFacts::ID_OF_8_HEX,
            rest if hex(rest, 16) => EngineFacts::ID_OF_16_HEX,
            rest if digits(rest, 3) => EngineFacts::OLLAMA_ID,
            _ => EngineFacts::default(),
        };
    }
    if id.strip_prefix(b"msg_").is_some_and(|rest| hex(rest, 24))
        || id.strip_prefix(b"resp_").is_some_and(|rest| digits(rest, 6))
    {
        return EngineFacts::OLLAMA_ID;
    }
    let pooled: [&[u8]; 4] = [b"embd-", b"pooling-", b"score-", b"classify-"];
    if pooled.iter().filter_map(|prefix| id.strip_prefix(*prefix)).any(|rest| hex(rest, 16) || hex(rest, 32)) {
        return EngineFacts::VLLM_POOLING_ID;
    }
    EngineFacts::default()
}

/// The mark in `model`: transformers serve 5 appends the revision (`org/name@main`).
pub(super) fn of_model(model: &[u8]) -> EngineFacts {
    if model.ends_with(b"@main") { EngineFacts::MODEL_AT_MAIN } else { EngineFacts::default() }
}

/// True for three numbers separated by dots, a dash, and a suffix set by TGI's build.
fn is_tgi_version(word: &[u8]) -> bool {
    let mut rest = word;
    for end in [b'.', b'.', b'-'] {
        let digits = count(rest, u8::is_ascii_digit);
        match rest.get(digits..).and_then(<[u8]>::split_first) {
            Some((byte, after)) if digits > 0 && *byte == end => rest = after,
            _ => return false,
        }
    }
    [&b"native"[..], b"sha-", b"dev"].iter().any(|build| rest.starts_with(build))
}

fn count(bytes: &[u8], is: impl Fn(&u8) -> bool) -> usize {
    bytes.iter().take_while(|byte| is(byte)).count()
}

fn is_lower_hex(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_map_to_their_engine() {
        for (word, facts) in [
            ("vllm-0.32.0-9bb3537e", EngineFacts::VLLM),
            ("fp_ollama", EngineFacts::OLLAMA),
            ("b0-unknown", EngineFacts::LLAMA_CPP),
            ("b6123-0c1e5709", EngineFacts::LLAMA_CPP),
            ("3.3.6-dev0-sha-db931fc", EngineFacts::TGI),
            ("2.0.1-native", EngineFacts::TGI),
            ("1.2.3-other", EngineFacts::default()),
            ("1.2-native", EngineFacts::default()),
            ("fp_44709d6fcb", EngineFacts::default()),
            ("b-", EngineFacts::default()),
            ("", EngineFacts::default()),
        ] {
            assert_eq!(of_fingerprint(word.as_bytes()), facts, "{word}");
        }
    }

    #[test]
    fn ids_and_models_map_to_engine_marks() {
        for (id, facts) in [
            ("chatcmpl-0a1b2c3d", EngineFacts::ID_OF_8_HEX),
            ("cmpl-deadbeef", EngineFacts::ID_OF_8_HEX),
            ("chatcmpl-12345678", EngineFacts::default()),
            ("chatcmpl-0a1b2c3d0a1b2c3d", EngineFacts::ID_OF_16_HEX),
            ("chatcmpl-my-req-0001", EngineFacts::default()),
            ("chatcmpl-520", EngineFacts::OLLAMA_ID),
            ("resp_774256", EngineFacts::OLLAMA_ID),
            ("msg_5885c0367b44dcaccc5d10cb", EngineFacts::OLLAMA_ID),
            ("msg_01XFDUDYJgAACzvnptvVoYEL", EngineFacts::default()),
            ("embd-a1c2c80ff5e5a5d2", EngineFacts::VLLM_POOLING_ID),
            ("embd-my-own", EngineFacts::default()),
            ("", EngineFacts::default()),
        ] {
            assert_eq!(of_id(id.as_bytes()), facts, "{id}");
        }
        assert_eq!(of_model(b"org/name@main"), EngineFacts::MODEL_AT_MAIN);
        assert_eq!(of_model(b"name@mainly"), EngineFacts::default());
    }
}
