//! One raw HTTP request, and parsing of the response bytes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokometer_sim::server::{Pace, Settings};

/// Settings of a server that responds immediately.
pub(crate) fn swift() -> Settings {
    let pace = Pace { time_to_first_token: Duration::ZERO, tokens_per_second: 0.0, tokens_per_chunk: 1, jitter: 0.0 };
    Settings { model: "tiny".to_owned(), pace, ..Settings::default() }
}

/// All bytes received until the connection ended, and how the connection ended.
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: io::Result<()>,
}

/// Sends a POST and reads until the server closes.
pub(crate) async fn post(address: SocketAddr, path: &str, headers: &str, body: &str) -> Received {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    round_trip(address, request.as_bytes()).await
}

/// Sends bytes and reads until the server closes.
pub(crate) async fn round_trip(address: SocketAddr, request: &[u8]) -> Received {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut bytes = Vec::new();
    let end = stream.read_to_end(&mut bytes).await.map(|_| ());
    Received { bytes, end }
}

/// Splits a response into headers and body.
pub(crate) fn split(bytes: &[u8]) -> (String, &[u8]) {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a response has headers");
    (String::from_utf8(bytes[..at].to_vec()).unwrap(), &bytes[at + 4..])
}

/// The chunks of a chunked body, and whether it is terminated.
pub(crate) fn chunks(mut body: &[u8]) -> (Vec<String>, bool) {
    let mut chunks = Vec::new();
    loop {
        let Some(at) = body.windows(2).position(|window| window == b"\r\n") else { return (chunks, false) };
        let size = usize::from_str_radix(std::str::from_utf8(&body[..at]).unwrap(), 16).unwrap();
        let data = &body[at + 2..];
        if size == 0 {
            assert_eq!(data, b"\r\n", "no bytes after the last chunk");
            return (chunks, true);
        }
        chunks.push(String::from_utf8(data[..size].to_vec()).unwrap());
        assert_eq!(&data[size..size + 2], b"\r\n");
        body = &data[size + 2..];
    }
}

/// The JSON of the events of a stream; panics unless each chunk is exactly one event.
pub(crate) fn events(body: &[u8]) -> Vec<Value> {
    let (chunks, _) = chunks(body);
    let payloads = chunks.iter().map(|chunk| {
        let event = chunk.strip_suffix("\n\n").expect("a chunk is a complete event");
        assert!(!event.contains('\n'), "a chunk is one event");
        event.strip_prefix("data: ").expect("an event has data")
    });
    payloads.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}
