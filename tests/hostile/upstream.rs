//! A minimal HTTP/1.1, HTTP/2 and WebSocket server. The request header `x-kind` selects the response.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::{Outcome, http2, texts};

/// Time between two events of a steady stream.
pub(crate) const CADENCE: Duration = Duration::from_millis(20);

/// Time between two events of a compressed stream.
const CODED_CADENCE: Duration = Duration::from_millis(4);

/// Delay of the kind `hold`, during which pipelined requests pile up.
const HOLD: Duration = Duration::from_millis(300);

/// The body of the kind `large`.
static LARGE: [u8; 1 << 20] = [b' '; 1 << 20];

/// The default response.
pub(crate) const FAST: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// The response to a WebSocket handshake with the key of the RFC's example (RFC 6455, section 1.3).
const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
    sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nsec-websocket-extensions: permessage-deflate\r\n\r\n";

/// The start of a streamed response.
const STREAMED: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n";

/// State shared by all connections.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Set to end the steady streams.
    pub(crate) finish: AtomicBool,
    /// Bytes received from tokometer.
    pub(crate) received: AtomicU64,
    /// Origin of the timestamps in events.
    pub(crate) started: Instant,
}

/// A running server. Dropping it closes all connections.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Upstream {
    /// Listens on a free port.
    pub(crate) async fn start() -> Outcome<Upstream> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared =
            Arc::new(Shared { finish: AtomicBool::new(false), received: AtomicU64::new(0), started: Instant::now() });
        let given = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    let shared = Arc::clone(&given);
                    connections.spawn(async move { serve(stream, shared).await.unwrap_or(()) });
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Upstream { address, shared, accepting })
    }
}

/// A connection with its unprocessed bytes.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) buffer: Vec<u8>,
    shared: Arc<Shared>,
}

impl Client {
    /// Waits for more bytes.
    pub(crate) async fn more(&mut self) -> io::Result<()> {
        let count = self.stream.read_buf(&mut self.buffer).await?;
        self.shared.received.fetch_add(count as u64, Relaxed);
        if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Takes the next bytes, up to and including this pattern.
    async fn until(&mut self, pattern: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, pattern) {
                return Ok(self.buffer.drain(..at + pattern.len()).collect());
            }
            self.more().await?;
        }
    }

    /// Drops this many bytes.
    async fn skip(&mut self, mut bytes: usize) -> io::Result<()> {
        loop {
            let here = bytes.min(self.buffer.len());
            self.buffer.drain(..here);
            bytes -= here;
            if bytes == 0 {
                return Ok(());
            }
            self.more().await?;
        }
    }

    /// Reads and discards everything.
    async fn sink(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            self.more().await?;
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut client = Client { stream, buffer: Vec::with_capacity(64 * 1024), shared: Arc::clone(&shared) };
    while client.buffer.len() < 4 {
        client.more().await?;
    }
    if client.buffer.starts_with(b"PRI ") {
        return http2::serve(client, shared).await;
    }
    loop {
        let head = String::from_utf8_lossy(&client.until(b"\r\n\r\n").await?).to_ascii_lowercase();
        let field = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(|value| value.trim().to_owned())
        };
        if field("upgrade").is_some() {
            client.stream.write_all(SWITCHED).await?;
            return client.sink().await;
        }
        if field("transfer-encoding").is_some() {
            return client.sink().await;
        }
        let number = |name: &str| field(name).and_then(|text| text.parse::<u64>().ok());
        client.skip(number("content-length").unwrap_or(0) as usize).await?;
        let kind = field("x-kind").unwrap_or_default();
        match kind.split_once('-').unwrap_or((&kind, "")) {
            ("steady", _) => steady(&mut client, &shared).await?,
            ("coded", coding) => coded(&mut client, coding).await?,
            ("chat", _) => {
                let model = field("x-model").unwrap_or_default();
                let body = texts::whole(&model, number("x-tokens"));
                let status = field("x-status").unwrap_or_else(|| "200".to_owned());
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                client.stream.write_all((head + &body).as_bytes()).await?;
            }
            ("large", _) => {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", LARGE.len());
                client.stream.write_all(head.as_bytes()).await?;
                client.stream.write_all(&LARGE).await?;
            }
            ("close", _) => {
                client.stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await?;
                return Ok(());
            }
            (kind, _) => {
                if kind == "hold" {
                    tokio::time::sleep(HOLD).await;
                }
                client.stream.write_all(FAST).await?;
            }
        }
    }
}

/// Sends numbered events with timestamps until the streams are to finish.
async fn steady(client: &mut Client, shared: &Shared) -> io::Result<()> {
    client.stream.write_all(format!("{STREAMED}\r\n").as_bytes()).await?;
    let mut ticks = tokio::time::interval(CADENCE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut number = 0;
    while !shared.finish.load(Relaxed) {
        ticks.tick().await;
        number += 1;
        let event = texts::event("steady", &texts::stamp(number, shared.started.elapsed()));
        client.stream.write_all(&chunk(event.as_bytes())).await?;
    }
    let end = texts::end("steady", number);
    client.stream.write_all(&[chunk(end.as_bytes()), b"0\r\n\r\n".to_vec()].concat()).await
}

/// One chunk of a body.
fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The parts of a compressed response as they are sent, one event each; the first one starts with the headers.
pub(crate) fn coded_parts(coding: &str) -> io::Result<Vec<Vec<u8>>> {
    let pieces = texts::coded(coding)?;
    let last = pieces.len() - 1;
    let part = |(at, piece): (usize, Vec<u8>)| {
        let mut bytes = Vec::new();
        if at == 0 {
            bytes.extend_from_slice(format!("{STREAMED}content-encoding: {coding}\r\n\r\n").as_bytes());
        }
        bytes.extend_from_slice(&chunk(&piece));
        if at == last {
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
        bytes
    };
    Ok(pieces.into_iter().enumerate().map(part).collect())
}

/// A compressed stream.
async fn coded(client: &mut Client, coding: &str) -> io::Result<()> {
    for part in coded_parts(coding)? {
        client.stream.write_all(&part).await?;
        tokio::time::sleep(CODED_CADENCE).await;
    }
    Ok(())
}
