//! A thread that does not run is reported to its connections.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use tokometer_observe::input::Direction;

use super::peer;
use super::rig::Rig;
use super::watcher::{Call, Mood};

/// Resolution of the kernel's times of a socket, for 100 timer interrupts per second.
const JIFFY: Duration = Duration::from_millis(10);

#[test]
fn bytes_that_waited_for_a_busy_thread_are_reported_with_their_wait() {
    let (listener, server) = peer::listen();
    let busy = Duration::from_millis(600);
    let rig = Rig::watched(server, Mood::Slow(busy));
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    client.write_all(b"a").unwrap();
    // Bytes are forwarded before they are observed: from now on the thread is busy.
    upstream.read_exact(&mut [0; 1]).unwrap();
    client.write_all(b"b").unwrap();
    let written = Instant::now();
    upstream.read_exact(&mut [0; 1]).unwrap();
    let log = rig.watcher.wait(0, |log| matches!(log.calls.last(), Some(Call::Waited(_))));
    let [.., Call::Late(by), Call::Seen(Direction::Request, _, read), Call::Waited(waited)] = &log.calls[..] else {
        panic!("{log:?}");
    };
    let (by, waited, read) = (*by, *waited, *read);
    // The timer is due every 100 ms.
    assert!(by + Duration::from_millis(110) >= busy, "{by:?}");
    let known = (read - written).min(by);
    assert!(waited <= by && waited + 2 * JIFFY >= known, "{waited:?} of {known:?}");
    let longest = rig.relay.take_delays().into_iter().flat_map(|thread| thread.buckets).map(|(delay, _)| delay).max();
    assert!(longest >= Some(by - Duration::from_millis(1)), "{longest:?}");
}
