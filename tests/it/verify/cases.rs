//! Results of every check against good and bad proxies and servers.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::listener::reserved;
use tokometer_proxy::listen::{Address, Listener};
use tokometer_sim::server;
use tokometer_sim::server::Listen;

use super::*;

const ALL: [CheckName; 7] = [
    CheckName::Reach,
    CheckName::Latency,
    CheckName::Bytes,
    CheckName::Usage,
    CheckName::Queue,
    CheckName::Counts,
    CheckName::Bypass,
];

#[test]
fn good_proxy_passes_every_check() {
    let rig = Rig::new(reporting());
    let report = run(&rig.settings());
    println!("{report}");
    for name in ALL {
        assert_reported(&report, name, Grade::Pass, &[]);
    }
    assert!(report.passed);
    assert_eq!((report.model.as_deref(), report.engine, report.requests), (Some("sim"), Some("vLLM"), 6));
    assert_reported(
        &report,
        CheckName::Bytes,
        Grade::Pass,
        &[
            "6 streams: headers, chunks, events and text, byte for byte except ids and times;",
            "model list: every byte",
            "unknown path: every byte",
            "rejected request: every byte",
            "non-streamed response: every byte except ids and times",
        ],
    );
    // There are six canaries and one for warm-up, of 32 tokens each.
    assert_reported(
        &report,
        CheckName::Counts,
        Grade::Pass,
        &["all 7 canaries were counted, with exactly their 224 output tokens"],
    );
    assert_reported(&report, CheckName::Queue, Grade::Pass, &["by in_band"]);
    assert_reported(&report, CheckName::Bypass, Grade::Pass, &["127.0.0.2"]);
    // The report has three measured times, each at two percentiles.
    assert_eq!(report.latency.len(), 6);
    assert!(
        report
            .latency
            .iter()
            .map(|row| row.difference)
            .all(|found| { found.direct_ms > 0.0 && found.proxied_ms > 0.0 && found.low_ms <= found.high_ms })
    );
}

#[test]
fn sampled_text_is_compared_by_event_kinds() {
    let rig = Rig::new(server::Settings { text: server::Text::Words, ..reporting() });
    let report = run(&rig.settings());
    assert_reported(
        &report,
        CheckName::Bytes,
        Grade::Pass,
        &["headers, chunks and kinds of events", "non-streamed response: every byte except values that vary"],
    );
    assert!(report.passed, "{report}");
}

#[test]
fn completions_api_passes() {
    let rig = Rig::new(reporting());
    let report = run(&Settings { api: tokometer::verify::Api::Completions, ..rig.settings() });
    assert!(report.passed, "{report}");
    assert_reported(&report, CheckName::Counts, Grade::Pass, &["exactly their 224 output tokens"]);
}

#[test]
fn changed_text_byte_is_detected() {
    let rig = Rig::new(reporting());
    let proxy = proxy::start(rig.relay, |bytes| proxy::replace(bytes, b"xxxx\"}", b"xxyx\"}"));
    let report = run(&rig.through(proxy));
    assert!(!report.passed);
    assert_reported(
        &report,
        CheckName::Bytes,
        Grade::Fail,
        &["6 of 6 streams, at byte ", "xxyx", "tokometer changes no byte"],
    );
}

#[test]
fn changed_header_byte_is_detected_with_sampled_text() {
    let rig = Rig::new(server::Settings { text: server::Text::Words, ..reporting() });
    let proxy = proxy::start(rig.relay, |bytes| proxy::replace(bytes, b"server: uvicorn", b"server: unicorn"));
    let report = run(&rig.through(proxy));
    assert_reported(&report, CheckName::Bytes, Grade::Fail, &["6 of 6 streams", "unknown path", "unicorn"]);
}

#[test]
fn slow_proxy_is_detected() {
    let rig = Rig::new(reporting());
    let proxy = proxy::start(rig.relay, |_| thread::sleep(Duration::from_millis(80)));
    let settings = Settings { requests: 8, max_tokens: 4, ..rig.through(proxy) };
    let report = run(&settings);
    println!("{report}");
    assert!(!report.passed);
    assert_reported(
        &report,
        CheckName::Latency,
        Grade::Fail,
        &["to the first byte", "to the first token", "50 ms are allowed"],
    );
    let first = report.latency.iter().find(|row| row.time == "first_token" && row.percentile == 50).unwrap();
    assert!(first.difference.added_ms.unwrap() >= 75.0, "{first:?}");
    // The same check passes with `--accept latency`.
    let accepted = run(&Settings { accept: vec![CheckName::Latency], ..settings });
    assert_reported(&accepted, CheckName::Latency, Grade::Accepted, &["to the first token"]);
    assert!(accepted.passed, "{accepted}");
}

#[test]
fn missing_usage_is_a_warning_with_the_engine_flag() {
    let server = server::Settings { force_include_usage: false, per_request_metrics: false, ..reporting() };
    let rig = Rig::new(server);
    let report = run(&rig.settings());
    // The traffic is correct, so a missing count is only a warning.
    assert!(report.passed, "{report}");
    assert!(report.to_string().ends_with("No check failed; 2 warnings."), "{report}");
    assert_reported(&report, CheckName::Usage, Grade::Warn, &["lower bound", "--enable-force-include-usage"]);
    assert_reported(&report, CheckName::Queue, Grade::Warn, &["--enable-per-request-metrics"]);
    assert_reported(&report, CheckName::Counts, Grade::Pass, &["exactly"]);
    let accepted = run(&Settings { accept: vec![CheckName::Usage], ..rig.settings() });
    assert_reported(&accepted, CheckName::Usage, Grade::Accepted, &["lower bound"]);
}

#[test]
fn server_on_all_addresses_can_be_bypassed() {
    let listen = Listen::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
    let rig = Rig::new(server::Settings { listen, ..reporting() });
    let report = run(&rig.settings());
    assert!(!report.passed);
    let place = format!("responds at 127.0.0.2:{}", rig.upstream.port());
    assert_reported(&report, CheckName::Bypass, Grade::Fail, &[&place, "--host 127.0.0.1"]);
}

#[test]
fn proxy_on_the_server_port_is_not_a_bypass() {
    let rig = Rig::new(reporting());
    // The proxy listens on one address, the server on the same port of another.
    let listen = Address::Tcp { host: "127.0.0.2".to_owned(), port: rig.upstream.port() };
    let listener = Listener { listen, ..listener_to(rig.upstream) };
    let mut all = config::Settings::with_listener(listener);
    all.admin.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let instrument = Instrument::start(&all, None, Arc::new(String::new)).unwrap();
    let relay = SocketAddr::from(([127, 0, 0, 2], rig.upstream.port()));
    let report = run(&Settings { admin: Some(url(instrument.admin())), ..rig.through(relay) });
    assert_reported(&report, CheckName::Bypass, Grade::Pass, &[]);
    assert!(report.passed, "{report}");
    let unread = "http://127.0.0.1:1".parse().unwrap();
    let report = run(&Settings { admin: None, default_admin: unread, ..rig.through(relay) });
    assert_reported(
        &report,
        CheckName::Bypass,
        Grade::Unknown,
        &["it is unknown whether that is the proxy", "--admin"],
    );
    instrument.stop();
}

#[test]
fn unreachable_proxy_is_reported_with_its_address() {
    let rig = Rig::new(reporting());
    let free = reserved();
    let report = run(&rig.through(free));
    assert!(!report.passed);
    assert_reported(
        &report,
        CheckName::Reach,
        Grade::Fail,
        &[&format!("the proxy at http://{free} cannot be reached"), "start it"],
    );
    assert_eq!(report.checks.len(), 1, "no other check must run: {report}");
}

#[test]
fn unreachable_server_is_reported_with_its_address() {
    let mut rig = Rig::new(reporting());
    rig.stop_server();
    let report = run(&rig.settings());
    assert_reported(
        &report,
        CheckName::Reach,
        Grade::Fail,
        &[&format!("the server at http://{} cannot be reached", rig.upstream)],
    );
}

#[test]
fn proxy_of_a_dead_server_is_reported_with_its_response() {
    let (rig, mut dead) = (Rig::new(reporting()), Rig::new(reporting()));
    dead.stop_server();
    let report = run(&rig.through(dead.relay));
    assert_reported(&report, CheckName::Reach, Grade::Fail, &["the proxy at", "status 503", "tokometer"]);
}

#[test]
fn canaries_through_another_proxy_are_not_counted() {
    let rig = Rig::new(reporting());
    let report = run(&rig.through(rig.upstream));
    assert_reported(&report, CheckName::Counts, Grade::Fail, &["none of 7 canaries was counted", "--admin"]);
    let wrong = Settings { admin: Some(url(rig.upstream)), ..rig.settings() };
    assert_reported(&run(&wrong), CheckName::Counts, Grade::Fail, &["without tokometer metrics"]);
    let unnamed = Settings { admin: None, default_admin: url(rig.upstream), ..wrong };
    assert_reported(&run(&unnamed), CheckName::Counts, Grade::Unknown, &["set its address with --admin"]);
}

#[test]
fn unknown_model_is_reported_with_the_servers_message() {
    let rig = Rig::new(reporting());
    let report = run(&Settings { model: Some("nobody".to_owned()), ..rig.settings() });
    assert_reported(&report, CheckName::Reach, Grade::Fail, &["the server at", "status 404", "nobody", "--model"]);
}

#[test]
fn silent_server_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let settings = Settings { timeout: Duration::from_millis(200), ..settings(address, address) };
    let report = run(&settings);
    assert_reported(&report, CheckName::Reach, Grade::Fail, &["sent no complete response within 0.2 s"]);
    drop(TcpStream::connect(address));
}
