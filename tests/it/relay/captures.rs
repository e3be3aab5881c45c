//! Every recording of a real server is forwarded unmodified, in the recorded reads.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use tokometer_observe::input::Direction;

use super::peer;
use super::peer::{Script, Step};
use super::rig::Rig;

/// Recordings: `<engine>/<case>.jsonl`, one object per read, and `<case>.meta.json` with the request.
const CAPTURES: &str = "tests/fixtures/captures";

#[test]
fn every_recording_is_forwarded_unmodified() {
    let cases = all();
    assert!(cases.len() >= 200, "only {} recordings in {CAPTURES}", cases.len());
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    for (index, case) in cases.iter().enumerate() {
        let script = script(case);
        let (name, request, response) = (&script.name, request(case), reads(case).0.concat());
        let direct = peer::play_tcp(&script, listener.local_addr().unwrap(), &listener);
        let relayed = peer::play_tcp(&script, rig.address(), &listener);
        assert_eq!(direct, relayed, "{name}");
        assert!(relayed.0.bytes == response && relayed.1.bytes == request, "{name}");
        let log = rig.watcher.closed(index);
        assert!(log.bytes(Direction::Request) == request && log.bytes(Direction::Response) == response, "{name}");
    }
}

/// All recordings.
pub(crate) fn all() -> Vec<PathBuf> {
    cases(Path::new(CAPTURES))
}

/// The script of a recording: the steps of its client and of its server.
pub(crate) fn script(case: &Path) -> Script {
    let request = request(case);
    let (reads, ending) = reads(case);
    let client = vec![Step::Send(request.clone()), Step::Read(reads.iter().map(Vec::len).sum())];
    let mut server = vec![Step::Read(request.len())];
    server.extend(reads.into_iter().map(Step::Send));
    let (client, server) = match ending.as_deref() {
        Some("reset") => {
            server.extend([Step::Meet, Step::Reset]);
            ([client, vec![Step::Meet, Step::ReadEnd]].concat(), server)
        }
        Some("client_abort" | "client_timeout") => {
            server.push(Step::ReadEnd);
            ([client, vec![Step::Reset]].concat(), server)
        }
        Some("eof") => {
            server.push(Step::Close);
            ([client, vec![Step::ReadEnd]].concat(), server)
        }
        _ => {
            server.push(Step::ReadEnd);
            (client, server)
        }
    };
    Script { name: case.display().to_string(), client, server }
}

fn cases(folder: &Path) -> Vec<PathBuf> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            cases.extend(self::cases(&path));
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            cases.push(path);
        }
    }
    cases.sort();
    cases
}

fn request(case: &Path) -> Vec<u8> {
    let meta: Value = serde_json::from_slice(&std::fs::read(case.with_extension("meta.json")).unwrap()).unwrap();
    STANDARD.decode(meta["request_raw_b64"].as_str().unwrap()).unwrap()
}

/// The server's writes as recorded, and how the recording ended.
pub(crate) fn reads(case: &Path) -> (Vec<Vec<u8>>, Option<String>) {
    let mut reads = Vec::new();
    let mut ending = None;
    for line in std::fs::read_to_string(case).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        match line["b64"].as_str() {
            Some(bytes) => reads.push(STANDARD.decode(bytes).unwrap()),
            None => ending = line["event"].as_str().map(str::to_owned),
        }
    }
    (reads, ending)
}
