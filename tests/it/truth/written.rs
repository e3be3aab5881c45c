//! Fixtures written by hand from an engine's source, for engines that could not be recorded: see
//! `tests/fixtures/written`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokometer::replay::{End, Recording};

use super::Case;

/// Loads all fixtures.
pub(super) fn written() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/written");
    let mut cases = Vec::new();
    for engine in folders(&folder) {
        for file in folders(&engine).into_iter().filter(|file| file.extension().is_some_and(|e| e == "http")) {
            cases.push(read(&file));
        }
    }
    assert!(cases.len() > 20, "only {} fixtures", cases.len());
    cases
}

fn folders(path: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the entry is readable").path()).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> Case {
    let text = fs::read_to_string(path).expect("the fixture is readable");
    let (comments, rest) = text.split_once(">>>\n").unwrap_or_else(|| panic!("{path:?}: no >>>"));
    let fact = |name: &str| {
        let mut lines =
            comments.lines().filter_map(|line| line.strip_prefix("# ")?.strip_prefix(name)?.strip_prefix(": "));
        lines.next()
    };
    let number = |name: &str| fact(name).map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{path:?}: {name}")));
    assert!(fact("source").is_some(), "{path:?}: missing `# source:`");
    let mut sections = rest.split("<<< ");
    let (head, body) = sections.next().and_then(|request| request.split_once("\n\n")).expect("missing request");
    let body = body.trim_end();
    let request = format!("{}\r\ncontent-length: {}\r\n\r\n{body}", head.replace('\n', "\r\n"), body.len());
    let (reads, end) = response(&sections.collect::<Vec<_>>(), path);
    let line: Vec<&str> = head.lines().next().unwrap_or_default().split(' ').collect();
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let meta = json!({
        "request": {"method": line[0], "path": line[1], "body": serde_json::from_str::<Value>(body).unwrap_or_default()},
        "response_head": String::from_utf8_lossy(&reads[0].1),
        "truth": {"completion_tokens": number("output"), "prompt_tokens": number("input")},
        "complete": end.is_none(),
        "outcome": fact("outcome").unwrap_or("ok"),
    });
    let engine = path.parent().map(|folder| folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let recording = Recording { path: path.to_owned(), request: request.into_bytes(), reads, end };
    Case::new(engine.unwrap_or_default(), name(path), meta, recording)
}

/// The reads with their times, and the end of the connection, if known.
type Response = (Vec<(Duration, Vec<u8>)>, Option<(Duration, End)>);

fn response(sections: &[&str], path: &Path) -> Response {
    let mut reads: Vec<(Duration, Vec<u8>)> = Vec::new();
    let (mut end, mut at, mut chunked) = (None, Duration::ZERO, false);
    for (number, section) in sections.iter().enumerate() {
        let (line, bytes) = section.split_once('\n').expect("the section line has an end");
        let mut words = line.split(' ');
        let ms = words.next().and_then(|ms| ms.parse::<f64>().ok()).unwrap_or_else(|| panic!("{path:?}: {line}"));
        at = Duration::from_secs_f64(ms / 1e3);
        end = match words.next() {
            Some("eof") => Some((at, End::Eof)),
            Some("reset") => Some((at, End::Reset)),
            Some("abort") => Some((at, End::ClientAbort)),
            Some(word) => panic!("{path:?}: {word}"),
            None => None,
        };
        if end.is_some() {
            continue;
        }
        if number > 0 {
            reads.push((at, chunk(bytes)));
            continue;
        }
        let (head, body) = bytes.split_once("\n\n").unwrap_or((bytes.trim_end(), ""));
        let head = head.replace('\n', "\r\n");
        chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let first = match (chunked, body) {
            (true, "") => format!("{head}\r\n\r\n").into_bytes(),
            (true, body) => [format!("{head}\r\n\r\n").into_bytes(), chunk(body)].concat(),
            (false, body) => {
                let body = body.trim_end();
                format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
            }
        };
        reads.push((at, first));
    }
    if end.is_none() && chunked {
        reads.push((at, b"0\r\n\r\n".to_vec()));
    }
    (reads, end)
}

fn chunk(bytes: &str) -> Vec<u8> {
    format!("{:x}\r\n{bytes}\r\n", bytes.len()).into_bytes()
}
