//! Slow readers, unreachable servers, early answers, drains, and what is told about each.

use std::io::Read;
use std::io::Write;
use std::time::Duration;
use std::time::Instant;

use tokometer_observe::input::Close;
use tokometer_observe::input::Direction;
use tokometer_observe::input::Side;
use tokometer_proxy::listen::Address;
use tokometer_proxy::relay::Phase;
use tokometer_proxy::relay::Settings;
use tokometer_proxy::relay::Unreachable;

use crate::pair::pair;
use crate::pair::reserved;

use super::corpus::noise;
use super::corpus::send;
use super::peer;
use super::peer::Ending;
use super::peer::Script;
use super::peer::Step::Finish;
use super::peer::Step::Read as Take;
use super::peer::Step::ReadEnd;
use super::rig::Rig;
use super::watcher::Call;
use super::watcher::Mood;
use super::watcher::Watcher;

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

fn with(upstream: impl Into<Address>, settings: Settings, idle: bool) -> Rig {
    Rig::with(vec![pair(upstream)], settings, Watcher::new(Mood::Calm, idle))
}

#[test]
fn a_slow_reader_holds_the_server_back_and_the_wait_is_told() {
    let (listener, server) = peer::listen();
    let settings = Settings { remainder_bytes: 1000, ..Settings::default() };
    let rig = with(server, settings, true);
    let body = noise(30_000_000);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    upstream.set_nonblocking(true).unwrap();
    // Writes until nothing was taken for a while: what is then on its way is in kernel buffers and the remainder.
    let mut sent = 0;
    let mut refused = Instant::now();
    while refused.elapsed() < Duration::from_millis(300) {
        if let Ok(length) = upstream.write(&body[sent..]) {
            sent += length;
            refused = Instant::now();
        } else {
            std::thread::yield_now();
        }
        assert!(sent < body.len(), "the server is not held back");
    }
    let shown = rig.watcher.wait(0, |log| !log.bytes(Direction::Response).is_empty());
    assert!(!shown.calls.iter().any(|call| matches!(call, Call::Blocked(..))), "told before it was over");
    assert!(matches!(shown.calls.last(), Some(Call::Waits(Direction::Response, _))), "told when it began");
    assert_eq!(shown.bytes(Direction::Response), body[..shown.bytes(Direction::Response).len()]);
    // One read waits, at most, and nothing is read beside it.
    let largest = shown.calls.iter().map(|call| if let Call::Seen(_, bytes, _) = call { bytes.len() } else { 0 });
    assert_eq!(largest.max(), Some(1000));
    assert_eq!(rig.watcher.wait(0, |_| true).calls.len(), shown.calls.len());
    upstream.set_nonblocking(false).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            upstream.write_all(&body[sent..]).unwrap();
            upstream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == body);
    });
    drop((client, upstream));
    let log = rig.watcher.closed(0);
    // Every wait that is told to have begun is told to be over, and no other.
    let mut begun = None;
    for call in &log.calls {
        match call {
            Call::Waits(Direction::Response, since) => assert_eq!(begun.replace(*since), None),
            Call::Blocked(Direction::Response, since, _) => assert_eq!(begun.take(), Some(*since)),
            _ => {}
        }
    }
    assert_eq!(begun, None);
    let longest = log.calls.iter().filter_map(|call| match call {
        Call::Blocked(Direction::Response, since, until) => Some(*until - *since),
        _ => None,
    });
    assert!(longest.max().unwrap() >= Duration::from_millis(300));
}

#[test]
fn an_unreachable_server_is_answered_with_503_after_the_first_bytes() {
    let upstream = reserved();
    let rig = Rig::to(upstream);
    let mut client = peer::dial(rig.address());
    client.write_all(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 3000000\r\n\r\n").unwrap();
    // Still sending when the answer is already there: it must not be lost to a reset.
    client.write_all(&noise(3_000_000)).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    drop(client);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
    assert!(head.contains("content-type: application/json\r\n") && head.contains("connection: close"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("tokometer: cannot reach the inference server at {upstream}: ")), "{message}");
    assert_eq!(
        (body["error"]["type"].as_str(), body["error"]["code"].as_u64()),
        (Some("upstream_unreachable"), Some(503))
    );
    let log = rig.watcher.closed(0);
    assert_eq!(log.close(), Some(Close::Refused));
    assert!(log.bytes(Direction::Request).starts_with(b"POST /v1/completions"));
    assert!(log.bytes(Direction::Response).is_empty());
    assert_eq!(log.upstream, upstream.to_string());
    assert_eq!(rig.relay.stats_of(0).connect_failures(), 1);
}

#[test]
fn an_unreachable_server_is_a_reset_for_what_is_not_http1_or_if_so_set() {
    let rig = Rig::to(reserved());
    let reset = with(reserved(), Settings { unreachable: Unreachable::Reset, ..Settings::default() }, true);
    for (rig, first) in [(&rig, &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..]), (&rig, b"\x16\x03\x01"), (&reset, GET)] {
        let mut client = peer::dial(rig.address());
        // Whichever call comes after the reset is told of it, and only the first one.
        let sent = client.write_all(first);
        let error = sent.and_then(|()| client.read(&mut [0; 16]).map(drop)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(reset.watcher.closed(0).close(), Some(Close::Refused));
}

#[test]
fn an_early_answer_reaches_a_client_that_still_uploads() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    let answer = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    for _ in 0..20 {
        let mut client = peer::dial(rig.address());
        let (mut upstream, _) = listener.accept().unwrap();
        client.write_all(b"POST / HTTP/1.1\r\ncontent-length: 100000000\r\n\r\n").unwrap();
        upstream.read_exact(&mut [0; 20]).unwrap();
        upstream.write_all(answer).unwrap();
        // Closes on unread bytes: the kernel sends a reset behind the answer.
        drop(upstream);
        let body = noise(1_000_000);
        while client.write_all(&body).is_ok() {}
        let mut got = vec![0; answer.len()];
        client.read_exact(&mut got).unwrap();
        assert_eq!(got, answer);
    }
    for index in 0..20 {
        assert_eq!(rig.watcher.closed(index).close(), Some(Close::Reset(Side::Server)));
    }
}

#[test]
fn a_reset_is_noticed_after_a_fin_while_nothing_flows() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    for (index, side) in [Side::Client, Side::Server].into_iter().enumerate() {
        let client = peer::dial(rig.address());
        let (upstream, _) = listener.accept().unwrap();
        let (mut goes, mut stays) = if side == Side::Client { (client, upstream) } else { (upstream, client) };
        // It has sent FIN and is not written to: only the reset itself tells.
        peer::Wire::finish(&mut goes);
        assert_eq!(stays.read(&mut [0; 1]).unwrap(), 0);
        peer::Wire::reset(&mut goes);
        drop(goes);
        assert_eq!(rig.watcher.closed(index).close(), Some(Close::Reset(side)));
    }
}

#[test]
fn a_client_that_goes_while_its_upload_waits_ends_the_connection_at_once() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    let mut client = peer::dial(rig.address());
    let (upstream, _) = listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    let body = noise(1_000_000);
    let mut refused = Instant::now();
    while refused.elapsed() < Duration::from_millis(200) {
        if client.write(&body).is_ok() {
            refused = Instant::now();
        } else {
            std::thread::yield_now();
        }
    }
    peer::Wire::reset(&mut client);
    drop(client);
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Reset(Side::Client)));
    drop(upstream);
}

#[test]
fn a_drain_stops_the_listener_and_closes_idle_connections_only() {
    let (listener, server) = peer::listen();
    let watcher = Watcher::new(Mood::Calm, false);
    let rig = Rig::with(vec![pair(server)], Settings::default(), watcher);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    client.write_all(GET).unwrap();
    rig.watcher.wait(0, |log| !log.bytes(Direction::Request).is_empty());
    assert_eq!(rig.drain.open(), 1);

    rig.drain.begin();
    eventually(|| std::net::TcpStream::connect(rig.address()).is_err());
    // Not idle: it goes on, and is closed as soon as it is.
    upstream.write_all(b"HTTP/1.1 200 OK\r\n").unwrap();
    client.read_exact(&mut [0; 17]).unwrap();
    assert_eq!(rig.watcher.wait(0, |_| true).close(), None);
    upstream.write_all(b"\n\n").unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"\n\n");
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Drained));
    // One of the connects above may still have been accepted, and waits for the server.
    drop(listener);
    wait_until_empty(&rig);
}

#[test]
fn an_idle_connection_ends_with_a_fin_when_the_drain_begins() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    eventually(|| rig.drain.open() == 1);
    rig.drain.begin();
    assert_eq!((client.read(&mut [0; 1]).unwrap(), upstream.read(&mut [0; 1]).unwrap()), (0, 0));
    wait_until_empty(&rig);
}

#[test]
fn a_connection_that_was_never_used_is_given_time_for_its_first_request() {
    let (listener, server) = peer::listen();
    let rig = with(server, Settings::default(), true);
    let mut client = peer::dial(rig.address());
    let upstream = listener.accept().unwrap();
    eventually(|| rig.drain.open() == 1);
    let begun = Instant::now();
    rig.drain.begin();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    assert!(begun.elapsed() >= Duration::from_millis(300), "closed after {:?}", begun.elapsed());
    wait_until_empty(&rig);
    drop(upstream);
}

#[test]
fn a_forced_drain_resets_what_is_left() {
    let (listener, server) = peer::listen();
    let rig = with(server, Settings::default(), false);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    client.write_all(GET).unwrap();
    upstream.read_exact(&mut [0; GET.len()]).unwrap();
    rig.drain.begin();
    rig.drain.force();
    // A FIN would make a half answer look like a whole one.
    assert!(client.read(&mut [0; 1]).is_err());
    assert!(upstream.read(&mut [0; 1]).is_err());
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Drained));
    wait_until_empty(&rig);
    assert_eq!(rig.drain.phase(), Phase::Forced);
}

#[test]
fn a_forced_drain_ends_connections_that_were_never_joined() {
    let rig = Rig::to(reserved());
    // Waits for the client's first bytes, to answer 503.
    let mut client = peer::dial(rig.address());
    eventually(|| rig.relay.stats_of(0).connect_failures() == 1);
    rig.drain.begin();
    rig.drain.force();
    assert!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Drained));
    wait_until_empty(&rig);
}

#[test]
fn a_drain_does_not_wait_long_for_clients_without_a_server() {
    let rig = Rig::to(reserved());
    let mut silent = peer::dial(rig.address());
    let mut answered = peer::dial(rig.address());
    answered.write_all(GET).unwrap();
    // Its 503 is there, and it does not close.
    answered.read_exact(&mut [0; 12]).unwrap();
    eventually(|| rig.relay.stats_of(0).connect_failures() == 2);
    let begun = Instant::now();
    rig.drain.begin();
    wait_until_empty(&rig);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}: its own bounds are ten seconds", begun.elapsed());
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Refused));
    drop(silent.read(&mut [0; 1]));
}

#[test]
fn stopping_without_a_drain_still_tells_the_observers() {
    let (listener, server) = peer::listen();
    let rig = with(server, Settings::default(), false);
    let client = peer::dial(rig.address());
    let (upstream, _) = listener.accept().unwrap();
    rig.watcher.wait(0, |_| true);
    rig.serving.stop();
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Drained));
    drop((client, upstream));
}

#[test]
fn a_connection_on_which_nothing_moves_ends_after_the_idle_timeout() {
    let (listener, server) = peer::listen();
    // Longer than a busy machine leaves this thread without a core.
    let idle = Duration::from_secs(1);
    let rig = with(server, Settings { idle_timeout: Some(idle), ..Settings::default() }, false);
    let start = Instant::now();
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    let mut moved = start;
    while start.elapsed() < 2 * idle {
        moved = Instant::now();
        client.write_all(b"x").unwrap();
        upstream.read_exact(&mut [0; 1]).unwrap();
    }
    assert!(client.read(&mut [0; 1]).is_err());
    assert!(moved.elapsed() >= idle);
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::IdleTimeout));
}

fn half_closing(upstream: impl Into<Address>, idle: bool) -> Rig {
    with(upstream, Settings { half_close_timeout: Some(Duration::from_millis(1500)), ..Settings::default() }, idle)
}

#[test]
fn client_that_keeps_its_socket_after_the_server_closed_is_closed_after_the_half_close_timeout() {
    let (listener, server) = peer::listen();
    // Not idle: a response that the end of the connection delimits is not known to be complete before.
    let rig = half_closing(server, false);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    client.write_all(GET).unwrap();
    upstream.read_exact(&mut [0; GET.len()]).unwrap();
    upstream.write_all(b"whole").unwrap();
    drop(upstream);
    let closed = Instant::now();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"whole");
    let log = rig.watcher.closed(0);
    assert!(closed.elapsed() >= Duration::from_millis(1500));
    assert_eq!(log.close(), Some(Close::Finished { first: Side::Server }));
    wait_until_empty(&rig);
    assert_eq!(rig.relay.stats_of(0).open(), 0);
    drop(client);
}

#[test]
fn server_that_is_silent_after_the_client_finished_times_out_and_bytes_put_it_off() {
    let (listener, server) = peer::listen();
    for (idle, close, ending) in
        [(false, Close::IdleTimeout, Ending::Reset), (true, Close::Finished { first: Side::Client }, Ending::Fin)]
    {
        let rig = half_closing(server, idle);
        let mut client = peer::dial(rig.address());
        let (mut upstream, _) = listener.accept().unwrap();
        client.write_all(GET).unwrap();
        peer::Wire::finish(&mut client);
        let begun = Instant::now();
        let mut moved = begun;
        while begun.elapsed() < Duration::from_secs(4) {
            upstream.write_all(b"x").unwrap();
            moved = Instant::now();
            client.read_exact(&mut [0; 1]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        let ended = match client.read(&mut [0; 1]) {
            Ok(0) => Ending::Fin,
            _ => Ending::Reset,
        };
        assert!(moved.elapsed() >= Duration::from_millis(1500));
        assert_eq!((rig.watcher.closed(0).close(), ended), (Some(close), ending));
    }
}

#[test]
fn bytes_connections_and_panics_are_counted() {
    let (listener, server) = peer::listen();
    let rig = Rig::watched(server, Mood::Seeing(1));
    let script = Script {
        name: String::new(),
        client: vec![send(GET), ReadEnd],
        server: vec![Take(GET.len()), send(noise(600_000)), Finish, ReadEnd],
    };
    let (client, _) = peer::play_tcp(&script, rig.address(), &listener);
    assert_eq!((client.bytes.len(), client.ending), (600_000, Ending::Fin));
    wait_until_empty(&rig);
    let stats = rig.relay.stats_of(0);
    assert_eq!((stats.accepted(), stats.observer_panics()), (1, 1));
    assert_eq!(stats.bytes(Direction::Request), GET.len() as u64);
    assert_eq!(stats.bytes(Direction::Response), 600_000);
    assert_eq!(rig.watcher.panics(), 1);
}

fn wait_until_empty(rig: &Rig) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), rig.drain.emptied()).await.expect("no connection is left");
    });
}

fn eventually(mut met: impl FnMut() -> bool) {
    let start = Instant::now();
    while !met() {
        assert!(start.elapsed() < Duration::from_secs(10), "never met");
        // Each look may open a connection: without a pause a busy machine runs out of descriptors first.
        std::thread::sleep(Duration::from_millis(1));
    }
}
