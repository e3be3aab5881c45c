//! Spans as vLLM 0.32.0 sends them with `--otlp-traces-endpoint`: one `llm_request` for each completed sequence, none
//! for aborted ones, in batches after a delay.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use bytes::BufMut;
use bytes::Bytes;
use bytes::BytesMut;
use http::Request;
use http::Uri;
use http_body_util::BodyExt;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use opentelemetry_proto::tonic::trace::v1::ScopeSpans;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::mpsc::unbounded_channel;

use crate::server::api::Api;
use crate::server::dialect::Context;
use crate::server::dialect::Summary;

/// Maximum number of spans in a batch: the OpenTelemetry SDK's default.
const BATCH: usize = 512;

/// Path of the gRPC call.
const GRPC: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Transport of OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// gRPC, vLLM's default.
    #[default]
    Grpc,
    /// HTTP with protobuf.
    HttpProtobuf,
}

impl FromStr for OtlpProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<OtlpProtocol, String> {
        match text {
            "grpc" => Ok(OtlpProtocol::Grpc),
            "http/protobuf" => Ok(OtlpProtocol::HttpProtobuf),
            other => Err(format!("invalid OTLP protocol `{other}`; use grpc or http/protobuf")),
        }
    }
}

/// Destination of the spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// URL of the receiver: `http://127.0.0.1:4317`; over HTTP it is used unchanged, path included.
    pub endpoint: String,
    /// Transport of OTLP.
    pub protocol: OtlpProtocol,
    /// Time between two batches (`OTEL_BSP_SCHEDULE_DELAY`: 5 s).
    pub delay: Duration,
}

/// Contents of a well-formed `traceparent` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    trace_id: u128,
    span_id: u64,
    sampled: bool,
}

impl Caller {
    pub(crate) fn parse(text: &str) -> Option<Caller> {
        let mut parts = text.trim().split('-').skip(1);
        let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Caller {
            trace_id: u128::from_str_radix(trace, 16).ok()?,
            span_id: u64::from_str_radix(span, 16).ok()?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        })
    }
}

/// Queues spans; they are sent while the simulator's runtime runs.
pub(crate) struct Tracer(UnboundedSender<Span>);

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tracer").finish()
    }
}

impl Tracer {
    /// Creates the tracer and the task that sends its spans.
    pub(crate) fn new(traces: Traces) -> (Tracer, impl Future<Output = ()> + Send + 'static) {
        let (sender, spans) = unbounded_channel();
        (Tracer(sender), send(traces, spans))
    }

    /// Sends the span of a completed request.
    pub(crate) fn request(&self, context: &Context, summary: &Summary, caller: Option<Caller>) {
        if caller.is_some_and(|caller| !caller.sampled) {
            return;
        }
        let (job, times) = (&context.job, &summary.times);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = &context.identity.id;
        let seconds = |time: Duration| Value::DoubleValue(time.as_secs_f64());
        let whole = |n: u64| Value::IntValue(i64::try_from(n).unwrap_or(i64::MAX));
        let attributes = [
            ("gen_ai.latency.time_to_first_token", seconds(times.queue + times.prefill)),
            ("gen_ai.latency.e2e", seconds(times.total())),
            ("gen_ai.latency.time_in_queue", seconds(times.queue)),
            ("gen_ai.usage.prompt_tokens", whole(job.prompt_tokens)),
            ("gen_ai.usage.completion_tokens", whole(summary.generated / u64::from(job.choices.max(1)))),
            ("gen_ai.latency.time_in_model_prefill", seconds(times.prefill)),
            ("gen_ai.latency.time_in_model_decode", seconds(times.decode)),
            ("gen_ai.latency.time_in_model_inference", seconds(times.prefill + times.decode)),
            ("gen_ai.request.id", Value::StringValue(request_id(job.api, id))),
            ("gen_ai.request.top_p", Value::DoubleValue(1.0)),
            ("gen_ai.request.max_tokens", whole(job.max_tokens)),
            ("gen_ai.request.temperature", Value::DoubleValue(1.0)),
            ("gen_ai.request.n", whole(u64::from(job.choices))),
        ];
        let trace_id = caller.map_or_else(|| fastrand::u128(1..), |caller| caller.trace_id);
        for _ in 0..job.choices.max(1) {
            let span = Span {
                trace_id: trace_id.to_be_bytes().to_vec(),
                span_id: fastrand::u64(1..).to_be_bytes().to_vec(),
                parent_span_id: caller.map(|caller| caller.span_id.to_be_bytes().to_vec()).unwrap_or_default(),
                flags: if caller.is_some() { 768 } else { 256 },
                name: "llm_request".to_owned(),
                kind: SpanKind::Server.into(),
                start_time_unix_nano: now.saturating_sub(times.total()).as_nanos() as u64,
                end_time_unix_nano: now.as_nanos() as u64,
                attributes: attributes.iter().map(|(key, value)| pair(key, value.clone())).collect(),
                ..Span::default()
            };
            // The channel is closed once the simulator shuts down.
            self.0.send(span).ok();
        }
    }
}

/// `gen_ai.request.id`: the response id, plus the number of the prompt or turn where vLLM adds one.
fn request_id(api: Api, id: &str) -> String {
    match api {
        Api::Completions => format!("cmpl-{id}-0"),
        Api::Responses => format!("resp_{id}_0"),
        _ => format!("chatcmpl-{id}"),
    }
}

fn pair(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

async fn send(traces: Traces, mut spans: UnboundedReceiver<Span>) {
    let mut sender = match Sender::new(&traces) {
        Ok(sender) => sender,
        Err(why) => return tracing::error!(why, endpoint = traces.endpoint, "the simulated server sends no spans"),
    };
    let mut batch = Vec::new();
    loop {
        // As the SDK does: a batch is sent after each delay, and immediately when it is full.
        let due = tokio::time::sleep(traces.delay);
        tokio::pin!(due);
        let open = loop {
            tokio::select! {
                () = &mut due => break true,
                span = spans.recv() => match span {
                    Some(span) => batch.push(span),
                    None => break false,
                },
            }
            if batch.len() >= BATCH {
                break true;
            }
        };
        if !batch.is_empty() {
            sender.send(std::mem::take(&mut batch)).await;
        }
        if !open {
            return;
        }
    }
}

struct Sender {
    uri: Uri,
    protocol: OtlpProtocol,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Sender {
    fn new(traces: &Traces) -> Result<Sender, String> {
        let given: Uri = traces.endpoint.parse().map_err(|error| format!("{error}"))?;
        let uri = match traces.protocol {
            OtlpProtocol::HttpProtobuf => given,
            OtlpProtocol::Grpc => {
                let authority = given.authority().ok_or("the URL names no host")?.clone();
                let built = Uri::builder().scheme("http").authority(authority).path_and_query(GRPC).build();
                built.map_err(|error| error.to_string())?
            }
        };
        let grpc = traces.protocol == OtlpProtocol::Grpc;
        let client = Client::builder(TokioExecutor::new()).http2_only(grpc).build_http();
        Ok(Sender { uri, protocol: traces.protocol, client })
    }

    /// Sends a batch; retries for a while on failure.
    async fn send(&mut self, spans: Vec<Span>) {
        let message = ExportTraceServiceRequest { resource_spans: vec![resource_spans(spans)] }.encode_to_vec();
        for pause in [1, 2, 4, 8] {
            match self.try_send(&message).await {
                Ok(()) => return,
                Err(why) => tracing::warn!(why, "the simulated server failed to send spans"),
            }
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
    }

    async fn try_send(&self, message: &[u8]) -> Result<(), String> {
        let grpc = self.protocol == OtlpProtocol::Grpc;
        let mut body = BytesMut::new();
        if grpc {
            body.put_u8(0);
            body.put_u32(message.len() as u32);
        }
        body.extend_from_slice(message);
        let kind = if grpc { "application/grpc" } else { "application/x-protobuf" };
        let request = Request::post(self.uri.clone()).header("content-type", kind).header("te", "trailers");
        let request = request.body(Full::new(body.freeze())).map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = trailers.get("grpc-status").or_else(|| head.headers.get("grpc-status"));
        match status.map(|status| status.as_bytes()) {
            _ if !head.status.is_success() => Err(format!("status {}", head.status)),
            Some(b"0") => Ok(()),
            None if !grpc => Ok(()),
            status => Err(format!("gRPC status {:?}", status.map(String::from_utf8_lossy))),
        }
    }
}

/// Resource and scope as recorded from vLLM.
fn resource_spans(spans: Vec<Span>) -> ResourceSpans {
    let text = |key: &str, value: &str| pair(key, Value::StringValue(value.to_owned()));
    let attributes = vec![
        text("telemetry.sdk.language", "python"),
        text("telemetry.sdk.name", "opentelemetry"),
        text("vllm.instrumenting_module_name", "vllm.llm_engine"),
        text("vllm.process_id", "1"),
        text("service.name", "unknown_service:python"),
    ];
    let scope = InstrumentationScope { name: "vllm.tracing.otel".to_owned(), ..InstrumentationScope::default() };
    ResourceSpans {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }],
        ..ResourceSpans::default()
    }
}
