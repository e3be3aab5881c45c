//! The path of a request target, as servers read it.
//!
//! Servers differ, and the server of a listener may be unknown. So a path is normalized in every way in which some
//! server does, although a target that only another server would accept then counts for an API that rejects it:
//!
//! - uvicorn (vLLM, SGLang, LMDeploy, TensorRT-LLM), llama.cpp and Ollama (Go) decode escapes, also `%2F`, once.
//!   uvicorn and llama.cpp keep invalid escapes. llama.cpp also decodes `%u0063`. Starlette's routes match a path with
//!   a line feed at its end, because their patterns end with `$`.
//! - axum (vLLM's Rust front end, TGI, Dynamo) and Triton compare the path without decoding it, so `%2F` may be a part
//!   of a model name. Therefore, the path as received is compared too.
//! - Proxies in front of a server (nginx, Envoy) merge slashes and remove dot segments. The engines do neither.
//! - Starlette and Go redirect a request with a trailing slash.
//! - httptools (uvicorn's default), axum and Go accept the absolute form, of any scheme.
//! - httptools and llama.cpp drop a fragment. No server drops `;parameters`, and none ignores case.

/// The path of a target, without scheme, authority, query and fragment.
pub(super) fn of_target(target: &str) -> &str {
    let end = memchr::memchr2(b'?', b'#', target.as_bytes()).unwrap_or(target.len());
    let target = target.get(..end).unwrap_or(target);
    if target.starts_with('/') {
        return target;
    }
    // The authority is optional for Go: `http:/v1/models`.
    match target.split_once(':').map(|(_, rest)| (rest, rest.strip_prefix("//"))) {
        Some((_, Some(rest))) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"),
        Some((rest, None)) if rest.starts_with('/') => rest,
        _ => target,
    }
}

/// The path without a trailing slash.
pub(super) fn without_slash(path: &str) -> &str {
    if path == "/" { path } else { path.strip_suffix('/').unwrap_or(path) }
}

/// Longest path that is normalized. The longest path of an API has about 200 bytes, so 600 if all of it is escaped. A
/// client can repeat a large path with a few bytes (HPACK), and each repetition would cost as much as the path.
const LONGEST: usize = 1024;

/// The path with escapes decoded, slashes merged, and dot segments and a trailing slash removed. `None` if the path has
/// none of these except a trailing slash, or is longer than [`LONGEST`].
pub(super) fn normal(path: &str) -> Option<String> {
    if path.len() > LONGEST {
        return None;
    }
    let is_odd = |pair: &[u8]| matches!(pair, [b'%', _] | [b'/', b'/' | b'.']);
    if !path.as_bytes().windows(2).any(is_odd) {
        return None;
    }
    let decoded = decoded(path.as_bytes());
    let decoded = String::from_utf8_lossy(&decoded);
    let decoded = decoded.strip_suffix('\n').unwrap_or(&decoded);
    let mut normal = String::with_capacity(decoded.len());
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => normal.truncate(normal.rfind('/').unwrap_or(0)),
            segment => {
                normal.push('/');
                normal.push_str(segment);
            }
        }
    }
    Some(if normal.is_empty() { "/".to_owned() } else { normal })
}

/// The bytes of a path with its escapes decoded once. Invalid escapes are kept.
fn decoded(mut path: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    while let [byte, rest @ ..] = path {
        path = rest;
        let escape = Some(rest).filter(|_| *byte == b'%').and_then(escape);
        let Some((char, length)) = escape else {
            decoded.push(*byte);
            continue;
        };
        match char {
            Escaped::Byte(byte) => decoded.push(byte),
            Escaped::Char(char) => decoded.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
        path = rest.get(length..).unwrap_or_default();
    }
    decoded
}

enum Escaped {
    Byte(u8),
    Char(char),
}

/// The escape whose text after the percent sign begins here, and the length of that text.
fn escape(text: &[u8]) -> Option<(Escaped, usize)> {
    let number =
        |digits: &[u8]| digits.iter().try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?));
    match text {
        [b'u', a, b, c, d, ..] => Some((Escaped::Char(number(&[*a, *b, *c, *d]).and_then(char::from_u32)?), 5)),
        [a, b, ..] => Some((Escaped::Byte(number(&[*a, *b])? as u8), 2)),
        _ => None,
    }
}
