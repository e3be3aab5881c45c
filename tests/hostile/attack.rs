//! An attack: its name, the program's launch options, and the steps of its clients.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::Outcome;
use crate::program::Launch;

/// Source address of the attackers. It differs from the bystanders' address, so that limits per client apply
/// separately.
const SOURCE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2)), 0);

/// The attackers' steps; they end when everything is sent.
pub(crate) type Steps = Box<dyn Fn(Target) -> Pin<Box<dyn Future<Output = Outcome<()>> + Send>> + Send + Sync>;

/// An attack.
pub(crate) struct Attack {
    pub(crate) name: String,
    pub(crate) connections: usize,
    pub(crate) launch: Launch,
    /// Whether the data path's CPU time per byte is asserted: the attack sends enough bytes to measure it.
    pub(crate) costs: bool,
    /// Whether the attack stops the program itself; the bystanders must still be served to the end.
    pub(crate) stops: bool,
    pub(crate) steps: Steps,
}

impl Attack {
    /// An attack whose costs are not asserted.
    pub(crate) fn new<F>(name: &str, connections: usize, steps: impl Fn(Target) -> F + Send + Sync + 'static) -> Attack
    where
        F: Future<Output = Outcome<()>> + Send + 'static,
    {
        Attack {
            name: name.to_owned(),
            connections,
            launch: Launch::default(),
            costs: false,
            stops: false,
            steps: Box::new(move |target| Box::pin(steps(target))),
        }
    }

    /// An attack that sends `flood` on every connection, and whose costs are asserted.
    pub(crate) fn flood(name: &str, connections: usize, flood: Flood) -> Attack {
        let flood = Arc::new(flood);
        let steps = move |target: Target| {
            let flood = Arc::clone(&flood);
            async move { target.on_all(connections, |stream, at| flood.clone().send(stream, at)).await }
        };
        Attack { costs: true, ..Attack::new(name, connections, steps) }
    }
}

/// The attacked program, and the findings.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) upstream: SocketAddr,
    pub(crate) process: Pid,
    pub(crate) found: Arc<Found>,
}

/// Findings of an attack.
#[derive(Debug, Default)]
pub(crate) struct Found {
    bytes: AtomicU64,
    /// Number of requests that must be recorded; 0 if this is not asserted.
    requests: AtomicU64,
    faults: Mutex<Vec<String>>,
    /// Connections that stay open until all measurements are done.
    held: Mutex<Vec<TcpStream>>,
}

impl Found {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Closes the held connections.
    pub(crate) fn release(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Target {
    /// Records a fault unless `holds`.
    pub(crate) fn expect(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.found.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what());
        }
    }

    /// Adds to the number of requests that must be recorded.
    pub(crate) fn sent_requests(&self, count: usize) {
        self.found.requests.fetch_add(count as u64, Relaxed);
    }

    /// Keeps a connection open.
    pub(crate) fn hold(&self, stream: TcpStream) {
        self.found.held.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// Opens a connection to the data port.
    pub(crate) async fn connect(&self) -> Outcome<Hostile> {
        let stream = connect(self.listen, None).await?;
        Ok(Hostile { stream, target: self.clone() })
    }

    /// Runs `each` on `count` connections concurrently. Returns the first error after all have finished.
    pub(crate) async fn on_all<F>(&self, count: usize, each: impl Fn(Hostile, usize) -> F) -> Outcome<()>
    where
        F: Future<Output = Outcome<()>> + Send + 'static,
    {
        let mut all = tokio::task::JoinSet::new();
        for at in 0..count {
            all.spawn(each(self.connect().await?, at));
        }
        let mut first = Ok(());
        while let Some(done) = all.join_next().await {
            first = first.and(done?);
        }
        first
    }
}

/// Connects as an attacker; `buffer` is the receive buffer size, for attackers that read little.
pub(crate) async fn connect(address: SocketAddr, buffer: Option<u32>) -> Outcome<TcpStream> {
    connect_from(address, SOURCE.ip(), buffer).await
}

/// Connects from this address.
pub(crate) async fn connect_from(address: SocketAddr, source: IpAddr, buffer: Option<u32>) -> Outcome<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(SocketAddr::new(source, 0))?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An attacker's connection.
#[derive(Debug)]
pub(crate) struct Hostile {
    pub(crate) stream: TcpStream,
    target: Target,
}

impl Hostile {
    /// Writes and counts bytes, and discards the bytes that are received meanwhile.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Outcome<()> {
        let mut scratch = [0; 16 * 1024];
        let (mut read, mut write) = self.stream.split();
        let mut done = 0;
        while done < bytes.len() {
            tokio::select! {
                written = write.write(&bytes[done..]) => {
                    let written = written?;
                    done += written;
                    self.target.found.bytes.fetch_add(written as u64, Relaxed);
                }
                count = read.read(&mut scratch) => {
                    if count? == 0 {
                        return Err("closed by the peer".into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes bytes and waits for a response of `response` bytes.
    pub(crate) async fn ask(&mut self, bytes: &[u8], response: usize) -> Outcome<Vec<u8>> {
        self.stream.write_all(bytes).await?;
        self.target.found.bytes.fetch_add(bytes.len() as u64, Relaxed);
        let mut response = vec![0; response];
        self.stream.read_exact(&mut response).await?;
        Ok(response)
    }

    /// Reads and counts this many bytes.
    pub(crate) async fn receive(&mut self, bytes: usize) -> Outcome<()> {
        let mut scratch = vec![0; 64 * 1024];
        let mut left = bytes;
        while left > 0 {
            match self.stream.read(&mut scratch).await? {
                0 => return Err("closed instead of a response".into()),
                count => left = left.saturating_sub(count),
            }
        }
        self.target.found.bytes.fetch_add(bytes as u64, Relaxed);
        Ok(())
    }

    /// Writes bytes and waits for a response that contains `end`.
    pub(crate) async fn ask_until(&mut self, bytes: &[u8], end: &[u8]) -> Outcome<Vec<u8>> {
        self.stream.write_all(bytes).await?;
        self.target.found.bytes.fetch_add(bytes.len() as u64, Relaxed);
        let mut response = Vec::new();
        while memchr::memmem::find(&response, end).is_none() {
            if self.stream.read_buf(&mut response).await? == 0 {
                return Err("closed instead of a response".into());
            }
        }
        Ok(response)
    }

    /// Writes a request and waits for its response, which has a `content-length`.
    pub(crate) async fn request(&mut self, bytes: &[u8]) -> Outcome<()> {
        let response = self.ask_until(bytes, b"\r\n\r\n").await?;
        let end = memchr::memmem::find(&response, b"\r\n\r\n").ok_or("no headers")? + 4;
        let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let mut rest = vec![0; (end + length.ok_or("no length")?).saturating_sub(response.len())];
        self.stream.read_exact(&mut rest).await?;
        Ok(())
    }

    /// Keeps the connection open until all measurements are done.
    pub(crate) fn hold(self) {
        self.target.hold(self.stream);
    }
}

/// The bytes that each connection of a flood sends.
pub(crate) struct Flood {
    pub(crate) opening: Vec<u8>,
    /// The end of the response to the opening; empty if there is no response to wait for.
    pub(crate) opened: &'static [u8],
    /// Builds the `n`-th batch of bytes for the `c`-th connection: `(c, n)`.
    pub(crate) batch: Box<dyn Fn(usize, usize) -> Vec<u8> + Send + Sync>,
    /// Size in bytes of the response to wait for after each batch; 0 for none.
    pub(crate) response: usize,
    /// Bytes to send on each connection.
    pub(crate) bytes: usize,
    /// The upstream refuses the protocol: closed connections are reopened.
    pub(crate) refused: bool,
}

impl Flood {
    async fn send(self: Arc<Flood>, mut stream: Hostile, at: usize) -> Outcome<()> {
        let mut left = self.bytes;
        loop {
            let done = self.on_one(&mut stream, at, &mut left).await;
            if !self.refused || done.is_ok() {
                stream.hold();
                return done;
            }
            stream = stream.target.connect().await?;
        }
    }

    async fn on_one(&self, stream: &mut Hostile, at: usize, left: &mut usize) -> Outcome<()> {
        if self.opened.is_empty() {
            stream.write(&self.opening).await?;
        } else {
            stream.ask_until(&self.opening, self.opened).await?;
        }
        let mut number = 0;
        while *left > 0 {
            let batch = (self.batch)(at, number);
            *left = left.saturating_sub(batch.len());
            if self.response == 0 {
                stream.write(&batch).await?;
            } else {
                stream.ask(&batch, self.response).await?;
            }
            number += 1;
        }
        Ok(())
    }
}
