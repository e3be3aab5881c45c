//! Endpoints of the exporters: a collector that accepts everything, and a scraper.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Responds to every POST with an empty 200, which an OTLP/HTTP exporter treats as success.
pub(crate) async fn collect() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // A disconnected exporter is not an error of the bench.
                swallow(stream).await.unwrap_or_default();
            });
        }
    });
    Ok(address)
}

async fn swallow(mut stream: TcpStream) -> io::Result<()> {
    let mut inbox = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = memchr::memmem::find(&inbox, b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut inbox).await? == 0 {
                return Ok(());
            }
        };
        let text = String::from_utf8_lossy(inbox.get(..head).unwrap_or_default()).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let whole = head + length.unwrap_or(0);
        while inbox.len() < whole {
            if stream.read_buf(&mut inbox).await? == 0 {
                return Ok(());
            }
        }
        inbox.drain(..whole);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}

/// Fetches `/metrics` every five seconds until the future is dropped.
pub(crate) async fn scrape(admin: SocketAddr) {
    loop {
        // The admin server may not be up yet; the next round retries.
        fetch(admin).await.ok();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// A value without labels on the metrics page.
pub(crate) async fn value(admin: SocketAddr, name: &str) -> Option<f64> {
    let page = fetch(admin).await.ok()?;
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

async fn fetch(admin: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(admin).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}
