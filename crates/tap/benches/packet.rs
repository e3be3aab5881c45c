//! Measures the cost of processing a captured packet, on streams of 250-byte events.
//!
//! `tap` passes the bytes to an observer that does nothing, `tap and observer` to the real observers with a sink that
//! does nothing. With many streams, a stream's memory has left the CPU caches when its next packet arrives.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tokometer_observe::budget::Budget;
use tokometer_observe::input::{Close, Connection, Direction, Observe, Observer};
use tokometer_observe::measure::{Record, Sink};
use tokometer_observe::observer::{Observers, Settings};
use tokometer_tap::{Checksum, Clock, Limits, Link, Packet, Server, Tap};

const REQUEST: &[u8] =
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 27\r\n\r\n{\"model\":\"m\",\"stream\":true}";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
const EPOCH: Duration = Duration::from_secs(1_790_000_000);

/// An event of vLLM's chat stream, 250 bytes with its framing.
fn event() -> Vec<u8> {
    let start = "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
                 \"created\":1790000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\
                 \"logprobs\":null,\"finish_reason\":null}],\"padding\":\"";
    let end = "\"}\n\n";
    format!("{start}{}{end}", "x".repeat(250 - start.len() - end.len())).into_bytes()
}

struct Nothing;

impl Observer for Nothing {
    fn seen(&mut self, _: Direction, bytes: &[u8], at: Instant) {
        black_box((bytes, at));
    }
    fn finished(&mut self, _: Direction, _: Instant) {}
    fn blocked(&mut self, _: Direction, _: Instant, _: Instant) {}
    fn closed(&mut self, _: Close, _: Instant) {}
    fn idle(&self) -> bool {
        true
    }
}

impl Observe for Nothing {
    fn accepted(&self, _: &Connection) -> Option<Box<dyn Observer>> {
        Some(Box::new(Nothing))
    }
}

impl Sink for Nothing {
    fn record(&self, _: &Arc<Record>) {}
}

/// A connection: its client port and sequence numbers.
struct Stream {
    port: u16,
    /// Next sequence numbers of client and server.
    next: [u32; 2],
}

/// Writes an Ethernet packet to `bytes`. `side`: 0 from the client, 1 from the server.
fn packet(stream: &mut Stream, side: usize, flags: u8, payload: &[u8], bytes: &mut Vec<u8>) {
    let (hosts, ports) = if side == 0 { ([1, 2], [stream.port, 8000]) } else { ([2, 1], [8000, stream.port]) };
    bytes.clear();
    bytes.extend([2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8, 0, 0x45, 0]);
    bytes.extend((52 + payload.len() as u16).to_be_bytes());
    bytes.extend((stream.next[side] as u16).to_be_bytes());
    bytes.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, hosts[0], 10, 0, 0, hosts[1]]);
    ports.iter().for_each(|port| bytes.extend(port.to_be_bytes()));
    bytes.extend(stream.next[side].to_be_bytes());
    bytes.extend(stream.next[1 - side].to_be_bytes());
    bytes.extend([0x80, flags, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1]);
    bytes.extend(payload);
    stream.next[side] = stream.next[side].wrapping_add(payload.len() as u32 + u32::from(flags & 2 != 0));
}

/// A tap, its streams, the time of the last packet, and a buffer for one packet.
struct Bench {
    tap: Tap,
    streams: Vec<Stream>,
    at: Duration,
    bytes: Vec<u8>,
}

impl Bench {
    fn new(observe: Arc<dyn Observe>, streams: u16) -> Bench {
        let servers = vec![Server { address: None, port: 8000, listener: 0 }];
        let tap = Tap::new(servers, observe, Limits::new(Budget::new(1 << 30)), Clock::new(EPOCH, Instant::now()));
        let streams = (0..streams).map(|n| Stream { port: 10_000 + n, next: [7; 2] }).collect();
        let mut bench = Bench { tap, streams, at: EPOCH, bytes: Vec::new() };
        for stream in 0..bench.streams.len() {
            for (side, flags, payload) in
                [(0, 2, &b""[..]), (1, 0x12, b""), (0, 0x10, b""), (0, 0x10, REQUEST), (1, 0x10, HEAD)]
            {
                bench.send(stream, side, flags, payload);
            }
        }
        bench
    }

    fn send(&mut self, stream: usize, side: usize, flags: u8, payload: &[u8]) {
        packet(&mut self.streams[stream], side, flags, payload, &mut self.bytes);
        let checksum = if side == 1 { Checksum::Sent } else { Checksum::Verified };
        let packet = Packet {
            link: Link::Ethernet,
            bytes: &self.bytes,
            original_len: self.bytes.len(),
            at: self.at,
            outgoing: Some(side == 1),
            checksum,
        };
        self.tap.packet(black_box(&packet));
    }
}

/// Returns the time to process `packets` packets, excluding the time to write them. Each stream in turn gets an event
/// from the server and the client's acknowledgement.
fn play(bench: &mut Bench, event: &[u8], packets: u64) -> Duration {
    let run = |bench: &mut Bench, taps: bool| {
        let begin = Instant::now();
        for n in 0..packets.div_ceil(2) {
            let stream = n as usize % bench.streams.len();
            bench.at += Duration::from_micros(20);
            if taps {
                bench.send(stream, 1, 0x10, event);
                bench.send(stream, 0, 0x10, b"");
            } else {
                let next = bench.streams[stream].next;
                packet(&mut bench.streams[stream], 1, 0x10, event, &mut bench.bytes);
                packet(&mut bench.streams[stream], 0, 0x10, b"", &mut bench.bytes);
                black_box(&bench.bytes);
                bench.streams[stream].next = next;
            }
        }
        begin.elapsed()
    };
    let writing = run(bench, false);
    run(bench, true).saturating_sub(writing)
}

fn per_packet(c: &mut Criterion) {
    let event = event();
    let mut group = c.benchmark_group("packet");
    for streams in [1, 256, 5000] {
        let observers = || Observers::new(Settings::default(), 1, Arc::new(Nothing));
        let cases: [(&str, Arc<dyn Observe>); 2] =
            [("tap", Arc::new(Nothing)), ("tap and observer", Arc::new(observers()))];
        for (name, observe) in cases {
            let mut bench = Bench::new(observe, streams);
            group.bench_function(BenchmarkId::new(name, streams), |b| {
                b.iter_custom(|packets| play(&mut bench, &event, packets));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, per_packet);
criterion_main!(benches);
