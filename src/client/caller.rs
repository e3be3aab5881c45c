//! An HTTP client for one server. Sends one request at a time, on one connection as long as the server keeps it open.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::client::recording::{Recording, State};
use crate::client::target::Target;

/// Maximum size of a response in bytes; the metrics page of a busy server has several megabytes.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Maximum time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Size of the read buffer in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Why there is no complete response. Each message completes a sentence that begins "the relay at ...".
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The host name does not resolve.
    #[error("has no address: {0}")]
    Resolve(#[source] io::Error),
    /// The connection could not be opened.
    #[error("cannot be reached: {0}")]
    Connect(#[source] io::Error),
    /// The connection failed.
    #[error("failed: {0}")]
    Io(#[source] io::Error),
    /// The connection was closed too early.
    #[error("closed the connection before the response was complete")]
    Cut,
    /// The timeout expired.
    #[error("sent no complete response within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The response is not HTTP/1.1.
    #[error("sent a response that is not HTTP/1.1")]
    Malformed,
    /// The response is too large.
    #[error("sent more than {MAX_BYTES} bytes")]
    TooLong,
}

/// An HTTP client of one server.
#[derive(Debug)]
pub struct Caller {
    target: Target,
    addresses: Vec<SocketAddr>,
    timeout: Duration,
    stream: Option<TcpStream>,
    /// Whether connections are reused.
    reuse: bool,
    retried: u64,
    buffer: Vec<u8>,
}

impl Caller {
    /// Creates a client for this target. Each response must be complete within `timeout`.
    pub fn new(target: &Target, timeout: Duration) -> Caller {
        let buffer = vec![0; READ_BYTES];
        Caller { target: target.clone(), addresses: Vec::new(), timeout, stream: None, reuse: true, retried: 0, buffer }
    }

    /// Creates a client that connects to this address.
    pub fn at(address: SocketAddr, target: &Target, timeout: Duration) -> Caller {
        Caller { addresses: vec![address], ..Caller::new(target, timeout) }
    }

    /// The target of the requests.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Number of requests retried on a new connection because the server was closing the old one.
    pub fn retried(&self) -> u64 {
        self.retried
    }

    /// Sends a request and reads the complete response. Times include opening a connection, if one is needed.
    ///
    /// If a reused connection closes before the first response byte, the request is retried on a new connection (RFC
    /// 9112, 9.3.1).
    ///
    /// # Errors
    /// If there is no complete response.
    pub fn ask(&mut self, request: &[u8]) -> Result<Recording, Failure> {
        if self.addresses.is_empty() {
            self.addresses = self.target.addresses().map_err(Failure::Resolve)?;
        }
        if let Some(kept) = self.stream.take().filter(is_open) {
            match self.round_trip(kept, request, Instant::now())? {
                // After one such close, connections are no longer reused: llama.cpp closes after each stream.
                recording if recording.is_empty() => (self.reuse, self.retried) = (false, self.retried + 1),
                recording => return Ok(recording),
            }
        }
        let begun = Instant::now();
        let stream = self.connect().map_err(Failure::Connect)?;
        match self.round_trip(stream, request, begun)? {
            recording if recording.is_empty() => Err(Failure::Cut),
            recording => Ok(recording),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in &self.addresses {
            match TcpStream::connect_timeout(address, self.timeout.min(CONNECT_TIMEOUT)) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// One attempt; an empty recording means that the connection closed before the first byte.
    fn round_trip(&mut self, mut stream: TcpStream, request: &[u8], begun: Instant) -> Result<Recording, Failure> {
        let mut recording = Recording::new();
        let lost = |error: io::Error, recording: &Recording| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(Failure::Timeout(self.timeout)),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe if recording.is_empty() => Ok(Recording::new()),
            _ => Err(Failure::Io(error)),
        };
        if let Err(error) = stream.write_all(request) {
            return lost(error, &recording);
        }
        loop {
            let left = self.timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(Failure::Timeout(self.timeout));
            }
            stream.set_read_timeout(Some(left)).map_err(Failure::Io)?;
            let length = match stream.read(&mut self.buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return lost(error, &recording),
            };
            let at = begun.elapsed();
            if length == 0 {
                return if recording.is_empty() || recording.end() { Ok(recording) } else { Err(Failure::Cut) };
            }
            match recording.take(self.buffer.get(..length).unwrap_or_default(), at) {
                State::More if recording.bytes().len() > MAX_BYTES => return Err(Failure::TooLong),
                State::More => {}
                State::Whole => break,
                State::Malformed => return Err(Failure::Malformed),
            }
        }
        if self.reuse && !recording.closes() {
            self.stream = Some(stream);
        }
        Ok(recording)
    }
}

/// Whether the peer has neither closed this connection nor sent unsolicited bytes.
fn is_open(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let silent = matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    silent && stream.set_nonblocking(false).is_ok()
}
