//! Traffic of real servers: every recording is parsed without a fault, and the body equals that of a naive parser.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use tokometer_wire::Limits;

use crate::wire::traffic::{Outcome, Reported, Step, ask, feed, feed_random_splits, reply};

/// One request to a real server and its response.
struct Recording {
    name: PathBuf,
    request: Vec<u8>,
    /// The reads of the client, in order.
    reads: Vec<Vec<u8>>,
    /// The recording contains the end of the response.
    complete: bool,
    /// The server sent its FIN.
    fin: bool,
}

fn decode(text: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(text.as_str().unwrap()).unwrap()
}

fn load(meta: &Path) -> Recording {
    let name = meta.to_owned();
    let reads = meta.to_str().unwrap().replace(".meta.json", ".jsonl");
    let meta: Value = serde_json::from_slice(&fs::read(meta).unwrap()).unwrap();
    let lines: Vec<Value> =
        fs::read_to_string(reads).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Recording {
        name,
        request: decode(&meta["request_raw_b64"]),
        reads: lines.iter().filter(|line| line.get("b64").is_some()).map(|line| decode(&line["b64"])).collect(),
        complete: meta["complete"].as_bool().unwrap(),
        fin: lines.iter().any(|line| line["event"] == "eof"),
    }
}

fn recordings() -> Vec<Recording> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let engines = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let files = engines.flat_map(|engine| fs::read_dir(engine).unwrap().map(|entry| entry.unwrap().path()));
    files.filter(|path| path.to_str().unwrap().ends_with(".meta.json")).map(|path| load(&path)).collect()
}

/// The body after the first final headers, parsed with all bytes available.
fn naive_body(response: &[u8]) -> Vec<u8> {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    let (head, mut rest) = response.split_at(end);
    let head = String::from_utf8_lossy(head).to_lowercase();
    if head.starts_with("http/1.1 100 ") {
        return naive_body(rest);
    }
    if !head.contains("transfer-encoding: chunked") {
        return rest.to_owned();
    }
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|bytes| bytes == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        let data = &rest[line + 2..];
        body.extend_from_slice(&data[..size.min(data.len())]);
        if data.len() < size + 2 {
            break;
        }
        rest = &data[size + 2..];
    }
    body
}

fn body(outcome: &Outcome) -> Vec<u8> {
    let bodies = outcome.reported.iter().filter_map(|reported| match reported {
        Reported::ResponseBody(body) => Some(body.as_slice()),
        _ => None,
    });
    bodies.collect::<Vec<_>>().concat()
}

#[test]
fn every_recording_is_parsed_without_fault_at_every_split() {
    let recordings = recordings();
    assert!(recordings.len() > 200, "{} recordings", recordings.len());
    let mut complete = 0;
    for recording in recordings {
        let name = recording.name.display();
        let fin = recording.fin.then_some(Step::ServerFin);
        let as_read: Vec<Step> =
            [ask(&recording.request)].into_iter().chain(recording.reads.iter().map(reply)).chain(fin.clone()).collect();
        let response = recording.reads.concat();
        let joined: Vec<Step> = [ask(&recording.request), reply(&response)].into_iter().chain(fin).collect();

        let outcome = feed(Limits::default(), &as_read);
        assert_eq!(outcome.fault, None, "{name}");
        assert_eq!(outcome, feed(Limits::default(), &joined), "{name}");
        feed_random_splits(Limits::default(), &joined, &outcome);

        assert!(outcome.reported.contains(&Reported::RequestEnd), "{name}: the request is complete");
        let sent = recording.request.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        if sent < recording.request.len() {
            assert!(outcome.reported.contains(&Reported::RequestBody(recording.request[sent..].to_owned())), "{name}");
        }
        if response.is_empty() {
            assert_eq!((outcome.open, outcome.response_open), (1, false), "{name}");
            continue;
        }
        assert_eq!(body(&outcome), naive_body(&response), "{name}");
        if recording.complete {
            complete += 1;
            assert_eq!((outcome.reported.last(), outcome.open), (Some(&Reported::ResponseEnd), 0), "{name}");
        } else {
            assert_eq!((outcome.open, outcome.response_open), (1, true), "{name}");
        }
    }
    assert!(complete > 200, "{complete} complete recordings");
}
