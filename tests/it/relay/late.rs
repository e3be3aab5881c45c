//! If a thread of the relay is blocked, the delay is reported to its connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tokometer_observe::input::Direction;
use tokometer_proxy::relay::Settings;

use crate::listener::listener_to;

use super::peer;
use super::rig::Rig;
use super::watcher::{Call, Mood, Watcher};

/// Resolution of the kernel's times of a socket, with 100 timer interrupts per second.
const JIFFY: Duration = Duration::from_millis(10);

/// How long the first observed read blocks the thread.
const BUSY: Duration = Duration::from_millis(600);

/// A relay whose connections are never reported idle, and both ends of a connection through the relay.
fn connected() -> (Rig, TcpStream, TcpStream) {
    let (listener, server) = peer::listen();
    let rig = Rig::with(vec![listener_to(server)], Settings::default(), Watcher::new(Mood::Slow(BUSY), false));
    let client = peer::dial(rig.address());
    let (upstream, _) = listener.accept().unwrap();
    (rig, client, upstream)
}

#[test]
fn bytes_that_waited_for_a_busy_thread_are_reported_with_their_wait() {
    let (rig, client, upstream) = connected();
    assert_wait_is_reported(&rig, client, upstream);
}

#[test]
fn wait_for_a_busy_thread_is_reported_during_a_drain() {
    let (rig, client, upstream) = connected();
    // `close_and_begin` returns when the listeners are closed.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(rig.drain.close_and_begin());
    assert_wait_is_reported(&rig, client, upstream);
}

fn assert_wait_is_reported(rig: &Rig, mut client: TcpStream, mut upstream: TcpStream) {
    client.write_all(b"a").unwrap();
    // Bytes are forwarded before they are observed, so from now on the observer blocks the thread.
    upstream.read_exact(&mut [0; 1]).unwrap();
    client.write_all(b"b").unwrap();
    let written = Instant::now();
    upstream.read_exact(&mut [0; 1]).unwrap();
    let log = rig.watcher.wait(0, |log| matches!(log.calls.last(), Some(Call::Waited(_))));
    let [.., Call::Late(by), Call::Seen(Direction::Request, _, read), Call::Waited(waited)] = &log.calls[..] else {
        panic!("{log:?}");
    };
    let (by, waited, read) = (*by, *waited, *read);
    // The timer that detects the delay runs every 100 ms, so up to 100 ms may be missing.
    assert!(by + Duration::from_millis(110) >= BUSY, "{by:?}");
    let known = (read - written).min(by);
    assert!(waited <= by && waited + 2 * JIFFY >= known, "{waited:?} of {known:?}");
    let longest = rig.relay.take_delays().into_iter().flat_map(|thread| thread.buckets).map(|(delay, _)| delay).max();
    assert!(longest >= Some(by - Duration::from_millis(1)), "{longest:?}");
}
