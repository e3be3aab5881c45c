//! `tokometer replay`: runs recordings of real servers, and packet captures, through observe and measure: the same code
//! as in production, with the times of the recording. Prints the request records.

mod capture;
mod notebook;
mod print;
mod recording;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer_observe::input::{Close, Connection, Direction, Observe, Side};
use tokometer_observe::observer::{Observers, Settings};
use tokometer_tap::file;

pub use capture::{Captured, Ends, recognise as is_capture};
pub use notebook::{Notebook, Replayed};
pub use print::{Show, print};
pub use recording::{End, Recording};

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error(
        "cannot read {path}: {1}; a recording consists of CASE.jsonl and CASE.meta.json in the format \
         described in tests/fixtures/captures/README.md, and a capture is a pcap or pcapng file",
        path = .0.display()
    )]
    Read(PathBuf, #[source] io::Error),
    /// A line (from 1) does not have the required format; with the error, and the expected format.
    #[error("{path}:{1}: {2}", path = .0.display())]
    Format(PathBuf, usize, String),
    /// A directory contains no recording.
    #[error("no recording (CASE.jsonl with CASE.meta.json) in {}", .0.display())]
    Empty(PathBuf),
    /// The file is damaged, or not a capture.
    #[error("{path}: {1}", path = .0.display())]
    Capture(PathBuf, file::Error),
    /// The file is compressed.
    #[error("{} is compressed; decompress it first with gunzip", .0.display())]
    Compressed(PathBuf),
    /// The file has no bytes.
    #[error("{} is empty: the capture was not written, or its program was stopped before it wrote a packet", .0.display())]
    EmptyFile(PathBuf),
    /// The file has no packets.
    #[error("{} contains no packets: no traffic matched the filter and the interface of the capture", .0.display())]
    NoPackets(PathBuf),
    /// No endpoint of any connection in this number of packets is recognised as a server.
    #[error("{path}: no server found: {1} packets without a TCP handshake, an HTTP request or the beginning of a \
             response; name the server's port with --port", path = .0.display())]
    NoServer(PathBuf, u64),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Replays one recording through the observer.
pub fn replay(recording: &Recording, settings: &Settings) -> Replayed {
    let notebook = Notebook::default();
    let observers = Observers::new(settings.clone(), 1, Arc::new(notebook.clone()));
    let start = Instant::now();
    let connection = Connection { id: 1, peer: None, listener: 0, upstream: Arc::from("recording"), accepted: start };
    let Some(mut observer) = observers.accepted(&connection) else { return Replayed::default() };
    observer.seen(Direction::Request, &recording.request, start);
    let mut last = Duration::ZERO;
    for (at, bytes) in &recording.reads {
        observer.seen(Direction::Response, bytes, start + *at);
        last = last.max(*at);
    }
    let (at, close) = match recording.end {
        // A client that received everything closes the connection.
        None => (last, Close::Finished { first: Side::Client }),
        Some((at, End::Eof)) => (at, Close::Finished { first: Side::Server }),
        Some((at, End::Reset)) => (at, Close::Reset(Side::Server)),
        Some((at, End::ClientAbort | End::ClientTimeout)) => (at, Close::Finished { first: Side::Client }),
    };
    if close == (Close::Finished { first: Side::Server }) {
        observer.finished(Direction::Response, start + at);
    }
    observer.closed(close, start + at);
    drop(observer);
    notebook.take()
}
