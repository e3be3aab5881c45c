//! Asks one side, one request after the other on one connection as long as that is kept open.

use std::io;
use std::io::Read;
use std::io::Write;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::time::Duration;
use std::time::Instant;

use crate::client::recording::Recording;
use crate::client::recording::State;
use crate::client::target::Target;

/// Most bytes of an answer; a list of metrics of a busy server has some megabytes.
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// How much is read at once.
const READ_BYTES: usize = 64 * 1024;

/// Why there is no answer. The words continue "the relay at ...".
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Its name has no address.
    #[error("has no address: {0}")]
    Resolve(#[source] io::Error),
    /// No connection could be made.
    #[error("cannot be reached: {0}")]
    Connect(#[source] io::Error),
    /// The connection failed.
    #[error("broke off: {0}")]
    Io(#[source] io::Error),
    /// The connection ended too early.
    #[error("closed the connection before the answer was whole")]
    Cut,
    /// It took too long.
    #[error("gave no whole answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// What came is no HTTP/1.1.
    #[error("answered what is no HTTP/1.1")]
    Malformed,
    /// The answer is too long.
    #[error("answered more than {MOST_BYTES} bytes")]
    TooLong,
}

/// A client of one side.
#[derive(Debug)]
pub struct Caller {
    target: Target,
    addresses: Vec<SocketAddr>,
    timeout: Duration,
    stream: Option<TcpStream>,
    /// Whether connections are used again.
    keeps: bool,
    asked_again: u64,
    buffer: Vec<u8>,
}

impl Caller {
    /// A client of this target; no answer may take longer than `timeout`.
    pub fn new(target: &Target, timeout: Duration) -> Caller {
        let buffer = vec![0; READ_BYTES];
        Caller {
            target: target.clone(),
            addresses: Vec::new(),
            timeout,
            stream: None,
            keeps: true,
            asked_again: 0,
            buffer,
        }
    }

    /// A client of this one address.
    pub fn at(address: SocketAddr, target: &Target, timeout: Duration) -> Caller {
        Caller { addresses: vec![address], ..Caller::new(target, timeout) }
    }

    /// Whom it asks.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// How often something was sent on a connection that the server was closing, and was sent again on a new one.
    pub fn asked_again(&self) -> u64 {
        self.asked_again
    }

    /// Asks, and reads the answer to its end. Time begins before a connection is opened, where one has to be.
    ///
    /// What was asked on a kept connection that ends before a byte came is asked again on a new one (RFC 9112, 9.3.1).
    ///
    /// # Errors
    /// Why there is no whole answer.
    pub fn ask(&mut self, request: &[u8]) -> Result<Recording, Failure> {
        if self.addresses.is_empty() {
            self.addresses = self.target.addresses().map_err(Failure::Resolve)?;
        }
        if let Some(kept) = self.stream.take().filter(is_open) {
            match self.exchange(kept, request, Instant::now())? {
                // A server that closes without a word (llama.cpp, after each stream) is given no second chance to.
                recording if recording.is_empty() => (self.keeps, self.asked_again) = (false, self.asked_again + 1),
                recording => return Ok(recording),
            }
        }
        let begun = Instant::now();
        let stream = self.connect().map_err(Failure::Connect)?;
        match self.exchange(stream, request, begun)? {
            recording if recording.is_empty() => Err(Failure::Cut),
            recording => Ok(recording),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in &self.addresses {
            match TcpStream::connect_timeout(address, self.timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// An empty recording: the connection ended before a byte came.
    fn exchange(&mut self, mut stream: TcpStream, request: &[u8], begun: Instant) -> Result<Recording, Failure> {
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
                State::More if recording.bytes().len() > MOST_BYTES => return Err(Failure::TooLong),
                State::More => {}
                State::Whole => break,
                State::Malformed => return Err(Failure::Malformed),
            }
        }
        if self.keeps && !recording.closes() {
            self.stream = Some(stream);
        }
        Ok(recording)
    }
}

/// Whether the other side has neither closed this connection nor sent what nobody asked for.
fn is_open(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let silent = matches!(looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    silent && stream.set_nonblocking(false).is_ok()
}
