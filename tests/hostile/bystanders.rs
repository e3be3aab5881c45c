//! Regular clients: streams that must not be delayed by the attack, compressed streams that must be counted, and
//! probes.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memchr::memmem::find;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::bombs::{CODINGS, encode};
use crate::options::REWRITES;
use crate::program::{get, page, status};
use crate::upstream::coded_parts;
use crate::{Outcome, limits, texts, wire};

/// Number of steady streams through tokometer: enough for every data path thread to have some.
pub(crate) const STREAMS: usize = 10;

/// Interval between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(40);

/// Interval between two compressed requests of one client.
const CODED_EVERY: Duration = Duration::from_millis(20);

/// The pages that are probed.
const PROBES: [&str; 4] = ["/livez", "/readyz", "/livez", "/startz"];

/// Observations of the bystanders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observations {
    /// Longest time from the upstream's write of an event to its arrival, through tokometer.
    pub(crate) pause: Duration,
    /// The same on a connection that bypasses tokometer.
    pub(crate) direct: Duration,
    /// Duration of the slowest probe.
    pub(crate) probe: Duration,
    /// Completed compressed streams, per coding.
    pub(crate) coded: [u64; CODINGS.len()],
    /// Steady streams that completed.
    pub(crate) whole: u64,
    /// Faults observed.
    pub(crate) faults: Vec<String>,
}

/// The running bystanders.
#[derive(Debug)]
pub(crate) struct Bystanders {
    seen: Arc<Mutex<Observations>>,
    stop: Arc<AtomicBool>,
    streams: JoinSet<()>,
    others: JoinSet<()>,
}

/// State shared by all bystanders.
#[derive(Clone, Debug)]
struct Notes {
    seen: Arc<Mutex<Observations>>,
    stop: Arc<AtomicBool>,
}

impl Notes {
    fn with<T>(&self, change: impl FnOnce(&mut Observations) -> T) -> T {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fault(&self, what: String) {
        self.with(|seen| seen.faults.push(what));
    }
}

impl Bystanders {
    /// Starts all bystanders. `clock` is the origin of the timestamps in the upstream's events. If the attack stops the
    /// program, only liveness is probed, and no compressed streams are started: their clients are idle between
    /// requests, and a stopping program closes idle connections.
    pub(crate) async fn start(
        listen: SocketAddr,
        admin: SocketAddr,
        upstream: SocketAddr,
        clock: Instant,
        stops: bool,
    ) -> Outcome<Bystanders> {
        let notes = Notes { seen: Arc::default(), stop: Arc::default() };
        let (mut streams, mut others) = (JoinSet::new(), JoinSet::new());
        for (number, address) in std::iter::repeat_n(listen, STREAMS).chain([upstream]).enumerate() {
            let connection = TcpStream::connect(address).await?;
            let (notes, direct) = (notes.clone(), address == upstream);
            streams.spawn(async move {
                match steady(connection, clock, direct, &notes).await {
                    Ok(()) if !direct => notes.with(|seen| seen.whole += 1),
                    Ok(()) => {}
                    Err(error) => notes.fault(format!("steady stream {number}: {error}")),
                }
            });
        }
        for (index, coding) in CODINGS.iter().enumerate().filter(|_| !stops) {
            let notes = notes.clone();
            others.spawn(async move {
                if let Err(error) = coded(listen, index, &notes).await {
                    notes.fault(format!("compressed stream ({coding}): {error}"));
                }
            });
        }
        let given = notes.clone();
        others.spawn(async move { probes(admin, if stops { &PROBES[..1] } else { &PROBES }, &given).await });
        Ok(Bystanders { seen: notes.seen, stop: notes.stop, streams, others })
    }

    /// Discards the times measured so far, which include the start.
    pub(crate) fn restart(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.pause, seen.direct, seen.probe) = Default::default();
    }

    /// Stops the compressed streams and the probes.
    pub(crate) async fn stop(&mut self) {
        self.stop.store(true, Relaxed);
        self.finish("compressed streams and probes", |all| &mut all.others).await;
    }

    /// Waits for the steady streams, which the upstream finishes, and returns all observations.
    pub(crate) async fn ended(&mut self) -> Observations {
        self.finish("steady streams", |all| &mut all.streams).await;
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn finish(&mut self, name: &str, which: impl Fn(&mut Bystanders) -> &mut JoinSet<()>) {
        let set = which(self);
        let all = async { while set.join_next().await.is_some() {} };
        if tokio::time::timeout(limits::LATEST_END, all).await.is_err() {
            set.abort_all();
            let fault = format!("{name} did not end within {:?}", limits::LATEST_END);
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).faults.push(fault);
        }
    }
}

/// One steady stream, until its end.
async fn steady(mut stream: TcpStream, clock: Instant, direct: bool, notes: &Notes) -> Outcome<()> {
    let body = br#"{"model":"steady","stream":true,"messages":[]}"#;
    stream.write_all(&wire::post("/v1/chat/completions", &[("x-kind", "steady")], body)).await?;
    let mut buffer: Vec<u8> = Vec::with_capacity(16 * 1024);
    let mut expected = 1;
    loop {
        if stream.read_buf(&mut buffer).await? == 0 {
            return Err(format!("cut after event {}", expected - 1).into());
        }
        let now = clock.elapsed();
        const MARK: &[u8] = b"\"content\":\"";
        let mut used = 0;
        while let Some(at) = find(&buffer[used..], MARK).map(|at| used + at + MARK.len()) {
            let Some(length) = find(&buffer[at..], b"\"") else { break };
            let text = String::from_utf8_lossy(&buffer[at..at + length]).into_owned();
            let numbers: Vec<u64> = text.split(' ').map_while(|number| number.parse().ok()).collect();
            let &[number, sent] = numbers.as_slice() else { return Err(format!("odd event {text:?}").into()) };
            if number != expected {
                return Err(format!("received event {number} instead of {expected}").into());
            }
            expected += 1;
            used = at + length;
            let late = now.saturating_sub(Duration::from_micros(sent));
            notes.with(|seen| {
                let pause = if direct { &mut seen.direct } else { &mut seen.pause };
                *pause = late.max(*pause);
            });
        }
        buffer.drain(..used);
        if find(&buffer, b"[DONE]").is_some() && buffer.ends_with(b"\r\n0\r\n\r\n") {
            return Ok(());
        }
    }
}

/// Compressed requests and responses, one after another on one connection; every byte is compared.
async fn coded(listen: SocketAddr, index: usize, notes: &Notes) -> Outcome<()> {
    let coding = CODINGS[index];
    let expected = coded_parts(coding)?.concat();
    let body =
        encode(coding, br#"{"model":"compressed","stream":true,"messages":[{"role":"user","content":"Hello"}]}"#)?;
    let fields = [("content-encoding", coding), ("x-kind", &format!("coded-{coding}"))];
    let request = wire::post("/v1/chat/completions", &fields, &body);
    let mut stream = TcpStream::connect(listen).await?;
    let mut response = vec![0; expected.len()];
    while !notes.stop.load(Relaxed) {
        stream.write_all(&request).await?;
        let same = if REWRITES.load(Relaxed) {
            let got = content(&mut stream).await?;
            got == content(&mut expected.as_slice()).await?
        } else {
            stream.read_exact(&mut response).await?;
            response == expected
        };
        if !same {
            return Err(io::Error::other("the response is not what the upstream sent").into());
        }
        notes.with(|seen| seen.coded[index] += 1);
        tokio::time::sleep(CODED_EVERY).await;
    }
    Ok(())
}

/// The body of a chunked response, without headers and framing, which rewrite mode may change.
async fn content(from: &mut (impl AsyncRead + Unpin)) -> Outcome<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(from.read_u8().await?);
    }
    let mut body = Vec::new();
    loop {
        let mut size = Vec::new();
        while !size.ends_with(b"\r\n") {
            size.push(from.read_u8().await?);
        }
        let length = usize::from_str_radix(String::from_utf8_lossy(&size).trim(), 16)?;
        let start = body.len();
        body.resize(start + length + 2, 0);
        from.read_exact(&mut body[start..]).await?;
        body.truncate(start + length);
        if length == 0 {
            return Ok(body);
        }
    }
}

/// Probes on new connections, as the kubelet sends them.
async fn probes(admin: SocketAddr, pages: &[&str], notes: &Notes) {
    for path in pages.iter().cycle() {
        if notes.stop.load(Relaxed) {
            return;
        }
        let begun = Instant::now();
        let response = page(admin, &get(path, &admin.to_string()), limits::PROBE).await;
        let took = begun.elapsed();
        notes.with(|seen| seen.probe = seen.probe.max(took));
        match response {
            Ok(response) if status(&response) == Some(200) => {}
            Ok(response) => notes.fault(format!("probe {path}: {:?}", response.lines().next().unwrap_or_default())),
            Err(error) => notes.fault(format!("probe {path}: {error}")),
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// The model of a coding's streams, by its index.
pub(crate) fn coded_model(index: usize) -> String {
    texts::coded_model(CODINGS[index])
}
