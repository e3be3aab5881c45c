//! Spans as vLLM 0.32.0 sends them with `--otlp-traces-endpoint`: one `llm_request` for each completed sequence, none
//! for aborted sequences, in batches after a delay.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, span::SpanKind};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::server::dialect::{Context, Dialect, Scope, Summary, unix_time};
use crate::server::settings::Traces;

/// Maximum number of spans in a batch: the OpenTelemetry SDK's default.
const BATCH: usize = 512;

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
#[derive(Debug)]
pub(crate) struct Tracer(UnboundedSender<Span>);

impl Tracer {
    /// Creates the tracer and the task that sends its spans.
    pub(crate) fn new(traces: Traces) -> (Tracer, impl Future<Output = ()> + Send + 'static) {
        let (sender, spans) = unbounded_channel();
        (Tracer(sender), send(traces, spans))
    }

    /// Sends one span for each choice of a completed request, unless the caller does not sample its trace.
    pub(crate) fn request(&self, dialect: &Dialect, context: &Context, summary: &Summary, caller: Option<Caller>) {
        if caller.is_some_and(|caller| !caller.sampled) {
            return;
        }
        let (job, times) = (&context.job, &summary.times);
        let now = unix_time();
        // The response id, plus the number of the prompt or turn where vLLM adds one.
        let id = dialect.render("span", &Scope { context, ..Scope::default() });
        let id = if id.is_empty() { format!("chatcmpl-{}", context.id) } else { id };
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
            ("gen_ai.request.id", Value::StringValue(id)),
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
                attributes: attributes.iter().map(|(key, value)| attribute(key, value.clone())).collect(),
                ..Span::default()
            };
            // The channel is closed once the simulator shuts down.
            self.0.send(span).ok();
        }
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

async fn send(traces: Traces, mut spans: UnboundedReceiver<Span>) {
    let mut batch = Vec::new();
    loop {
        // As in the SDK, a batch is sent after each delay, and immediately when it is full.
        let due = Instant::now() + traces.delay;
        let mut open = true;
        while open && batch.len() < BATCH {
            match tokio::time::timeout_at(due, spans.recv()).await {
                Ok(Some(span)) => batch.push(span),
                Ok(None) => open = false,
                Err(_) => break,
            }
        }
        if !batch.is_empty() {
            let message =
                ExportTraceServiceRequest { resource_spans: vec![resource_spans(std::mem::take(&mut batch))] };
            export(&traces.endpoint, &message).await;
        }
        if !open {
            return;
        }
    }
}

/// Sends a batch; retries for a while on failure.
async fn export(endpoint: &str, message: &ExportTraceServiceRequest) {
    for pause in [1, 2, 4, 8] {
        let sent = match TraceServiceClient::connect(endpoint.to_owned()).await {
            Ok(mut client) => client.export(message.clone()).await.map(drop).map_err(|status| status.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let Err(error) = sent else { return };
        tracing::warn!(error, endpoint, "the simulated server failed to send spans");
        tokio::time::sleep(Duration::from_secs(pause)).await;
    }
}

/// Resource and scope as recorded from vLLM.
fn resource_spans(spans: Vec<Span>) -> ResourceSpans {
    let attributes = [
        ("telemetry.sdk.language", "python"),
        ("telemetry.sdk.name", "opentelemetry"),
        ("vllm.instrumenting_module_name", "vllm.llm_engine"),
        ("vllm.process_id", "1"),
        ("service.name", "unknown_service:python"),
    ];
    let attributes = attributes.map(|(key, value)| attribute(key, Value::StringValue(value.to_owned()))).to_vec();
    let scope = InstrumentationScope { name: "vllm.tracing.otel".to_owned(), ..InstrumentationScope::default() };
    ResourceSpans {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }],
        ..ResourceSpans::default()
    }
}
