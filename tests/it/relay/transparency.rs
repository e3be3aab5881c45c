//! Both ends receive the same bytes and endings with and without the relay.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokometer::app::DataPath;
use tokometer::replay::{Notebook, Replayed};
use tokometer_observe::input::{Close, Direction, Side};
use tokometer_observe::measure::{Detach, Outcome};
use tokometer_observe::observer;
use tokometer_proxy::relay::Settings;

use crate::listener::listener_to;

use super::peer::{Ending, Got, Script};
use super::rig::{Rig, tcp};
use super::watcher::{Call, Log, Mood};
use super::{corpus, peer};

/// Plays every script directly and through a relay with observers of this mood. Returns the scripts with different
/// results.
fn differences(mood: Mood) -> Vec<String> {
    let (listener, server) = peer::listen();
    let rig = Rig::watched(server, mood);
    differences_through(rig.address(), server, &listener)
}

/// Like `differences`, through the relay at this address.
fn differences_through(relay: SocketAddr, server: SocketAddr, listener: &TcpListener) -> Vec<String> {
    let mut differences = Vec::new();
    for script in corpus::scripts() {
        let direct = peer::play_tcp(&script, server, listener);
        assert!(direct.0.ending != Ending::Hangs && direct.1.ending != Ending::Hangs, "{}: {direct:?}", script.name);
        let relayed = peer::play_tcp(&script, relay, listener);
        if direct != relayed {
            differences.push(format!("{}:\n  direct  {direct:?}\n  relayed {relayed:?}", script.name));
        }
    }
    differences
}

fn none(differences: Vec<String>) {
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

#[test]
fn unusual_http_is_forwarded_unmodified() {
    none(differences(Mood::Calm));
}

#[test]
fn observer_panic_at_once_leaves_traffic_unmodified() {
    none(differences(Mood::Seeing(1)));
}

#[test]
fn later_observer_panics_leave_traffic_unmodified() {
    none(differences(Mood::Seeing(3)));
    none(differences(Mood::Dropping));
}

/// Plays the scripts with the real observer and these settings; also returns its records.
fn differences_observed(settings: observer::Settings) -> (Vec<String>, Replayed) {
    let (listener, server) = peer::listen();
    let notebook = Notebook::default();
    let sink = Arc::new(notebook.clone());
    let path = DataPath::start(&[listener_to(server)], Settings::default(), settings, sink, 1).unwrap();
    let differences = differences_through(tcp(&path.addresses()[0]), server, &listener);
    path.stop();
    (differences, notebook.take())
}

#[test]
fn real_observer_leaves_traffic_unmodified_and_none_in_flight() {
    let settings = observer::Settings { probes: true, ..observer::Settings::default() };
    let (differences, kept) = differences_observed(settings);
    none(differences);
    assert_eq!(kept.in_flight, 0);
    assert!(kept.records.len() > 10 && kept.detached.len() > 5, "{} {:?}", kept.records.len(), kept.detached);
}

#[test]
fn traffic_over_the_observer_limits_is_unmodified() {
    let (differences, kept) = differences_observed(observer::Settings {
        head_bytes: 16,
        max_open_requests: 1,
        ..observer::Settings::default()
    });
    none(differences);
    assert!(kept.detached.contains(&Detach::HeadTooLarge), "{:?}", kept.detached);
}

#[test]
fn traffic_over_the_limit_of_connections_is_unmodified_and_counted() {
    let (differences, kept) =
        differences_observed(observer::Settings { max_observed: 0, ..observer::Settings::default() });
    none(differences);
    // The requests are only counted.
    assert!(kept.records.len() > 10 && kept.records.iter().all(|record| record.outcome == Outcome::Unobserved));
    assert!(kept.detached.contains(&Detach::Shed));
}

#[test]
fn observer_sees_the_forwarded_bytes_and_then_the_ending() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    for (index, script) in corpus::scripts().iter().enumerate() {
        let (client, server) = peer::play_tcp(script, rig.address(), &listener);
        let log = rig.watcher.closed(index);
        check(script, &client, &server, &log);
    }
}

fn check(script: &Script, client: &Got, server: &Got, log: &Log) {
    let name = &script.name;
    // An end that stopped reading may have received fewer bytes than the relay forwarded.
    assert!(log.bytes(Direction::Request).starts_with(&server.bytes), "{name}");
    assert!(log.bytes(Direction::Response).starts_with(&client.bytes), "{name}");
    if client.ending == Ending::Fin && server.ending == Ending::Fin {
        assert_eq!(log.bytes(Direction::Request), server.bytes, "{name}");
        assert_eq!(log.bytes(Direction::Response), client.bytes, "{name}");
        assert!(matches!(log.close(), Some(Close::Finished { .. })), "{name}: {:?}", log.close());
    }
    let mut last = None;
    let mut finished = Vec::new();
    for (index, call) in log.calls.iter().enumerate() {
        match call {
            Call::Seen(direction, bytes, at) => {
                assert!(!bytes.is_empty(), "{name}");
                assert!(!finished.contains(direction), "{name}: bytes after the end of {direction:?}");
                assert!(last <= Some(*at), "{name}: time went back");
                last = Some(*at);
            }
            Call::Finished(direction, at) => {
                assert!(!finished.contains(direction), "{name}: {direction:?} finished twice");
                assert!(last <= Some(*at), "{name}: time went back");
                last = Some(*at);
                finished.push(*direction);
            }
            Call::Waits(..) => {}
            Call::Blocked(_, since, until) => assert!(since <= until, "{name}"),
            Call::Late(_) | Call::Waited(_) => {}
            Call::Closed(_) => assert_eq!(index, log.calls.len() - 1, "{name}: calls after the end"),
        }
    }
    if let Some(Close::Finished { first }) = log.close() {
        let expected = if first == Side::Client { Direction::Request } else { Direction::Response };
        assert_eq!(finished.first(), Some(&expected), "{name}");
        assert_eq!(finished.len(), 2, "{name}");
    }
}
