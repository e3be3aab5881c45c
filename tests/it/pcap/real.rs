//! Files that tcpdump wrote while the proxy measured the same traffic (`tests/fixtures/pcap/README.md`).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::pcap::{TABLE, comparable, replay_capture, requests};

/// Ports of the proxy and of the server behind it.
const PROXY: u16 = 18_000;
const SERVER: u16 = 18_001;

/// Maximum difference between the proxy's times and the packets' times, in milliseconds. The machine was busy with
/// other work, and the kernel stamps packets before the proxy's thread runs.
const TOLERANCE_MS: f64 = 5.0;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pcap").join(name)
}

/// The requests that the proxy logged, ordered by request id.
fn logged() -> Vec<Value> {
    let log = fs::read_to_string(fixture("requests.jsonl")).expect("the fixture exists");
    ordered(log.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect())
}

fn ordered(mut all: Vec<Value>) -> Vec<Value> {
    all.sort_by_key(|request| request["request_id"].as_str().expect("the client sent one").to_owned());
    all
}

/// Compares the requests of a capture with those in the proxy's log. Returns the largest difference of a time, in
/// milliseconds.
fn compare(name: &str, port: u16) -> f64 {
    let found = ordered(requests(&fixture(name), &[port]));
    let expected = logged();
    assert_eq!(found.len(), expected.len(), "{name}");
    let mut greatest = 0.0_f64;
    for (found, expected) in found.into_iter().map(comparable).zip(expected.into_iter().map(comparable)) {
        let (found, expected) = (found.as_object().expect("an object"), expected.as_object().expect("an object"));
        assert!(found.keys().eq(expected.keys()), "{name}: {:?}", found.keys());
        for (key, value) in found {
            let other = &expected[key];
            // Times differ within a tolerance, and so do rates, which are computed from times. Other values are equal.
            let (time, rate) = (key.ends_with("_ms"), key.starts_with("decode_tokens_per_second"));
            match value.as_f64().zip(other.as_f64()).filter(|_| time || rate) {
                Some((one, other)) if time => greatest = greatest.max((one - other).abs()),
                Some((one, other)) => assert!((one / other - 1.0).abs() < 0.05, "{name}: {key} {one} {other}"),
                None => assert_eq!(value, other, "{name}: {key} of {found:?}"),
            }
        }
    }
    greatest
}

#[test]
fn tcpdump_files_give_what_the_proxy_counted() {
    for (name, port) in [("veth.pcap", PROXY), ("lo.pcap", SERVER), ("any.pcap", PROXY), ("any.pcap", SERVER)] {
        let greatest = compare(name, port);
        assert!(greatest < TOLERANCE_MS, "{name} port {port}: times differ by {greatest} ms");
    }
}

#[test]
fn packets_and_the_kernel_show_the_same_network() {
    let found = ordered(requests(&fixture("veth.pcap"), &[PROXY]));
    for (packets, kernel) in found.iter().zip(&logged()) {
        // The times are short, because both ends are on one host. Log values are rounded to three decimals.
        let [packets_rtt, kernel_rtt] =
            [packets, kernel].map(|request| request["rtt_ms"].as_f64().expect("it is known"));
        assert!(packets_rtt > 0.0 && (packets_rtt - kernel_rtt).abs() < 0.05, "{packets_rtt} {kernel_rtt}");
        for name in ["retransmits", "zero_window_ms"] {
            assert!(packets[name].is_number() && packets[name] == kernel[name], "{name}: {packets} {kernel}");
        }
    }
}

#[test]
fn both_servers_of_a_capture_are_found() {
    let (table, _) = replay_capture(&fixture("any.pcap"), &[], TABLE);
    assert!(table.contains(":18000 (HTTP), 127.0.0.1:18001 (HTTP)\n"), "{table}");
    assert_eq!(requests(&fixture("any.pcap"), &[]).len(), 2 * logged().len());
}

#[test]
fn snapshot_length_of_tcpdump_is_reported() {
    let (table, error) = replay_capture(&fixture("snaplen-96.pcap"), &[PROXY], TABLE);
    assert_eq!(error, None);
    assert!(table.contains("have only their first bytes (snapshot length)"), "{table}");
    for request in requests(&fixture("snaplen-96.pcap"), &[PROXY]) {
        assert_eq!((&request["outcome"], &request["output_tokens"]), (&"unobserved".into(), &Value::Null));
    }
}
