//! `tokometer replay` of capture files: the reported requests equal those of the proxy for the same traffic.

mod real;
mod write;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokometer::replay::{self, Recording, Show};
use tokometer_observe::observer::Settings;

use crate::truth::captures;
use write::{FORMS, Form, PORT, Writer};

const JSON: Show = Show { json: true, timeline: false };
const TABLE: Show = Show { json: false, timeline: false };

/// Fields that are not compared: they come only from packets, or name the file.
const ADDED: [&str; 9] = [
    "recording",
    "time",
    "client",
    "server",
    "connection",
    "rtt_ms",
    "retransmits",
    "zero_window_ms",
    "ttft_network_share",
];

/// The output of `replay` for a capture, and its error.
fn replay_capture(path: &Path, ports: &[u16], show: Show) -> (String, Option<String>) {
    let mut out = Vec::new();
    let result = replay::print(path, ports, show, &Settings::default(), &mut out);
    (String::from_utf8(out).expect("the output is UTF-8"), result.err().map(|error| error.to_string()))
}

/// The requests of a capture.
fn requests(path: &Path, ports: &[u16]) -> Vec<Value> {
    let (out, error) = replay_capture(path, ports, JSON);
    assert_eq!(error, None, "{}", path.display());
    lines(&out)
}

fn lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect()
}

/// A request without [`ADDED`].
fn comparable(mut request: Value) -> Value {
    let members = request.as_object_mut().expect("an object");
    ADDED.iter().for_each(|name| drop(members.remove(*name)));
    request
}

/// A file with these contents in a temporary directory.
fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // Files are recognised by their contents.
    let path = folder.path().join("capture.jsonl");
    fs::write(&path, bytes).expect("the file is written");
    (folder, path)
}

fn recording(case: &str) -> Recording {
    Recording::read(&captures().join(format!("{case}.jsonl"))).expect("the recording is readable")
}

#[test]
fn capture_gives_the_same_requests_as_its_recording() {
    let all = Recording::find(&captures()).expect("there are recordings");
    assert!(all.len() > 250, "{}", all.len());
    for (n, path) in all.iter().enumerate() {
        let form = FORMS[n % FORMS.len()];
        let recording = Recording::read(path).expect("the recording is readable");
        let mut out = Vec::new();
        replay::print(path, &[], JSON, &Settings::default(), &mut out).expect("the recording is readable");
        let expected = lines(&String::from_utf8(out).expect("the output is UTF-8"));
        let (_folder, capture) = file(&Writer::recording(form, &recording));
        // Every second capture is read without a port, so the port must be detected.
        let found = requests(&capture, if n % 2 == 0 { &[PORT] } else { &[] });
        let [expected, found] = [expected, found].map(|all| all.into_iter().map(comparable).collect::<Vec<_>>());
        assert_eq!(found, expected, "{} as {form:?}", path.display());
    }
}

#[test]
fn requests_have_addresses_times_and_the_network() {
    let bytes = Writer::recording(FORMS[0], &recording("vllm-0.32.0/chat-stream-usage"));
    let (_folder, path) = file(&bytes);
    let all = requests(&path, &[]);
    let [request] = &all[..] else { panic!("one request") };
    assert_eq!(request["time"], "2026-09-21T14:13:20.000Z");
    assert_eq!((&request["client"], &request["server"]), (&"10.0.0.1:51234".into(), &"10.0.0.2:8000".into()));
    assert_eq!((request["rtt_ms"].as_f64(), request["retransmits"].as_u64()), (Some(1.0), Some(0)));
    let ttft = request["time_to_first_token_ms"].as_f64().expect("a stream");
    let share = request["ttft_network_share"].as_f64().expect("both times are known");
    assert!((share - 1.0 / (1.0 + ttft)).abs() < 1e-9, "{share} {ttft}");
    let (table, _) = replay_capture(&path, &[], TABLE);
    assert!(table.starts_with(&format!("{}: servers found: 10.0.0.2:{PORT} (HTTP)\n", path.display())), "{table}");
    assert!(
        table.contains("1 connections (0 in progress when captured first, 0 with TLS), 1 requests, 0 gaps"),
        "{table}"
    );
    let (timeline, _) = replay_capture(&path, &[], Show { json: false, timeline: true });
    assert!(timeline.contains("events per row") && !table.contains("events per row"), "{timeline}");
}

#[test]
fn truncated_packets_are_reported_and_not_guessed() {
    let form = Form { snaplen: 200, ..FORMS[0] };
    let (_folder, path) = file(&Writer::recording(form, &recording("vllm-0.32.0/chat-stream-usage")));
    let (table, error) = replay_capture(&path, &[], TABLE);
    assert_eq!(error, None);
    assert!(table.contains("1 gaps") && table.contains("have only their first bytes"), "{table}");
    let request = &requests(&path, &[])[0];
    assert_eq!((&request["outcome"], &request["output_tokens"]), (&"unobserved".into(), &Value::Null), "{request}");
}

#[test]
fn requests_during_a_clock_step_are_marked() {
    let mut stepped = recording("vllm-0.32.0/chat-stream-usage");
    let half = stepped.reads.len() / 2;
    stepped.reads[..half].iter_mut().for_each(|(at, _)| *at += Duration::from_secs(10));
    let (_folder, path) = file(&Writer::recording(FORMS[0], &stepped));
    let (table, error) = replay_capture(&path, &[], TABLE);
    assert_eq!(error, None);
    assert!(table.contains("the clock was set back 1 times"), "{table}");
    let request = &requests(&path, &[])[0];
    assert_eq!((&request["outcome"], &request["capture_loss"]), (&"ok".into(), &true.into()), "{request}");
}

#[test]
fn damaged_file_is_read_up_to_the_damage() {
    let mut bytes = Writer::recording(FORMS[0], &recording("vllm-0.32.0/chat-stream-usage"));
    bytes.extend([0; 7]);
    let (_folder, path) = file(&bytes);
    let (out, error) = replay_capture(&path, &[], JSON);
    assert_eq!(lines(&out)[0]["outcome"], "ok");
    let error = error.expect("the file is damaged");
    assert_eq!(
        error,
        format!(
            "{}: byte {}: the file ends in the middle of a packet; the packets before it were read",
            path.display(),
            bytes.len()
        )
    );
}

#[test]
fn files_without_readable_requests_are_explained() {
    let mut writer = Writer::new(FORMS[0]);
    writer.send(1, write::EPOCH, b"data: {}\n\n");
    let (_folder, path) = file(&writer.finish());
    let error = replay_capture(&path, &[], JSON).1.expect("there is no server");
    assert!(error.contains("no server found: 1 packets") && error.contains("--port"), "{error}");
    let (_folder, path) = file(&[0x1f, 0x8b, 8, 0]);
    let error = tokometer::replay::is_capture(&path).expect_err("it is compressed").to_string();
    assert!(error.contains("gunzip"), "{error}");
    let (_folder, path) = file(b"{\"t_us\":1}");
    assert!(!tokometer::replay::is_capture(&path).expect("it is not compressed"));
}
