//! The engine span receiver: what it accepts and refuses, forwards, and joins.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod collector_client;
mod forward;
mod program;
mod receiver;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokometer::replay::Notebook;
use tokometer_engine::engine_spans::{Collector, Receiver, Reply, Settings};

/// A fake collector in this process, behind the receiver.
#[derive(Default)]
pub(crate) struct FakeCollector {
    pub(crate) messages: Mutex<Vec<(Bytes, HeaderMap)>>,
    /// Replies to the next messages, in reverse order. Without one, the collector accepts the message.
    pub(crate) replies: Mutex<Vec<Reply>>,
    /// Replies are delayed while this is locked.
    pub(crate) gate: tokio::sync::Mutex<()>,
}

#[async_trait::async_trait]
impl Collector for FakeCollector {
    async fn export(&self, message: Bytes, headers: HeaderMap) -> Reply {
        let _open = self.gate.lock().await;
        let reply = self.replies.lock().unwrap().pop();
        if !matches!(reply, Some(Reply::Later { .. })) {
            self.messages.lock().unwrap().push((message, headers));
        }
        reply.unwrap_or(Reply::Taken { rejected: 0 })
    }
}

/// A receiver on a free port, with only `collector` behind it.
pub(crate) fn receive(settings: Settings, collector: Option<Arc<FakeCollector>>) -> (Receiver, Notebook) {
    let settings = Settings { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..settings };
    let notebook = Notebook::default();
    let collector = collector.map(|kept| kept as Arc<dyn Collector>);
    (Receiver::start(&settings, Arc::new(notebook.clone()), collector).unwrap(), notebook)
}

/// A message with this many spans; `tag` makes it unique.
pub(crate) fn message(spans: usize, tag: u64) -> Vec<u8> {
    let span = |n: usize| Span {
        trace_id: (u128::from(tag) << 64 | n as u128 | 1 << 127).to_be_bytes().to_vec(),
        span_id: (n as u64 + 1).to_be_bytes().to_vec(),
        name: "llm_request".to_owned(),
        ..Span::default()
    };
    let scope_spans = vec![ScopeSpans { spans: (0..spans).map(span).collect(), ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// Posts over HTTP/1.1 on a new connection; returns the status and the whole response.
pub(crate) fn post(to: SocketAddr, path: &str, headers: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The write may fail, because a server that refuses early does not read the body.
    stream.write_all(body).ok();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).ok();
    let status = std::str::from_utf8(response.get(9..12).unwrap_or_default()).unwrap().parse().unwrap_or(0);
    (status, response)
}

pub(crate) fn post_traces(to: SocketAddr, body: &[u8]) -> u16 {
    post(to, "/v1/traces", "content-type: application/x-protobuf\r\n", body).0
}

/// Waits until the condition holds.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not happen within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}
