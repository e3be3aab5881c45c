//! What a verification says of each of them.

use std::net::TcpListener;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::pair::reserved;
use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::Pair;
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
fn a_good_relay_of_a_telling_server_passes_every_check() {
    let rig = Rig::new(telling());
    let report = run(&rig.settings());
    println!("{report}");
    for name in ALL {
        assert_told(&report, name, Grade::Good, &[]);
    }
    assert!(report.good);
    assert_eq!((report.model.as_deref(), report.engine, report.requests), (Some("sim"), Some("vLLM"), 6));
    assert_told(
        &report,
        CheckName::Bytes,
        Grade::Good,
        &[
            "6 streams: head, chunks, events and text, byte for byte but for ids and times;",
            "the list of models: every byte",
            "an unknown path: every byte",
            "a refused request: every byte",
            "a whole answer: every byte but ids and times",
        ],
    );
    // Six and the first one, of 32 tokens each.
    assert_told(
        &report,
        CheckName::Counts,
        Grade::Good,
        &["all 7 canaries were counted, with exactly their 224 output tokens"],
    );
    assert_told(&report, CheckName::Queue, Grade::Good, &["by in_band"]);
    assert_told(&report, CheckName::Bypass, Grade::Good, &["127.0.0.2"]);
    // Three times, each at two percentiles.
    assert_eq!(report.latency.len(), 6);
    assert!(report.latency.iter().all(|row| row.beside_ms > 0.0 && row.through_ms > 0.0 && row.low_ms <= row.high_ms));
}

#[test]
fn streams_whose_text_is_drawn_are_compared_by_their_kinds_of_events() {
    let rig = Rig::new(server::Settings { text: server::Text::Words, ..telling() });
    let report = run(&rig.settings());
    assert_told(
        &report,
        CheckName::Bytes,
        Grade::Good,
        &["head, chunks and kinds of events", "a whole answer: every byte but what varies"],
    );
    assert!(report.good, "{report}");
}

#[test]
fn completions_are_asked_where_there_is_no_chat() {
    let rig = Rig::new(telling());
    let report = run(&Settings { api: tokometer::verify::Api::Completions, ..rig.settings() });
    assert!(report.good, "{report}");
    assert_told(&report, CheckName::Counts, Grade::Good, &["exactly their 224 output tokens"]);
}

#[test]
fn a_proxy_that_changes_a_byte_of_the_text_is_found() {
    let rig = Rig::new(telling());
    let proxy = proxy::start(rig.relay, |bytes| proxy::replace(bytes, b"xxxx\"}", b"xxyx\"}"));
    let report = run(&rig.through(proxy));
    assert!(!report.good);
    assert_told(
        &report,
        CheckName::Bytes,
        Grade::Wrong,
        &["6 of 6 streams, at byte ", "xxyx", "tokometer changes no byte"],
    );
}

#[test]
fn a_proxy_that_changes_a_byte_of_the_head_is_found_though_no_text_can_be_compared() {
    let rig = Rig::new(server::Settings { text: server::Text::Words, ..telling() });
    let proxy = proxy::start(rig.relay, |bytes| proxy::replace(bytes, b"server: uvicorn", b"server: unicorn"));
    let report = run(&rig.through(proxy));
    assert_told(&report, CheckName::Bytes, Grade::Wrong, &["6 of 6 streams", "an unknown path", "unicorn"]);
}

#[test]
fn a_proxy_that_takes_its_time_is_found() {
    let rig = Rig::new(telling());
    let proxy = proxy::start(rig.relay, |_| thread::sleep(Duration::from_millis(80)));
    let settings = Settings { requests: 8, max_tokens: 4, ..rig.through(proxy) };
    let report = run(&settings);
    println!("{report}");
    assert!(!report.good);
    assert_told(
        &report,
        CheckName::Latency,
        Grade::Wrong,
        &["to the first byte", "to the first token", "50 ms are allowed"],
    );
    let first = report.latency.iter().find(|row| row.time == "first_token" && row.percentile == 50).unwrap();
    assert!(first.added_ms.unwrap() >= 75.0, "{first:?}");
    // The same, accepted.
    let accepted = run(&Settings { accept: vec![CheckName::Latency], ..settings });
    assert_told(&accepted, CheckName::Latency, Grade::Accepted, &["to the first token"]);
    assert!(accepted.good, "{accepted}");
}

#[test]
fn an_engine_without_usage_is_told_the_flag_that_it_lacks() {
    let server = server::Settings { force_include_usage: false, per_request_metrics: false, ..telling() };
    let rig = Rig::new(server);
    let report = run(&rig.settings());
    assert!(!report.good);
    assert_told(&report, CheckName::Usage, Grade::Wrong, &["lower bound", "--enable-force-include-usage"]);
    assert_told(&report, CheckName::Queue, Grade::Note, &["--enable-per-request-metrics"]);
    assert_told(&report, CheckName::Counts, Grade::Good, &["exactly"]);
    let accepted = run(&Settings { accept: vec![CheckName::Usage], ..rig.settings() });
    assert!(accepted.good, "{accepted}");
}

#[test]
fn a_server_that_listens_everywhere_can_be_bypassed() {
    let listen = Listen::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
    let rig = Rig::new(server::Settings { listen, ..telling() });
    let report = run(&rig.settings());
    assert!(!report.good);
    let place = format!("answers at 127.0.0.2:{}", rig.upstream.port());
    assert_told(&report, CheckName::Bypass, Grade::Wrong, &[&place, "--host 127.0.0.1"]);
}

#[test]
fn the_relay_itself_on_the_servers_port_is_no_way_past_it() {
    let rig = Rig::new(telling());
    // The relay listens at one address, the server on the same port of another.
    let listen = Address::Tcp { host: "127.0.0.2".to_owned(), port: rig.upstream.port() };
    let pair = Pair { listen, ..pair(rig.upstream) };
    let mut all = config::Settings::of_pair(pair);
    all.admin.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let instrument = Instrument::start(&all, None, Arc::new(String::new)).unwrap();
    let relay = SocketAddr::from(([127, 0, 0, 2], rig.upstream.port()));
    let admin = format!("http://{}", instrument.admin()).parse().unwrap();
    let report = run(&Settings { admin, ..rig.through(relay) });
    assert_told(&report, CheckName::Bypass, Grade::Good, &[]);
    assert!(report.good, "{report}");
    let unread = "http://127.0.0.1:1".parse().unwrap();
    let report = run(&Settings { admin: unread, admin_is_named: false, ..rig.through(relay) });
    assert_told(
        &report,
        CheckName::Bypass,
        Grade::Unknown,
        &["it cannot be told whether that is the relay", "--admin"],
    );
    instrument.stop();
}

#[test]
fn a_relay_that_is_down_is_told_with_its_address() {
    let rig = Rig::new(telling());
    let free = reserved();
    let report = run(&rig.through(free));
    assert!(!report.good);
    assert_told(
        &report,
        CheckName::Reach,
        Grade::Wrong,
        &[&format!("the relay at http://{free} cannot be reached"), "start it"],
    );
    assert_eq!(report.checks.len(), 1, "nothing is said of what could not be seen: {report}");
}

#[test]
fn a_server_that_is_down_is_told_with_its_address() {
    let mut rig = Rig::new(telling());
    rig.stop_server();
    let report = run(&rig.settings());
    assert_told(
        &report,
        CheckName::Reach,
        Grade::Wrong,
        &[&format!("the server at http://{} cannot be reached", rig.upstream)],
    );
}

#[test]
fn a_relay_that_leads_to_a_dead_server_is_told_with_what_it_answers() {
    let (rig, mut dead) = (Rig::new(telling()), Rig::new(telling()));
    dead.stop_server();
    let report = run(&rig.through(dead.relay));
    assert_told(&report, CheckName::Reach, Grade::Wrong, &["the relay at", "status 503", "tokometer"]);
}

#[test]
fn canaries_that_pass_another_relay_are_not_counted_by_this_one() {
    let rig = Rig::new(telling());
    let report = run(&rig.through(rig.upstream));
    assert_told(&report, CheckName::Counts, Grade::Wrong, &["of 7 canaries none was counted", "--admin"]);
    let wrong = Settings { admin: format!("http://{}", rig.upstream).parse().unwrap(), ..rig.settings() };
    assert_told(&run(&wrong), CheckName::Counts, Grade::Wrong, &["no metrics of tokometer"]);
    let unnamed = Settings { admin_is_named: false, ..wrong };
    assert_told(&run(&unnamed), CheckName::Counts, Grade::Unknown, &["give its address with --admin"]);
}

#[test]
fn a_model_that_the_server_lacks_is_told_in_its_words() {
    let rig = Rig::new(telling());
    let report = run(&Settings { model: Some("nobody".to_owned()), ..rig.settings() });
    assert_told(&report, CheckName::Reach, Grade::Wrong, &["the server at", "status 404", "nobody", "--model"]);
}

#[test]
fn a_server_that_says_nothing_is_waited_for_no_longer_than_set() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let target = || format!("http://{address}").parse().unwrap();
    let settings = Settings { timeout: Duration::from_millis(200), ..Settings::of(target(), target()) };
    let report = run(&settings);
    assert_told(&report, CheckName::Reach, Grade::Wrong, &["gave no whole answer within 0.2 s"]);
    drop(TcpStream::connect(address));
}
