//! Captured packets: whatever they contain, each observer receives a prefix of its connection's data and exactly one
//! final call, and no data is held at the end.
//!
//! The first byte of the input selects its form. 0: a capture file, whose packets go to the real observers. Otherwise:
//! segments of one connection, four bytes each: kind, distance from the next sequence number, length, and time. The
//! bytes of a segment are computed from their positions.
#![no_main]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use tokometer_fuzz::work::Work;
use tokometer_observe::budget::Budget;
use tokometer_observe::input::{Close, Connection, Direction, Observe, Observer};
use tokometer_observe::measure::{Record, Sink};
use tokometer_observe::observer::{Observers, Settings};
use tokometer_tap::file::Packets;
use tokometer_tap::{Checksum, Clock, Limits, Link, Packet, Server, Servers, Tap};

struct NoSink;

impl Sink for NoSink {
    fn record(&self, _: &Arc<Record>) {}
}

fn servers() -> Vec<Server> {
    [80, 8000].into_iter().map(|port| Server { address: None, port, listener: 0 }).collect()
}

/// Limits that inputs of usual length reach.
fn limits(budget: &Budget) -> Limits {
    Limits { connections: 3, reassembly_bytes: 400, idle: Duration::from_secs(20), ..Limits::new(budget.clone()) }
}

/// Asserts that no connection is open and no data is held after the end.
fn check_end(tap: &Tap, budget: &Budget) {
    let stats = tap.stats();
    let held = [stats.open(), stats.unsynchronised.get(), stats.reassembly_bytes.get(), budget.held() as u64];
    assert_eq!(held, [0; 4], "{stats:?}");
    assert!(stats.ended.get() <= stats.opened.get() + stats.attached.get(), "{stats:?}");
    assert_eq!(stats.observer_panics.get(), 0);
}

fn read_file(input: &[u8]) {
    let observers = Arc::new(Observers::new(Settings::default(), 1, Arc::new(NoSink)));
    let budget = observers.budget();
    let mut tap = Tap::new(servers(), Arc::clone(&observers) as _, limits(&budget), clock());
    let Ok(packets) = Packets::new(input) else { return };
    let (mut last, mut found) = (Duration::ZERO, Servers::default());
    for packet in packets.map_while(Result::ok) {
        tap.packet(&packet.as_packet());
        found.packet(&packet.as_packet());
        last = packet.at;
    }
    tap.end(last);
    found.found();
    check_end(&tap, &budget);
    assert_eq!((observers.open(), observers.observed()), (0, 0));
}

fn clock() -> Clock {
    Clock::new(Duration::from_secs(1000), Instant::now() + Duration::from_secs(1_000_000))
}

/// The byte at a position of a stream. No such byte can begin a request.
fn byte(position: u32) -> u8 {
    (position.wrapping_mul(37) >> 3) as u8 | 0x80
}

/// Checks the calls of all observers.
#[derive(Default)]
struct Checks {
    /// For each observer: bytes received in each direction, and whether it received the final call.
    observers: Vec<([u32; 2], bool)>,
}

struct Checker {
    number: usize,
    all: Arc<Mutex<Checks>>,
}

struct Check(Arc<Mutex<Checks>>);

impl Observe for Check {
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>> {
        let mut all = self.0.lock().unwrap();
        all.observers.push(([0; 2], false));
        assert_eq!(connection.id, all.observers.len() as u64);
        Some(Box::new(Checker { number: all.observers.len() - 1, all: Arc::clone(&self.0) }))
    }
}

impl Checker {
    fn last(&self) {
        let mut all = self.all.lock().unwrap();
        assert!(!std::mem::replace(&mut all.observers[self.number].1, true), "two last calls");
    }
}

impl Observer for Checker {
    fn seen(&mut self, direction: Direction, bytes: &[u8], _: Instant) {
        let mut all = self.all.lock().unwrap();
        let (positions, ended) = &mut all.observers[self.number];
        assert!(!*ended && !bytes.is_empty());
        let position = &mut positions[direction as usize];
        for seen in bytes {
            assert_eq!(*seen, byte(*position), "{direction:?} {position}");
            *position += 1;
        }
    }

    fn finished(&mut self, _: Direction, _: Instant) {
        assert!(!self.all.lock().unwrap().observers[self.number].1);
    }

    fn blocked(&mut self, _: Direction, since: Instant, until: Instant) {
        assert!(since <= until);
    }

    fn lost(&mut self, _: Instant) {
        self.last();
    }

    fn closed(&mut self, _: Close, _: Instant) {
        self.last();
    }

    fn idle(&self) -> bool {
        true
    }
}

/// A packet of one connection. `next`: the position after the bytes that each side has sent.
fn packet(step: [u8; 4], next: &mut [u32; 2], id: u16) -> (Vec<u8>, usize) {
    const FIRST: [u32; 2] = [u32::MAX - 200, 5000];
    let [kind, distance, len, _] = step;
    let side = usize::from(kind & 1);
    let flags = match kind >> 1 & 7 {
        0 => [2, 0x12][side],
        1 => 0x11,
        2 => 0x14,
        _ => 0x10,
    };
    // Most segments directly follow the previous one.
    let position = match kind >> 4 {
        // Only the first byte follows SYN.
        _ if flags & 2 != 0 => 0,
        0..=9 => next[side],
        10 => next[side].wrapping_add(1000),
        _ => next[side].wrapping_add_signed((distance as i8).into()),
    };
    let len = if flags & 4 == 0 { u32::from(len) } else { 0 };
    next[side] = next[side].max(position.wrapping_add(len).min(1 << 20));
    let syn = u32::from(flags & 2 != 0);
    let sequence = FIRST[side].wrapping_add(position).wrapping_sub(syn);
    // The first segment acknowledges only the SYN.
    let other = if position == 0 { 0 } else { next[1 - side] };
    let acknowledged = FIRST[1 - side].wrapping_add(other);
    let (ports, hosts) = if side == 0 { ([9, 80], [1, 2]) } else { ([80, 9], [2, 1]) };
    let mut bytes = vec![0x45, 0];
    bytes.extend((40 + len as u16).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, hosts[0], 10, 0, 0, hosts[1], 0, ports[0], 0, ports[1]]);
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(acknowledged.to_be_bytes());
    let window = if kind & 0x8 == 0 { 0 } else { 200 };
    bytes.extend([0x50, flags, 0, window, 0, 0, 0, 0]);
    bytes.extend((0..len).map(|offset| byte(position.wrapping_add(offset))));
    let original_len = bytes.len();
    // Some packets are captured without their last bytes.
    if kind >> 4 == 9 {
        bytes.truncate(original_len - (len as usize).min(distance.into()));
    }
    (bytes, original_len)
}

fn segments(input: &[u8]) {
    let budget = Budget::new(20_000);
    let all = Arc::<Mutex<Checks>>::default();
    let mut tap = Tap::new(servers(), Arc::new(Check(Arc::clone(&all))), limits(&budget), clock());
    let (mut next, mut at) = ([0; 2], Duration::from_secs(1000));
    for (id, step) in input.as_chunks::<4>().0.iter().enumerate() {
        at += Duration::from_millis(u64::from(step[3]) * u64::from(step[3]) / 8);
        match step[0] {
            // Another connection between the same ends: positions start from zero.
            0xff => next = [0; 2],
            0xfe => tap.tick(at),
            0xfd => tap.lost(1, at),
            _ => {
                let (bytes, original_len) = packet(*step, &mut next, id as u16);
                let checksum = if step[3] == 2 { Checksum::Unknown } else { Checksum::Verified };
                let packet = Packet { link: Link::RawIp, bytes: &bytes, original_len, at, outgoing: None, checksum };
                for _ in 0..1 + u8::from(step[3] == 1) {
                    tap.packet(&packet);
                }
            }
        }
    }
    tap.end(at);
    check_end(&tap, &budget);
    assert!(all.lock().unwrap().observers.iter().all(|(_, ended)| *ended), "no last call");
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    match input {
        [0, file @ ..] => read_file(file),
        [_, steps @ ..] => segments(steps),
        [] => {}
    }
});
