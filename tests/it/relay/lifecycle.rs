//! Slow readers, unreachable servers, early responses, drains, and the observer calls for each.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokometer::app::serve;
use tokometer_observe::input::{Close, Connection, Direction, Observe, Observer, Side};
use tokometer_proxy::listen::{self, Address};
use tokometer_proxy::relay::{Drain, Phase, Relay, Settings, Unreachable, Unreached};

use crate::WAIT;
use crate::listener::{listener_to, reserved};

use super::corpus::{noise, send};
use super::peer;
use super::peer::Step::{Finish, Read as Take, ReadEnd};
use super::peer::{Ending, Script};
use super::rig::{Rig, tcp};
use super::watcher::{Call, Log, Mood, Watcher};

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

fn with(upstream: impl Into<Address>, settings: Settings, idle: bool) -> Rig {
    Rig::with(vec![listener_to(upstream)], settings, Watcher::new(Mood::Calm, idle))
}

#[test]
fn slow_reader_causes_backpressure_and_the_wait_is_reported() {
    let (listener, server) = peer::listen();
    let settings = Settings { remainder_bytes: 1000, ..Settings::default() };
    let rig = with(server, settings, true);
    let body = noise(30_000_000);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    upstream.set_nonblocking(true).unwrap();
    // Writes until no bytes are accepted for a while. The bytes sent are then in kernel buffers and in the relay's
    // remainder buffer.
    let mut sent = 0;
    let mut refused = Instant::now();
    while refused.elapsed() < Duration::from_millis(300) {
        if let Ok(length) = upstream.write(&body[sent..]) {
            sent += length;
            refused = Instant::now();
        } else {
            std::thread::yield_now();
        }
        assert!(sent < body.len(), "no backpressure on the server");
    }
    let waits = |log: &Log| matches!(log.calls.last(), Some(Call::Waits(Direction::Response, _)));
    let shown = rig.watcher.wait(0, waits);
    // The kernel accepts bytes again whenever it has sent some, so there may have been waits before this one.
    let (waits, ends) = shown.calls.iter().fold((0, 0), |(waits, ends), call| match call {
        Call::Waits(..) => (waits + 1, ends),
        Call::Blocked(..) => (waits, ends + 1),
        _ => (waits, ends),
    });
    assert_eq!(waits, ends + 1, "reported before it was over");
    assert_eq!(shown.bytes(Direction::Response), body[..shown.bytes(Direction::Response).len()]);
    // The relay holds at most one read, of at most `remainder_bytes`, and reads nothing more.
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
    // Each reported start of a wait must have a reported end, and vice versa.
    let mut begun = None;
    for call in &log.calls {
        match call {
            Call::Waits(Direction::Response, since) => assert_eq!(begun.replace(*since), None),
            Call::Blocked(Direction::Response, since, _) => assert_eq!(begun.take(), Some(*since)),
            _ => {}
        }
    }
    assert_eq!(begun, None);
    let waited = log.calls.iter().filter_map(|call| match call {
        Call::Blocked(Direction::Response, since, until) => Some(*until - *since),
        _ => None,
    });
    assert!(waited.sum::<Duration>() >= Duration::from_millis(300));
}

#[test]
fn unreachable_server_causes_a_503_after_the_first_bytes() {
    let upstream = reserved();
    let rig = Rig::to(upstream);
    let mut client = peer::dial(rig.address());
    client.write_all(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 3000000\r\n\r\n").unwrap();
    // The client is still sending when the response arrives. A reset must not discard the response.
    client.write_all(&noise(3_000_000)).unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    drop(client);
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
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
    assert_eq!(rig.relay.stats_of(0).unreached(Unreached::Refused).get(), 1);
}

#[test]
fn unreachable_server_causes_a_reset_if_set_or_not_http1() {
    let rig = Rig::to(reserved());
    let reset = with(reserved(), Settings { unreachable: Unreachable::Reset, ..Settings::default() }, true);
    for (rig, first) in [(&rig, &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..]), (&rig, b"\x16\x03\x01"), (&reset, GET)] {
        let mut client = peer::dial(rig.address());
        // Only the first call after the reset returns the error.
        let sent = client.write_all(first);
        let error = sent.and_then(|()| client.read(&mut [0; 16]).map(drop)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(reset.watcher.closed(0).close(), Some(Close::Refused));
}

#[test]
fn early_response_reaches_a_client_that_still_uploads() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    let response = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    for _ in 0..20 {
        let mut client = peer::dial(rig.address());
        let (mut upstream, _) = listener.accept().unwrap();
        client.write_all(b"POST / HTTP/1.1\r\ncontent-length: 100000000\r\n\r\n").unwrap();
        upstream.read_exact(&mut [0; 20]).unwrap();
        upstream.write_all(response).unwrap();
        // The server closes with unread bytes, so the kernel sends a reset after the response.
        drop(upstream);
        let body = noise(1_000_000);
        while client.write_all(&body).is_ok() {}
        let mut got = vec![0; response.len()];
        client.read_exact(&mut got).unwrap();
        assert_eq!(got, response);
    }
    for index in 0..20 {
        assert_eq!(rig.watcher.closed(index).close(), Some(Close::Reset(Side::Server)));
    }
}

#[test]
fn reset_after_a_fin_is_detected_on_a_silent_connection() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    for (index, side) in [Side::Client, Side::Server].into_iter().enumerate() {
        let client = peer::dial(rig.address());
        let (upstream, _) = listener.accept().unwrap();
        let (mut goes, mut stays) = if side == Side::Client { (client, upstream) } else { (upstream, client) };
        // `goes` has sent FIN, and the relay writes no bytes to it, so only the reset itself can be detected.
        peer::Wire::finish(&mut goes);
        assert_eq!(stays.read(&mut [0; 1]).unwrap(), 0);
        peer::Wire::reset(&mut goes);
        drop(goes);
        assert_eq!(rig.watcher.closed(index).close(), Some(Close::Reset(side)));
    }
}

#[test]
fn client_reset_during_a_blocked_upload_ends_the_connection() {
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
fn drain_stops_the_listener_and_closes_only_idle_connections() {
    let (listener, server) = peer::listen();
    let watcher = Watcher::new(Mood::Calm, false);
    let rig = Rig::with(vec![listener_to(server)], Settings::default(), watcher);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    client.write_all(GET).unwrap();
    rig.watcher.wait(0, |log| !log.bytes(Direction::Request).is_empty());
    assert_eq!(rig.drain.open(), 1);

    rig.drain.begin();
    eventually(|| std::net::TcpStream::connect(rig.address()).is_err());
    // The connection is not idle, so it continues during the drain, and is closed as soon as it is idle.
    upstream.write_all(b"HTTP/1.1 200 OK\r\n").unwrap();
    client.read_exact(&mut [0; 17]).unwrap();
    assert_eq!(rig.watcher.wait(0, |_| true).close(), None);
    upstream.write_all(b"\n\n").unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"\n\n");
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Drained));
    // The relay may have accepted a connection from `eventually`. It stays open until the server's listener is closed.
    drop(listener);
    wait_until_empty(&rig);
}

#[test]
fn idle_connection_ends_with_a_fin_when_the_drain_begins() {
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
fn unused_connection_gets_time_for_its_first_request() {
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
fn forced_drain_resets_remaining_connections() {
    let (listener, server) = peer::listen();
    let rig = with(server, Settings::default(), false);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    client.write_all(GET).unwrap();
    upstream.read_exact(&mut [0; GET.len()]).unwrap();
    rig.drain.begin();
    rig.drain.force();
    // After a FIN, a partial response would look complete.
    assert!(client.read(&mut [0; 1]).is_err());
    assert!(upstream.read(&mut [0; 1]).is_err());
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Drained));
    wait_until_empty(&rig);
    assert_eq!(rig.drain.phase(), Phase::Forced);
}

#[test]
fn forced_drain_ends_connections_that_were_never_joined() {
    let rig = Rig::to(reserved());
    // The connection waits for the client's first bytes before the relay responds with 503.
    let mut client = peer::dial(rig.address());
    eventually(|| rig.relay.stats_of(0).unreached(Unreached::Refused).get() == 1);
    rig.drain.begin();
    rig.drain.force();
    assert!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Drained));
    wait_until_empty(&rig);
}

#[test]
fn drain_does_not_wait_long_for_clients_without_a_server() {
    let rig = Rig::to(reserved());
    let mut silent = peer::dial(rig.address());
    let mut response_complete = peer::dial(rig.address());
    response_complete.write_all(GET).unwrap();
    // This client has received its 503, but does not close the connection.
    response_complete.read_exact(&mut [0; 12]).unwrap();
    eventually(|| rig.relay.stats_of(0).unreached(Unreached::Refused).get() == 2);
    let begun = Instant::now();
    rig.drain.begin();
    wait_until_empty(&rig);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}: its own bounds are ten seconds", begun.elapsed());
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Refused));
    drop(silent.read(&mut [0; 1]));
}

/// The first connection starts a task that blocks, like a name resolution, until the test drops its sender.
struct Unresolved(Mutex<Option<Receiver<()>>>, Sender<()>);

impl Observe for Unresolved {
    fn accepted(&self, _: &Connection) -> Option<Box<dyn Observer>> {
        let answer = self.0.lock().unwrap().take()?;
        let begun = self.1.clone();
        // Like a name resolution by tokio, the task runs on a blocking thread of the relay's runtime.
        tokio::task::spawn_blocking(move || {
            begun.send(()).ok();
            answer.recv().ok();
        });
        None
    }
}

#[test]
fn stop_does_not_wait_for_name_resolution() {
    let ((answer, blocks), (begun, begins)) = (channel(), channel());
    let settings = Settings::default();
    let bound = listen::bind(listener_to(reserved()), &settings).unwrap();
    let address = tcp(&bound.address);
    let observe = Arc::new(Unresolved(Mutex::new(Some(blocks)), begun));
    let relay = Relay::new(settings, 1, observe, Drain::new());
    let serving = serve(listen::serve(vec![bound], &relay, 1).unwrap()).unwrap();
    let _client = peer::dial(address);
    begins.recv_timeout(WAIT).unwrap();
    let (stopped, stops) = channel();
    std::thread::spawn(move || {
        serving.stop();
        stopped.send(()).ok();
    });
    stops.recv_timeout(Duration::from_secs(30)).expect("it does not wait for the answer");
    drop(answer);
}

#[test]
fn observers_are_notified_when_stopped_without_a_drain() {
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
fn connection_without_traffic_ends_after_the_idle_timeout() {
    let (listener, server) = peer::listen();
    // Longer than this thread may have to wait for a core on a busy machine.
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
fn client_that_stays_half_closed_is_closed_after_the_timeout() {
    let (listener, server) = peer::listen();
    // The connection is not reported idle: a response without a length is complete only at the end of the connection.
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
fn half_close_timeout_restarts_with_each_byte_of_the_server() {
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
            // The next byte restarts the timeout, no earlier than now.
            moved = Instant::now();
            upstream.write_all(b"x").unwrap();
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
    assert_eq!((stats.accepted.get(), stats.observer_panics.get()), (1, 1));
    assert_eq!(stats.bytes(Direction::Request).get(), GET.len() as u64);
    assert_eq!(stats.bytes(Direction::Response).get(), 600_000);
    assert_eq!(rig.watcher.panics(), 1);
}

fn wait_until_empty(rig: &Rig) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), rig.drain.emptied()).await.expect("all connections end in time");
    });
}

fn eventually(mut met: impl FnMut() -> bool) {
    let start = Instant::now();
    while !met() {
        assert!(start.elapsed() < Duration::from_secs(10), "the condition was not met in time");
        // Each check may open a connection; without a pause, a busy machine could run out of descriptors.
        std::thread::sleep(Duration::from_millis(1));
    }
}
