//! Captures the packets of this network namespace: reads copies made by the kernel. A slow, stopped or killed reader
//! loses packets, but does not affect the traffic.

mod filter;
mod ring;

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokometer_settings::Size;

use crate::capture::ring::{BLOCK_BYTES, Losses, RETIRE, Ring, RingPacket};
use crate::packet::{Clock, Link, Packet};
use crate::tap::Tap;

/// Minimum number of blocks: one is read while the others are filled.
const MIN_BLOCKS: usize = 4;

/// Maximum time between two checks for gaps and idle connections, and between two calls of `keep_running`.
const TICK: Duration = Duration::from_millis(100);

/// Maximum age of the packets in the block that the kernel is filling: its timer may expire twice before the handover.
const FILLING: Duration = Duration::from_millis(3 * RETIRE.as_millis() as u64);

/// A larger difference between the clocks is a step of the system clock, not the inaccuracy of reading two clocks.
const STEP: Duration = Duration::from_millis(1);

/// Settings of `tokometer tap`, which captures packets instead of forwarding connections (docs/how-to/tap.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// TCP ports of the servers, as with `--port`. Each port is reported as a listener with the port as its name;
    /// `listeners` is not used.
    pub ports: Vec<u16>,
    /// Network interface, as with `--interface`: `eth0`, `lo`, or `any` for all interfaces.
    #[schemars(with = "String")]
    pub interface: Interface,
    /// Buffer size for captured packets waiting to be processed, in multiples of 512KiB. If the buffer is full, packets
    /// are lost and counted. Traffic is not affected.
    #[schemars(extend("x-range" = ["2MiB", "1GiB"]))]
    pub buffer: Size,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { ports: Vec::new(), interface: Interface::Any, buffer: Size(16 << 20) }
    }
}

/// The interfaces whose packets are captured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Interface {
    /// All interfaces.
    #[default]
    Any,
    /// The interface with this name, such as `eth0`.
    Named(String),
}

impl From<String> for Interface {
    fn from(name: String) -> Interface {
        if name == "any" { Interface::Any } else { Interface::Named(name) }
    }
}

impl From<Interface> for String {
    fn from(interface: Interface) -> String {
        interface.to_string()
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Interface::Any => "any",
            Interface::Named(name) => name,
        })
    }
}

/// Why packets cannot be captured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks the capability `NET_RAW`.
    #[error("the capability NET_RAW is missing")]
    NotPermitted,
    /// There is no such interface.
    #[error("there is no network interface `{0}`; write any, or one of the names that `ip link` prints")]
    NoInterface(String),
    /// The system has no memory for the ring, or does not support packet sockets.
    #[error("cannot open a packet socket with a ring of {bytes} bytes: {error}")]
    Socket {
        /// Length of the ring.
        bytes: usize,
        /// The system error.
        error: io::Error,
    },
}

/// An open capture. Packets wait in its ring until [`Capture::run`] is called.
#[derive(Debug)]
pub struct Capture {
    ring: Ring,
    clock: Clock,
    /// The kernel may have dropped packets, and not all blocks captured before the loss have been read.
    is_behind: bool,
}

impl Capture {
    /// Starts the capture.
    ///
    /// # Errors
    /// When the process lacks the capability, or the system lacks the interface or memory.
    pub fn open(settings: &Settings) -> Result<Capture, Error> {
        let buffer = usize::try_from(settings.buffer.0).unwrap_or(usize::MAX);
        let blocks = (buffer / BLOCK_BYTES).max(MIN_BLOCKS);
        let interface = match &settings.interface {
            Interface::Any => 0,
            Interface::Named(name) => ring::interface(name).ok_or_else(|| Error::NoInterface(name.clone()))?,
        };
        let is_loopback = matches!(&settings.interface, Interface::Named(name) if is_loopback(name));
        let ring = Ring::open(interface, &mut filter::ports(&settings.ports), blocks, is_loopback).map_err(
            |error| match error.kind() {
                io::ErrorKind::PermissionDenied => Error::NotPermitted,
                _ => Error::Socket { bytes: blocks * BLOCK_BYTES, error },
            },
        )?;
        Ok(Capture { ring, clock: read_clocks().0, is_behind: false })
    }

    /// The clock of packet times, for [`Tap::new`].
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Passes packets to `tap` until `keep_running` returns false, then ends all connections. Calls `keep_running` at
    /// least every 100 ms. System errors are passed to `on_error` and do not end the capture, because an interface that
    /// is down may come up again.
    pub fn run(mut self, tap: &mut Tap, mut keep_running: impl FnMut() -> bool, mut on_error: impl FnMut(io::Error)) {
        while keep_running() {
            tap.stats().ring_used.put(self.ring.waiting() as f64 / self.ring.blocks() as f64, Instant::now());
            if !self.read(tap, &mut on_error) {
                self.pause(tap, &mut on_error);
                self.ring.wait(TICK).unwrap_or_else(&mut on_error);
            }
        }
        // Read only the blocks captured until now: more packets may arrive faster than they are read.
        for _ in 0..self.ring.blocks() {
            if !self.read(tap, &mut on_error) {
                break;
            }
        }
        self.pause(tap, &mut on_error);
        let now = wall(&mut self.clock, tap);
        tap.end(now);
    }

    /// Processes the next block; false if there is none.
    fn read(&mut self, tap: &mut Tap, failed: &mut impl FnMut(io::Error)) -> bool {
        let Some(block) = self.ring.block() else { return false };
        let now = wall(&mut self.clock, tap);
        // After a step of the clock, an earlier packet may appear to come from the future.
        let at = |packet: &RingPacket<'_>| packet.at.min(now);
        let mut losses = Losses::default();
        if block.is_losing() {
            losses = block.losses().unwrap_or_else(|error| {
                failed(error);
                Losses::default()
            });
            // The losses counted just now may include losses after blocks that are not read yet.
            self.is_behind = true;
        }
        if self.is_behind {
            lost(losses, block.packets().next().map_or(now, |first| at(&first)), tap);
        }
        for packet in block.packets() {
            tap.packet(&Packet {
                link: Link::RawIp,
                bytes: packet.bytes,
                original_len: packet.original_len,
                at: at(&packet),
                outgoing: Some(packet.is_outgoing),
                checksum: packet.checksum,
            });
        }
        true
    }

    /// Called once all blocks from the kernel are read: reports losses, and checks for gaps and idle connections.
    fn pause(&mut self, tap: &mut Tap, failed: &mut impl FnMut(io::Error)) {
        // The kernel may hold older packets in the block that it is filling: use a time before all of them.
        let past = wall(&mut self.clock, tap).saturating_sub(FILLING);
        self.is_behind = false;
        match self.ring.losses() {
            Ok(losses) if losses != Losses::default() => lost(losses, past, tap),
            Ok(_) => {}
            Err(error) => failed(error),
        }
        tap.tick(past);
    }
}

/// Whether this is the loopback interface; false if unknown.
fn is_loopback(interface: &str) -> bool {
    let kind = std::fs::read_to_string(format!("/sys/class/net/{interface}/type")).unwrap_or_default();
    kind.trim().parse() == Ok(libc::ARPHRD_LOOPBACK)
}

fn lost(losses: Losses, at: Duration, tap: &mut Tap) {
    tap.stats().ring_full.add(losses.full);
    tap.lost(losses.packets, at);
}

/// The current time on the packets' clock. If the system clock was set, also corrects the clock of `tap` and marks open
/// requests, whose packet times may be wrong.
fn wall(clock: &mut Clock, tap: &mut Tap) -> Duration {
    let (now, wall, instant) = read_clocks();
    let expected = clock.instant(wall);
    let difference = expected.saturating_duration_since(instant) + instant.saturating_duration_since(expected);
    if difference > STEP {
        *clock = now;
        tap.set_clock(now);
        tap.lost(0, wall.saturating_sub(FILLING));
    }
    wall
}

/// Reads both clocks as close together as possible: returns the fastest of three readings.
fn read_clocks() -> (Clock, Duration, Instant) {
    let read = || {
        let before = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let took = before.elapsed();
        (took, wall, before + took / 2)
    };
    let (_, wall, instant) = [read(), read(), read()].into_iter().min().unwrap_or_else(read);
    (Clock::new(wall, instant), wall, instant)
}
