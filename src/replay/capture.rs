//! Runs capture files through the tap and the observers: the same code as a live capture, with the packets' timestamps.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokometer_observe::input::{Connection, Observe, Observer};
use tokometer_observe::observer::{Observers, Settings};
use tokometer_settings::Size;
use tokometer_tap::file::{self, is_capture};
use tokometer_tap::{Clock, Evidence, Limits, Server, Servers, Stats, Tap};

use crate::replay::{Error, Notebook, Replayed};

/// First bytes of a file compressed with gzip (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Memory budget for the observers of a capture. Large, because nothing else needs memory during a replay.
const MEMORY: Size = Size(1 << 30);

/// The contents of a capture file.
#[derive(Debug)]
pub struct Captured {
    /// The requests, ordered by start time, and what could not be parsed.
    pub replayed: Replayed,
    /// Servers found, with the evidence; empty if the ports were given.
    pub servers: Vec<(SocketAddr, Evidence)>,
    /// Client and server of each connection with a request, by connection number.
    pub ends: HashMap<u64, Ends>,
    /// Counters of the tap.
    pub stats: Arc<Stats>,
    /// Packets that were captured with only their first bytes.
    pub truncated: u64,
    /// Number of times that the clock of the capturing host was set back.
    pub set_back: u64,
    /// Times of the first packet of the file and of the latest one, since the Unix epoch.
    pub span: (Duration, Duration),
    /// Why the file could not be read to its end.
    pub broken: Option<file::Error>,
    /// The instant of the first packet.
    start: Instant,
}

/// Maximum time by which a packet may precede the latest one: packets of several interfaces are not in order. A larger
/// difference means that the clock was set back.
const DISORDER: Duration = Duration::from_secs(1);

/// Both ends of a connection.
#[derive(Clone, Debug)]
pub struct Ends {
    /// The client's address.
    pub client: SocketAddr,
    /// The server's address.
    pub server: Arc<str>,
}

/// True if the file begins like a capture.
///
/// # Errors
/// If the file is empty or compressed.
pub fn recognise(path: &Path) -> Result<bool, Error> {
    if path.metadata().is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Err(Error::EmptyFile(path.to_owned()));
    }
    let mut magic = [0; 4];
    // Files that cannot be read are reported when they are read as recordings.
    let is_read = File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok();
    if is_read && magic.starts_with(&GZIP) {
        return Err(Error::Compressed(path.to_owned()));
    }
    Ok(is_read && is_capture(magic))
}

impl Captured {
    /// Reads a capture. Without `ports`, detects the servers.
    ///
    /// # Errors
    /// If the file cannot be opened or contains no server. A damaged file is read up to the damage.
    pub fn read(path: &Path, ports: &[u16], settings: &Settings, timelines: bool) -> Result<Captured, Error> {
        let broken = |error| Error::Capture(path.to_owned(), error);
        if file::read(path).map_err(broken)?.next().is_none() {
            return Err(Error::NoPackets(path.to_owned()));
        }
        let found = if ports.is_empty() { find(path).map_err(broken)? } else { Vec::new() };
        let packets = file::read(path).map_err(broken)?;
        let servers = servers(&found, ports);
        if servers.is_empty() {
            return Err(Error::NoServer(path.to_owned(), packets.flatten().count() as u64));
        }
        let listeners = servers.iter().map(|server| server.listener + 1).max().unwrap_or(1);
        let notebook = Notebook::of_capture(timelines);
        let memory = if settings.memory.0 == 0 { MEMORY } else { settings.memory };
        let settings = Settings { memory, ..settings.clone() };
        let observers = Observers::new(settings, listeners, Arc::new(notebook.clone()));
        let limits = Limits::new(observers.budget());
        let observe = Arc::new(Addressed { observers, ends: Mutex::default() });
        let start = Instant::now();
        let mut packets = packets.peekable();
        // The loop below handles an error of the first packet.
        let first = packets.peek().and_then(|packet| packet.as_ref().ok()).map_or(Duration::ZERO, |packet| packet.at);
        let mut clock = Clock::new(first, start);
        let mut tap = Tap::new(servers, Arc::clone(&observe) as _, limits, clock);
        let (mut span, mut truncated, mut broken) = ((first, first), 0, None);
        let (mut latest, mut set_back) = (first, 0);
        for packet in packets {
            match packet {
                Ok(packet) => {
                    if packet.at + DISORDER < latest {
                        // No packet was lost, but this call marks the open requests, whose elapsed time is unknown.
                        tap.lost(0, latest);
                        clock = Clock::new(packet.at, clock.instant(latest));
                        tap.set_clock(clock);
                        (latest, set_back) = (packet.at, set_back + 1);
                    }
                    latest = latest.max(packet.at);
                    span.1 = span.1.max(packet.at);
                    truncated += u64::from(packet.original_len > packet.bytes.len());
                    tap.packet(&packet.as_packet());
                }
                Err(error) => broken = Some(error),
            }
        }
        tap.end(latest);
        let stats = Arc::clone(tap.stats());
        drop(tap);
        let ends = std::mem::take(&mut *observe.ends.lock().unwrap_or_else(PoisonError::into_inner));
        let mut replayed = notebook.take();
        replayed.records.sort_by_key(|record| record.started);
        Ok(Captured { replayed, servers: found, ends, stats, truncated, set_back, span, broken, start })
    }

    /// Time of this instant, since the Unix epoch.
    pub fn time(&self, at: Instant) -> Duration {
        // Never negative: no packet is processed with a time before that of the first packet.
        self.span.0 + at.saturating_duration_since(self.start)
    }
}

/// Detects the servers in a file. A damaged file is read up to the damage.
fn find(path: &Path) -> Result<Vec<(SocketAddr, Evidence)>, file::Error> {
    let mut servers = Servers::default();
    file::read(path)?.map_while(Result::ok).for_each(|packet| servers.packet(&packet.as_packet()));
    Ok(servers.found())
}

/// The servers to observe: one listener per port.
fn servers(found: &[(SocketAddr, Evidence)], ports: &[u16]) -> Vec<Server> {
    let given = ports.iter().map(|port| (None, *port));
    let found = found.iter().map(|(server, _)| (Some(server.ip()), server.port()));
    let all: Vec<_> = given.chain(found).collect();
    let mut ports: Vec<u16> = all.iter().map(|(_, port)| *port).collect();
    ports.sort_unstable();
    ports.dedup();
    let listener = |port| ports.binary_search(&port).unwrap_or_default();
    all.into_iter().map(|(address, port)| Server { address, port, listener: listener(port) }).collect()
}

/// Passes connections to the observers, and records both ends of each connection.
struct Addressed {
    observers: Observers,
    ends: Mutex<HashMap<u64, Ends>>,
}

impl Observe for Addressed {
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>> {
        if let Some(client) = connection.peer {
            let ends = Ends { client, server: Arc::clone(&connection.upstream) };
            self.ends.lock().unwrap_or_else(PoisonError::into_inner).insert(connection.id, ends);
        }
        self.observers.accepted(connection)
    }

    fn panicked(&self) {
        self.observers.panicked();
    }
}
