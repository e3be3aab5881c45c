//! Rewrite mode: the forwarded requests, the forwarded responses, and the records.
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod bodies;
mod endings;
mod findings;
mod parity;
mod protocols;
mod recordings;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use tokometer::app::DataPath;
use tokometer::replay::Notebook;
use tokometer_observe::observer;
use tokometer_proxy::listen::{Address, Listener};
use tokometer_proxy::relay;
use tokometer_rewrite::Settings;

use crate::listener::listener_to;
use crate::relay::peer;
use crate::relay::rig::tcp;

/// A proxy in rewrite mode, on one thread.
pub(crate) struct Proxy {
    path: Option<DataPath>,
    pub(crate) address: SocketAddr,
    pub(crate) notebook: Notebook,
}

/// Settings with all rewrites.
pub(crate) fn all() -> Settings {
    Settings { include_usage: true, traceparent: true, request_id: true, ..Settings::default() }
}

/// Settings with only `include_usage`.
pub(crate) fn usage() -> Settings {
    Settings { include_usage: true, ..Settings::default() }
}

impl Proxy {
    pub(crate) fn to(upstream: impl Into<Address>, settings: Settings) -> Proxy {
        Proxy::with(Listener { rewrite: Some(Arc::new(settings)), ..listener_to(upstream) })
    }

    pub(crate) fn with(listener: Listener) -> Proxy {
        let notebook = Notebook::default();
        let sink = Arc::new(notebook.clone());
        let path =
            DataPath::start(&[listener], relay::Settings::default(), observer::Settings::default(), sink, 1).unwrap();
        Proxy { address: tcp(&path.addresses()[0]), path: Some(path), notebook }
    }

    pub(crate) fn handles(&self) -> tokometer::app::Handles {
        self.path.as_ref().unwrap().handles()
    }

    /// Ends every connection, so that every request is recorded.
    pub(crate) fn stop(&mut self) {
        self.path.take().into_iter().for_each(DataPath::stop);
    }
}

/// Reads one request with a known length or in chunks; returns its headers, and its body without framing.
pub(crate) fn read_request(stream: &mut impl Read) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let body = match header(&head, "content-length") {
        Some(length) => {
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            body
        }
        None if header(&head, "transfer-encoding").is_some() => read_chunks(stream),
        None => Vec::new(),
    };
    (head, body)
}

/// The content of a chunked body.
pub(crate) fn read_chunks(stream: &mut impl Read) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let length = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let start = body.len();
        body.resize(start + length + 2, 0);
        stream.read_exact(&mut body[start..]).unwrap();
        body.truncate(start + length);
        if length == 0 {
            return body;
        }
    }
}

pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

/// A request to the chat API with this body.
pub(crate) fn chat(body: &[u8]) -> Vec<u8> {
    post("/v1/chat/completions", body)
}

/// A request to this path with this body.
pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Sends a request through the proxy in these pieces. The server at `listener` sends `response` and closes. Returns the
/// request that the server received, and the bytes that the client received.
pub(crate) fn exchange(
    proxy: &Proxy,
    listener: &TcpListener,
    pieces: &[&[u8]],
    response: &[&[u8]],
) -> ((String, Vec<u8>), Vec<u8>) {
    exchange_on(|| peer::dial(proxy.address), listener, pieces, response)
}

/// As [`exchange`], with the client's connection to the proxy from `dial`.
pub(crate) fn exchange_on(
    dial: impl FnOnce() -> TcpStream,
    listener: &TcpListener,
    pieces: &[&[u8]],
    response: &[&[u8]],
) -> ((String, Vec<u8>), Vec<u8>) {
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut stream = peer::prepare(listener.accept().unwrap().0);
            let request = read_request(&mut stream);
            for piece in response {
                stream.write_all(piece).unwrap();
            }
            request
        });
        let mut client = dial();
        for piece in pieces {
            client.write_all(piece).unwrap();
        }
        let mut got = Vec::new();
        client.read_to_end(&mut got).ok();
        (server.join().unwrap(), got)
    })
}
