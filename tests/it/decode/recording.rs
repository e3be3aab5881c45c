//! Recordings of real servers (`tests/fixtures/captures`).

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokometer_decode::{Framing, Route};

/// One recorded response of a route that `decode` supports.
pub(crate) struct Recording {
    /// `engine/case`.
    pub(crate) name: String,
    pub(crate) route: Route,
    pub(crate) framing: Framing,
    /// The body without its chunked transfer coding.
    pub(crate) body: Vec<u8>,
    /// The recorder's metadata.
    pub(crate) meta: Value,
}

/// All supported recordings of this engine.
pub(crate) fn recordings(engine: &str) -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(engine);
    let mut names: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".meta.json").map(str::to_owned))
        .collect();
    names.sort();
    let all: Vec<_> = names.iter().filter_map(|name| read(&folder, engine, name)).collect();
    assert!(!all.is_empty(), "no recording of {engine}");
    all
}

fn read(folder: &Path, engine: &str, name: &str) -> Option<Recording> {
    let meta: Value = serde_json::from_slice(&fs::read(folder.join(format!("{name}.meta.json"))).unwrap()).unwrap();
    let route = Route::of_target(meta["request"]["path"].as_str()?);
    if !route.is_read() {
        return None;
    }
    let lines = fs::read_to_string(folder.join(format!("{name}.jsonl"))).unwrap();
    let mut bytes = Vec::new();
    for line in lines.lines() {
        let read: Value = serde_json::from_str(line).unwrap();
        if let Some(text) = read["b64"].as_str() {
            bytes.extend(STANDARD.decode(text).unwrap());
        }
    }
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let content_type = head.lines().find_map(|line| line.strip_prefix("content-type:"))?;
    let framing = Framing::of_content_type(content_type.as_bytes()).filter(|framing| *framing != Framing::Text)?;
    let rest = &bytes[end + 4..];
    let body = if head.contains("transfer-encoding: chunked") { without_chunks(rest) } else { rest.to_vec() };
    Some(Recording { name: format!("{engine}/{name}"), route, framing, body, meta })
}

fn without_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        let data = &rest[end + 2..];
        body.extend(&data[..size.min(data.len())]);
        rest = data.get(size + 2..).unwrap_or_default();
    }
    body
}
