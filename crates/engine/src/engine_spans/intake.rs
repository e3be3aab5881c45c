//! Reads and validates one export request, within the size and time limits.

use std::io::Read;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc::UnboundedSender;
use tonic::body::Body;

use crate::engine_spans::message::{Message, Share};
use crate::engine_spans::response::{Protocol, Refused};
use crate::engine_spans::stats::Measurements;
use crate::engine_spans::{Settings, message, response, spans};

/// Common prefix of the OTLP over gRPC methods, followed by the signal's name.
const GRPC_PREFIX: &str = "/opentelemetry.proto.collector.";
const GRPC_TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// The default path of OTLP over HTTP. The client's endpoint setting may add a prefix.
const HTTP_TRACES: &str = "/v1/traces";
const HTTP_OTHERS: [&str; 2] = ["/v1/metrics", "/v1/logs"];

/// Bytes decompressed at a time.
const STEP: usize = 64 * 1024;

/// Size of the compression flag and the length before a gRPC message, in bytes.
const PREFIX: usize = 5;

const ONLY_TRACES: &str = "only traces are received here; send metrics and logs to a collector";
const ONLY_PROTOBUF: &str = "JSON is not supported; set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to http/protobuf or grpc (content type application/x-protobuf)";

/// Settings, statistics and destinations of received messages.
pub(crate) struct Intake {
    pub(crate) settings: Settings,
    pub(crate) measurements: Arc<Measurements>,
    /// Messages to the joiner. Unbounded, because the budget for messages being read limits them.
    pub(crate) join: UnboundedSender<Message>,
    /// Messages to the forwarder, if a collector is configured.
    pub(crate) forward: Option<UnboundedSender<Message>>,
}

impl Intake {
    /// Handles one request.
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let is_grpc = content_type(request.headers()).is_some_and(|kind| kind.starts_with("application/grpc"));
        let protocol = if is_grpc { Protocol::Grpc } else { Protocol::Http };
        match self.message(protocol, request).await.and_then(|message| self.pass_on(message)) {
            Ok(()) => response::accepted(protocol),
            Err(refused) => {
                self.measurements.refused(refused.why).add(1);
                tracing::debug!(?refused, "The engine span receiver refused a message.");
                response::refused(protocol, &refused)
            }
        }
    }

    /// Passes a message to the joiner, and to the forwarder if there is room.
    fn pass_on(&self, message: Message) -> Result<(), Refused> {
        let spans = message.spans;
        let accepted = self.forward.as_ref().is_none_or(|forward| {
            let share = self.measurements.waiting.share(message.bytes.len());
            share.is_some_and(|share| forward.send(message.shared(share)).is_ok())
        });
        // Join the spans even if there is no room to forward the message (the collector is down). Queue times remain
        // available, and the joiner ignores the spans when they are sent again.
        self.join.send(message).ok();
        if !accepted {
            return Err(Refused::busy());
        }
        self.measurements.received.add(spans);
        Ok(())
    }

    async fn message(&self, protocol: Protocol, request: Request<Incoming>) -> Result<Message, Refused> {
        let gzip = self.check(protocol, &request)?;
        let mut share = self.measurements.reading.share(0).ok_or_else(Refused::busy)?;
        let headers = message::forwarded_headers(request.headers());
        let body =
            tokio::time::timeout(self.settings.read_timeout, self.body(protocol, request.into_body(), &mut share));
        let body = body.await.map_err(|_| Refused::timeout())??;
        let (compressed, bytes) = match protocol {
            Protocol::Http => (gzip, body),
            Protocol::Grpc => framed(body)?,
        };
        if compressed && !gzip {
            return Err(Refused::malformed("the message is compressed, but grpc-encoding names no compression"));
        }
        let bytes = if compressed { self.decompress(&bytes, &mut share)? } else { bytes };
        let spans = spans::read(&bytes, |_| {}).map_err(|why| match why {
            spans::Error::Malformed => {
                Refused::malformed("the message is not an ExportTraceServiceRequest in protobuf")
            }
            spans::Error::TooManyItems => Refused::too_large(),
        })?;
        Ok(Message { bytes, headers, spans, _share: share })
    }

    /// Checks that the request is an export of traces; returns true if its messages may be gzip-compressed.
    fn check(&self, protocol: Protocol, request: &Request<Incoming>) -> Result<bool, Refused> {
        let (path, headers) = (request.uri().path(), request.headers());
        let unsupported = Refused::unsupported;
        let other_signal = match protocol {
            Protocol::Grpc => path.starts_with(GRPC_PREFIX),
            Protocol::Http => HTTP_OTHERS.iter().any(|other| path.ends_with(other)),
        };
        match protocol {
            Protocol::Grpc if path == GRPC_TRACES => {}
            Protocol::Http if path.ends_with(HTTP_TRACES) => {}
            _ if other_signal => return Err(unsupported(StatusCode::NOT_FOUND, ONLY_TRACES)),
            _ => return Err(unsupported(StatusCode::NOT_FOUND, "OTLP is received at /v1/traces, and over gRPC")),
        }
        if request.method() != Method::POST {
            return Err(unsupported(StatusCode::METHOD_NOT_ALLOWED, "OTLP is sent with POST"));
        }
        if protocol == Protocol::Http && content_type(headers) != Some("application/x-protobuf") {
            return Err(unsupported(StatusCode::UNSUPPORTED_MEDIA_TYPE, ONLY_PROTOBUF));
        }
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > self.most(protocol) as u64) {
            return Err(Refused::too_large());
        }
        let coding = match protocol {
            Protocol::Grpc => headers.get("grpc-encoding"),
            Protocol::Http => headers.get(header::CONTENT_ENCODING),
        };
        match coding.map(|value| value.as_bytes()) {
            None | Some(b"identity" | b"") => Ok(false),
            Some(b"gzip") => Ok(true),
            Some(_) => Err(unsupported(StatusCode::UNSUPPORTED_MEDIA_TYPE, "only gzip compression is supported")),
        }
    }

    fn most(&self, protocol: Protocol) -> usize {
        self.settings.max_message_bytes + if protocol == Protocol::Grpc { PREFIX } else { 0 }
    }

    async fn body(&self, protocol: Protocol, mut body: Incoming, share: &mut Share) -> Result<Bytes, Refused> {
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refused::malformed("the message was truncated"))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = read.len() + data.len();
            if length > self.most(protocol) {
                return Err(Refused::too_large());
            }
            grow(&mut read, length, share)?;
            read.extend_from_slice(&data);
        }
        Ok(read.freeze())
    }

    /// Decompresses gzip.
    fn decompress(&self, compressed: &[u8], share: &mut Share) -> Result<Bytes, Refused> {
        let mut decoder = MultiGzDecoder::new(compressed);
        let mut decompressed = BytesMut::new();
        let mut step = vec![0; STEP];
        loop {
            let read = decoder.read(&mut step).map_err(|_| Refused::malformed("the message is not valid gzip"))?;
            let Some(part) = step.get(..read).filter(|part| !part.is_empty()) else { return Ok(decompressed.freeze()) };
            let length = decompressed.len() + part.len();
            if length > self.settings.max_message_bytes {
                return Err(Refused::too_large());
            }
            grow(&mut decompressed, length, share)?;
            decompressed.extend_from_slice(part);
        }
    }
}

/// Grows `buffer` to hold at least `length` bytes in total, and reserves the added memory in the budget.
///
/// # Errors
/// The budget is exhausted.
fn grow(buffer: &mut BytesMut, length: usize, share: &mut Share) -> Result<(), Refused> {
    let before = buffer.capacity();
    if length > before {
        let wanted = length.next_power_of_two();
        if !share.grow(wanted - before) {
            return Err(Refused::busy());
        }
        buffer.reserve(wanted - buffer.len());
    }
    Ok(())
}

/// The content type without parameters.
fn content_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or_default().trim())
}

/// The single message of a unary call: whether it is compressed, and its bytes.
fn framed(mut body: Bytes) -> Result<(bool, Bytes), Refused> {
    let wrong = Refused::malformed("the call has no valid gRPC message framing");
    let prefix: Option<[u8; PREFIX]> = body.get(..PREFIX).and_then(|prefix| prefix.try_into().ok());
    let Some([flag, length @ ..]) = prefix else { return Err(wrong) };
    let message = body.split_off(PREFIX);
    if flag > 1 || u32::from_be_bytes(length) as usize != message.len() {
        return Err(wrong);
    }
    Ok((flag == 1, message))
}
