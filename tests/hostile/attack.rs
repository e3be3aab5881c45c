//! One attack: what it is called, how the program is started for it, and what its clients do.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::process::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::net::TcpStream;

use crate::Outcome;
use crate::program::Launch;

/// Where attackers connect from: another client than everybody else, who may not lose their share of anything to it.
const SOURCE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2)), 0);

/// What an attack's clients do; it ends when they have sent everything.
pub(crate) type Steps = Box<dyn Fn(Target) -> Pin<Box<dyn Future<Output = Outcome<()>> + Send>> + Send + Sync>;

/// An attack.
pub(crate) struct Attack {
    pub(crate) name: String,
    pub(crate) connections: usize,
    pub(crate) launch: Launch,
    /// The data path's CPU time per byte sent is asserted: the attack sends enough bytes to measure it.
    pub(crate) costs: bool,
    /// The attack stops the program itself, and everybody is to be served to the end all the same.
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

    /// The same bytes on every connection, as fast as they are taken.
    pub(crate) fn flood(name: &str, connections: usize, flood: Flood) -> Attack {
        let flood = Arc::new(flood);
        let steps = move |target: Target| {
            let flood = Arc::clone(&flood);
            async move { target.on_all(connections, |stream, at| flood.clone().send(stream, at)).await }
        };
        Attack { costs: true, ..Attack::new(name, connections, steps) }
    }
}

/// What is attacked, and what is found out about it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) upstream: SocketAddr,
    pub(crate) process: Pid,
    pub(crate) found: Arc<Found>,
}

/// What an attack reports.
#[derive(Debug, Default)]
pub(crate) struct Found {
    bytes: AtomicU64,
    /// Requests that have to be recorded; 0 when that is not asserted.
    requests: AtomicU64,
    faults: Mutex<Vec<String>>,
    /// Connections that stay open until everything is measured.
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

    /// Closes the connections.
    pub(crate) fn release(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Target {
    /// Notes what is wrong unless `holds`.
    pub(crate) fn expect(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.found.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what());
        }
    }

    /// So many requests were sent that have to be recorded.
    pub(crate) fn sent_requests(&self, count: usize) {
        self.found.requests.fetch_add(count as u64, Relaxed);
    }

    /// Keeps a connection open.
    pub(crate) fn hold(&self, stream: TcpStream) {
        self.found.held.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// A connection to the data port.
    pub(crate) async fn connect(&self) -> Outcome<Hostile> {
        let stream = connect(self.listen, None).await?;
        Ok(Hostile { stream, target: self.clone() })
    }

    /// Does the same on `count` connections at once. The first error is returned when all are done.
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

/// Connects as an attacker; `buffer` is the size of the receive buffer, for one who is not to take much.
pub(crate) async fn connect(address: SocketAddr, buffer: Option<u32>) -> Outcome<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(SOURCE)?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection of an attacker.
#[derive(Debug)]
pub(crate) struct Hostile {
    pub(crate) stream: TcpStream,
    target: Target,
}

impl Hostile {
    /// Writes bytes, which are counted; what comes back meanwhile is dropped.
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
                        return Err("closed by the other side".into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes bytes and waits for so many in return.
    pub(crate) async fn ask(&mut self, bytes: &[u8], answer: usize) -> Outcome<Vec<u8>> {
        self.stream.write_all(bytes).await?;
        self.target.found.bytes.fetch_add(bytes.len() as u64, Relaxed);
        let mut response = vec![0; answer];
        self.stream.read_exact(&mut response).await?;
        Ok(response)
    }

    /// Writes bytes and waits for a response that has this in it.
    pub(crate) async fn ask_until(&mut self, bytes: &[u8], end: &[u8]) -> Outcome<Vec<u8>> {
        self.stream.write_all(bytes).await?;
        self.target.found.bytes.fetch_add(bytes.len() as u64, Relaxed);
        let mut response = Vec::new();
        while memchr::memmem::find(&response, end).is_none() {
            if self.stream.read_buf(&mut response).await? == 0 {
                return Err("closed in place of a response".into());
            }
        }
        Ok(response)
    }

    /// Writes a request and waits for its response, which has a length.
    pub(crate) async fn request(&mut self, bytes: &[u8]) -> Outcome<()> {
        let response = self.ask_until(bytes, b"\r\n\r\n").await?;
        let end = memchr::memmem::find(&response, b"\r\n\r\n").ok_or("no headers")? + 4;
        let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let mut rest = vec![0; (end + length.ok_or("no length")?).saturating_sub(response.len())];
        self.stream.read_exact(&mut rest).await?;
        Ok(())
    }

    /// Stays open until everything is measured.
    pub(crate) fn hold(self) {
        self.target.hold(self.stream);
    }
}

/// The bytes that each connection of a flood sends.
pub(crate) struct Flood {
    pub(crate) opening: Vec<u8>,
    /// What ends the response to the opening; empty when none is waited for.
    pub(crate) opened: &'static [u8],
    /// The `n`-th bytes to send on the `c`-th connection: `(c, n)`.
    pub(crate) batch: Box<dyn Fn(usize, usize) -> Vec<u8> + Send + Sync>,
    /// Bytes of the response to each batch, which is waited for; 0 when there is none.
    pub(crate) answer: usize,
    /// Bytes to send on each connection.
    pub(crate) bytes: usize,
    /// The upstream refuses the protocol: a connection that was closed is opened anew.
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
            if self.answer == 0 {
                stream.write(&batch).await?;
            } else {
                stream.ask(&batch, self.answer).await?;
            }
            number += 1;
        }
        Ok(())
    }
}
