//! A client that only searches for the end of each stream. The load generator parses every event, and would limit the
//! throughput of the fastest proxies.

use std::io;
use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokometer_sim::load;
use tokometer_sim::load::{End, Summary};

/// Size of the read buffer in bytes.
const READ_BYTES: usize = 256 * 1024;

/// The end of a chunk, and the last chunk (RFC 9112, 7.1).
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// Requests chat streams on `settings.concurrency` connections for `settings.duration`.
pub(crate) async fn run(settings: load::Settings, address: SocketAddr) -> io::Result<Summary> {
    let ends = Instant::now() + settings.duration.unwrap_or_default();
    let messages = json!([{"role": "user", "content": settings.prompt}]);
    let body = json!({"model": settings.model, "messages": messages, "max_tokens": settings.max_tokens,
        "ignore_eos": settings.ignore_eos, "stream": true, "stream_options": {"include_usage": true}});
    let body = body.to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: \
         {}\r\n\r\n{body}",
        body.len()
    );
    let mut clients = JoinSet::<io::Result<u64>>::new();
    for _ in 0..settings.concurrency {
        let request = request.clone();
        clients.spawn(async move {
            let mut complete = 0;
            let work = async {
                let mut stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let mut buffer = vec![0; READ_BYTES];
                loop {
                    stream.write_all(request.as_bytes()).await?;
                    read_response(&mut stream, &mut buffer).await?;
                    complete += 1;
                }
            };
            match tokio::time::timeout_at(ends, work).await {
                Ok(failed) => failed,
                Err(_) => Ok(complete),
            }
        });
    }
    let mut summary = Summary { requests: settings.concurrency as u64, ..Summary::default() };
    summary.ends.insert(End::Unfinished, summary.requests);
    while let Some(ended) = clients.join_next().await {
        let complete = ended??;
        summary.requests += complete;
        *summary.ends.entry(End::Complete).or_default() += complete;
    }
    Ok(summary)
}

async fn read_response(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut end: Vec<u8> = Vec::new();
    let mut first = true;
    while end != LAST_CHUNK {
        let length = stream.read(buffer).await?;
        let bytes = &buffer[..length];
        if length == 0 || (std::mem::take(&mut first) && !bytes.starts_with(b"HTTP/1.1 200 ")) {
            return Err(io::Error::other(format!("bad response: {}", String::from_utf8_lossy(bytes))));
        }
        end.extend_from_slice(&bytes[length.saturating_sub(LAST_CHUNK.len())..]);
        end.drain(..end.len().saturating_sub(LAST_CHUNK.len()));
    }
    Ok(())
}
