//! One export request: read within its limits, and parsed as far as its response requires.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use bytes::BytesMut;
use flate2::read::MultiGzDecoder;
use http::HeaderMap;
use http::Method;
use http::Request;
use http::Response;
use http::StatusCode;
use http::header;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::engine_spans::Settings;
use crate::engine_spans::answer;
use crate::engine_spans::answer::Form;
use crate::engine_spans::answer::Refused;
use crate::engine_spans::answer::Said;
use crate::engine_spans::budget::Budget;
use crate::engine_spans::budget::Share;
use crate::engine_spans::message;
use crate::engine_spans::message::Message;
use crate::engine_spans::spans;
use crate::engine_spans::stats::Figures;

/// Common prefix of the OTLP over gRPC methods, followed by the signal's name.
const GRPC_PREFIX: &str = "/opentelemetry.proto.collector.";
const GRPC_TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// The default path of OTLP over HTTP; a prefix depends on the client's endpoint setting.
const HTTP_TRACES: &str = "/v1/traces";
const HTTP_OTHERS: [&str; 2] = ["/v1/metrics", "/v1/logs"];

/// Bytes decompressed at a time.
const STEP: usize = 64 * 1024;

/// Length of the flag and length fields before a gRPC message.
const PREFIX: usize = 5;

const ONLY_TRACES: &str = "only traces are received here; send metrics and logs to a collector";
const ONLY_PROTOBUF: &str = "JSON is not supported; set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL to http/protobuf or grpc (content type application/x-protobuf)";

/// Receives complete messages.
pub(crate) trait Inbox: Send + Sync + 'static {
    /// Passes on a message to be joined, and to be forwarded if there is room; returns whether there was. Must not
    /// block.
    fn take(&self, message: Message) -> bool;
}

/// Everything needed to read messages.
pub(crate) struct Intake {
    pub(crate) settings: Settings,
    /// Memory for messages while they are read.
    pub(crate) budget: Budget,
    pub(crate) figures: Arc<Figures>,
    pub(crate) inbox: Box<dyn Inbox>,
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intake").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Intake {
    /// Handles one request.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Said> {
        let is_grpc = content_type(request.headers()).is_some_and(|kind| kind.starts_with("application/grpc"));
        let form = if is_grpc { Form::Grpc } else { Form::Http };
        let taken = self.message(form, request).await.and_then(|message| {
            let spans = message.spans;
            if self.inbox.take(message) { Ok(spans) } else { Err(Refused::busy()) }
        });
        match taken {
            Ok(spans) => {
                self.figures.receive(spans);
                answer::taken(form)
            }
            Err(refused) => {
                self.figures.refuse(refused.why);
                tracing::debug!(?refused, "The engine span receiver refused a message.");
                answer::refused(form, &refused)
            }
        }
    }

    async fn message(&self, form: Form, request: Request<Incoming>) -> Result<Message, Refused> {
        let gzip = self.check(form, &request)?;
        let mut share = self.budget.share(0).ok_or_else(Refused::busy)?;
        let headers = message::passed_on(request.headers());
        let body = tokio::time::timeout(self.settings.read_timeout, self.body(form, request.into_body(), &mut share));
        let body = body.await.map_err(|_| Refused::timeout())??;
        let bytes = match form {
            Form::Http if gzip => self.undo(&body, &mut share)?,
            Form::Http => body,
            Form::Grpc => {
                let (compressed, message) = framed(body)?;
                if compressed && !gzip {
                    return Err(Refused::malformed(
                        "the message is compressed, but grpc-encoding names no compression",
                    ));
                }
                if compressed { self.undo(&message, &mut share)? } else { message }
            }
        };
        let spans = spans::read(&bytes, |_| {})
            .map_err(|_| Refused::malformed("the message is not an ExportTraceServiceRequest in protobuf"))?;
        Ok(Message { bytes, headers, spans, _share: share })
    }

    /// Checks that the request is an export of traces; returns true where its messages may be gzip-compressed.
    fn check(&self, form: Form, request: &Request<Incoming>) -> Result<bool, Refused> {
        let (path, headers) = (request.uri().path(), request.headers());
        let unsupported = Refused::unsupported;
        let other_signal = match form {
            Form::Grpc => path.starts_with(GRPC_PREFIX),
            Form::Http => HTTP_OTHERS.iter().any(|other| path.ends_with(other)),
        };
        match form {
            Form::Grpc if path == GRPC_TRACES => {}
            Form::Http if path.ends_with(HTTP_TRACES) => {}
            _ if other_signal => return Err(unsupported(StatusCode::NOT_FOUND, ONLY_TRACES)),
            _ => return Err(unsupported(StatusCode::NOT_FOUND, "OTLP is received at /v1/traces, and over gRPC")),
        }
        if request.method() != Method::POST {
            return Err(unsupported(StatusCode::METHOD_NOT_ALLOWED, "OTLP is sent with POST"));
        }
        if form == Form::Http && content_type(headers) != Some("application/x-protobuf") {
            return Err(unsupported(StatusCode::UNSUPPORTED_MEDIA_TYPE, ONLY_PROTOBUF));
        }
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > self.most(form) as u64) {
            return Err(Refused::too_large());
        }
        let coding = match form {
            Form::Grpc => headers.get("grpc-encoding"),
            Form::Http => headers.get(header::CONTENT_ENCODING),
        };
        match coding.map(|value| value.as_bytes()) {
            None | Some(b"identity" | b"") => Ok(false),
            Some(b"gzip") => Ok(true),
            Some(_) => Err(unsupported(StatusCode::UNSUPPORTED_MEDIA_TYPE, "only gzip compression is supported")),
        }
    }

    fn most(&self, form: Form) -> usize {
        self.settings.max_message_bytes + if form == Form::Grpc { PREFIX } else { 0 }
    }

    async fn body(&self, form: Form, mut body: Incoming, share: &mut Share) -> Result<Bytes, Refused> {
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refused::malformed("the message was truncated"))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = read.len() + data.len();
            if length > self.most(form) {
                return Err(Refused::too_large());
            }
            grow(&mut read, length, share)?;
            read.extend_from_slice(&data);
        }
        Ok(read.freeze())
    }

    /// Decompresses gzip.
    fn undo(&self, compressed: &[u8], share: &mut Share) -> Result<Bytes, Refused> {
        let mut decoder = MultiGzDecoder::new(compressed);
        let mut undone = BytesMut::new();
        let mut step = vec![0; STEP];
        loop {
            let read = decoder.read(&mut step).map_err(|_| Refused::malformed("the message is not valid gzip"))?;
            let Some(part) = step.get(..read).filter(|part| !part.is_empty()) else { return Ok(undone.freeze()) };
            let length = undone.len() + part.len();
            if length > self.settings.max_message_bytes {
                return Err(Refused::too_large());
            }
            grow(&mut undone, length, share)?;
            undone.extend_from_slice(part);
        }
    }
}

/// Makes room for this total length and charges the buffer's growth to the share.
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
