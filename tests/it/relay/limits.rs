//! The relay without free descriptors or at its maximum of connections, and the memory of a connection. Some tests need
//! a separate process.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use tokometer_observe::input::{Close, Direction};
use tokometer_proxy::relay::{Evicted, Full, Settings, Unreachable};

use crate::listener::listener_to;

use super::peer;
use super::rig::Rig;
use super::watcher::{Call, Mood, Watcher};

/// Runs this test in a new process with this limit of open files, and returns true. Returns false in the new process.
fn rerun(test: &str, limit: usize) -> bool {
    if soft_limit() == limit {
        return false;
    }
    let this = std::env::current_exe().unwrap();
    let run = format!("ulimit -n {limit} && exec \"$0\" --exact relay::limits::{test} --nocapture --test-threads 1");
    let output = Command::new("sh").arg("-c").arg(run).arg(this).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

fn soft_limit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap_or(usize::MAX)
}

/// CPU time of this process, user and system.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn connections_wait_while_no_descriptors_are_free() {
    if rerun("connections_wait_while_no_descriptors_are_free", 96) {
        return;
    }
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    let mut first = peer::dial(rig.address());
    let (mut first_upstream, _) = listener.accept().unwrap();
    let mut ping = || {
        first.write_all(b"ping").unwrap();
        first_upstream.read_exact(&mut [0; 4]).unwrap();
    };
    ping();
    // Reads the CPU time, which needs a descriptor, before descriptors run out.
    let before = cpu();
    let mut ballast: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    drop(ballast.pop());
    let mut second = peer::dial(rig.address());
    second.write_all(b"hello").unwrap();
    // At first no descriptor is free for accepting; later one is free for accepting, but none for connecting.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        std::thread::sleep(Duration::from_millis(50));
        ping();
        if ballast.len() > 40 && start.elapsed() > Duration::from_millis(700) {
            ballast.truncate(40.max(ballast.len() - 1));
        }
    }
    drop(ballast);
    let (mut upstream, _) = listener.accept().unwrap();
    let mut got = [0; 5];
    upstream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    ping();
    let used = cpu() - before;
    assert!(used < start.elapsed() / 3, "busy without descriptors: {used:?} of CPU in {:?}", start.elapsed());
}

#[test]
fn connection_above_the_maximum_is_refused_at_once() {
    let (listener, server) = peer::listen();
    for (settings, capacity, why) in [
        (Settings { max_connections: Some(1), ..Settings::default() }, usize::MAX, Full::MaxConnections),
        (Settings::default(), 1, Full::Descriptors),
        (Settings { unreachable: Unreachable::Reset, ..Settings::default() }, 1, Full::Descriptors),
    ] {
        let unreachable = settings.unreachable;
        let rig = Rig::with(vec![listener_to(server)], settings, Watcher::new(Mood::Calm, false));
        rig.relay.limit_connections(capacity, Full::Descriptors);
        let mut first = peer::dial(rig.address());
        let (mut upstream, _) = listener.accept().unwrap();
        // A request is in progress, so the connection is not closed to make room for others.
        first.write_all(b"ping").unwrap();
        upstream.read_exact(&mut [0; 4]).unwrap();
        // The second client sends nothing; the refusal does not wait for its request.
        let mut second = peer::dial(rig.address());
        let mut response = String::new();
        let ended = second.read_to_string(&mut response);
        match unreachable {
            Unreachable::Refuse | Unreachable::Http503 => assert!(response.starts_with("HTTP/1.1 503 "), "{response}"),
            Unreachable::Reset => assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset),
        }
        let stats = rig.relay.stats_of(0);
        assert_eq!((stats.refused(why).get(), stats.accepted.get(), stats.open()), (1, 1, 1));
        first.write_all(b"ping").unwrap();
        upstream.read_exact(&mut [0; 4]).unwrap();
        drop((first, upstream));
        rig.watcher.closed(0);
        while rig.drain.open() > 0 {
            std::thread::yield_now();
        }
        let _third = peer::dial(rig.address());
        listener.accept().unwrap();
    }
}

#[test]
fn connection_without_a_request_is_closed_to_make_room_for_another() {
    let (listener, server) = peer::listen();
    let settings = Settings { max_connections: Some(1), ..Settings::default() };
    let rig = Rig::with(vec![listener_to(server)], settings, Watcher::new(Mood::Calm, false));
    let _silent = peer::dial(rig.address());
    listener.accept().unwrap();
    // The first attempts are refused: the request of the first client may be on its way.
    let stats = rig.relay.stats_of(0);
    while stats.accepted.get() < 2 {
        drop(peer::dial(rig.address()));
    }
    assert!(stats.evicted(Evicted::Incomplete).get() > 0);
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Evicted));
}

#[test]
fn idle_connection_costs_little_memory() {
    const CONNECTIONS: usize = 1000;
    if rerun("idle_connection_costs_little_memory", 4 * CONNECTIONS + 200) {
        return;
    }
    let (listener, server) = peer::listen();
    // Observers panic when they are created, so only the memory of the relay itself is measured.
    let rig = Rig::watched(server, Mood::Accepting);
    let open = |count: usize| -> Vec<(TcpStream, TcpStream)> {
        (0..count)
            .map(|_| {
                let mut client = peer::dial(rig.address());
                let (mut upstream, _) = listener.accept().unwrap();
                client.write_all(b"ping").unwrap();
                upstream.read_exact(&mut [0; 4]).unwrap();
                upstream.write_all(b"pong").unwrap();
                client.read_exact(&mut [0; 4]).unwrap();
                (client, upstream)
            })
            .collect()
    };
    let few = open(50);
    let before = resident_bytes();
    let many = open(CONNECTIONS - 50);
    let each = (resident_bytes() - before) / many.len();
    println!("resident memory per idle connection: {each} bytes");
    assert!(each < 5 * 1024, "{each} bytes per connection");
    drop((few, many));
}

#[test]
fn bytes_waiting_for_a_client_are_counted_until_it_is_gone() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    let client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    upstream.set_nonblocking(true).unwrap();
    let chunk = [0; 64 * 1024];
    while rig.relay.waiting() == 0 {
        if upstream.write(&chunk).is_err() {
            std::thread::yield_now();
        }
    }
    assert!(rig.relay.waiting() <= Settings::default().remainder_bytes);
    drop((client, upstream));
    rig.watcher.closed(0);
    while rig.relay.waiting() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn connection_expensive_to_observe_is_read_in_small_pieces() {
    const BYTES: usize = 1 << 20;
    let (listener, server) = peer::listen();
    let rig = Rig::watched(server, Mood::Costly);
    let mut client = peer::dial(rig.address());
    let (mut upstream, _) = listener.accept().unwrap();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; BYTES];
        upstream.read_exact(&mut got).unwrap();
        got
    });
    let sent: Vec<u8> = (0..BYTES).map(|at| at as u8).collect();
    client.write_all(&sent).unwrap();
    assert!(reader.join().unwrap() == sent, "every byte is forwarded");
    let log = rig.watcher.wait(0, |log| log.bytes(Direction::Request).len() == BYTES);
    let reads =
        log.calls.iter().filter_map(|call| if let Call::Seen(_, bytes, _) = call { Some(bytes.len()) } else { None });
    let longest = reads.skip(1).max().unwrap();
    assert!(longest <= 8 * 1024, "a read of {longest} bytes");
}
