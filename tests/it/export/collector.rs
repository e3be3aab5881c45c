//! An in-process collector: receives OTLP over HTTP and gRPC and keeps the messages.

use std::convert::Infallible;
use std::io::Read;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio_rustls::TlsAcceptor;
use tonic::codec::CompressionEncoding;
use tonic::transport::ServerTlsConfig;
use tonic::transport::server::TcpIncoming;

/// Received messages, in order.
#[derive(Default)]
pub(crate) struct Got {
    pub(crate) metrics: Vec<ExportMetricsServiceRequest>,
    pub(crate) traces: Vec<ExportTraceServiceRequest>,
    /// `path encoding authorization` of each HTTP request.
    pub(crate) heads: Vec<String>,
    /// Status and body of responses over HTTP; without one, requests are accepted.
    pub(crate) response: Option<(u16, Vec<u8>)>,
}

pub(crate) struct Collector {
    pub(crate) port: u16,
    pub(crate) got: Arc<Mutex<Got>>,
}

impl Collector {
    pub(crate) fn http() -> Collector {
        Collector::start(None, serve_http)
    }

    pub(crate) fn https(tls: TlsAcceptor) -> Collector {
        Collector::start(Some(tls), serve_http)
    }

    pub(crate) fn grpc_metrics() -> Collector {
        Collector::start((), serve_grpc_metrics)
    }

    pub(crate) fn grpc_traces() -> Collector {
        Collector::start((), serve_grpc_traces)
    }

    pub(crate) fn grpcs(tls: ServerTlsConfig) -> Collector {
        Collector::start(tls, serve_grpcs_traces)
    }

    fn start<F, R, T>(tls: T, serve: F) -> Collector
    where
        T: Send + 'static,
        F: FnOnce(tokio::net::TcpListener, Arc<Mutex<Got>>, T) -> R + Send + 'static,
        R: Future<Output = ()>,
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let got = Arc::new(Mutex::new(Got::default()));
        let kept = Arc::clone(&got);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                serve(tokio::net::TcpListener::from_std(listener).unwrap(), kept, tls).await;
            });
        });
        Collector { port, got }
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let got = self.got.lock().unwrap();
        let scopes = got.traces.iter().flat_map(|t| &t.resource_spans).flat_map(|r| &r.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }
}

async fn serve_http(listener: tokio::net::TcpListener, got: Arc<Mutex<Got>>, tls: Option<TlsAcceptor>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (got, tls) = (Arc::clone(&got), tls.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| response(request, Arc::clone(&got)));
            let http = hyper::server::conn::http1::Builder::new();
            match tls {
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => drop(http.serve_connection(TokioIo::new(stream), service).await),
                    Err(error) => eprintln!("handshake: {error}"),
                },
                None => drop(http.serve_connection(TokioIo::new(stream), service).await),
            }
        });
    }
}

async fn response(request: Request<Incoming>, got: Arc<Mutex<Got>>) -> Result<Response<Full<Bytes>>, Infallible> {
    // Compares the whole URI, because a client must send only the path.
    let path = request.uri().to_string();
    let header = |name| request.headers().get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
    let (encoding, authorization) = (header("content-encoding"), header("authorization"));
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body = if encoding == "gzip" {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(body.as_ref()).read_to_end(&mut plain).unwrap();
        plain
    } else {
        body.to_vec()
    };
    let mut got = got.lock().unwrap();
    got.heads.push(format!("{path} {encoding} {authorization}"));
    match path.as_str() {
        "/v1/metrics" => got.metrics.push(ExportMetricsServiceRequest::decode(body.as_slice()).unwrap()),
        "/v1/traces" => got.traces.push(ExportTraceServiceRequest::decode(body.as_slice()).unwrap()),
        _ => return Ok(Response::builder().status(404).body(Full::default()).unwrap()),
    }
    let (status, body) = got.response.clone().unwrap_or((200, Vec::new()));
    Ok(Response::builder().status(status).body(Full::from(body)).unwrap())
}

/// One service per port: combining services would need another crate.
async fn serve_grpc_metrics(listener: tokio::net::TcpListener, got: Arc<Mutex<Got>>, (): ()) {
    let service = MetricsServiceServer::new(Service(got)).accept_compressed(CompressionEncoding::Gzip);
    let incoming = TcpIncoming::from(listener);
    tonic::transport::Server::builder().serve_with_incoming(service, incoming).await.unwrap();
}

async fn serve_grpc_traces(listener: tokio::net::TcpListener, got: Arc<Mutex<Got>>, (): ()) {
    let service = TraceServiceServer::new(Service(got)).accept_compressed(CompressionEncoding::Gzip);
    let incoming = TcpIncoming::from(listener);
    tonic::transport::Server::builder().serve_with_incoming(service, incoming).await.unwrap();
}

async fn serve_grpcs_traces(listener: tokio::net::TcpListener, got: Arc<Mutex<Got>>, tls: ServerTlsConfig) {
    let service = TraceServiceServer::new(Service(got)).accept_compressed(CompressionEncoding::Gzip);
    let mut server = tonic::transport::Server::builder().tls_config(tls).unwrap();
    server = server.tcp_nodelay(true);
    server.serve_with_incoming(service, TcpIncoming::from(listener)).await.unwrap();
}

#[derive(Clone)]
struct Service(Arc<Mutex<Got>>);

impl Service {
    fn head<T>(&self, path: &str, request: &tonic::Request<T>) {
        let header = |name| request.metadata().get(name).map_or("-", |value| value.to_str().unwrap());
        let head = format!("{path} {} {}", header("grpc-encoding"), header("authorization"));
        self.0.lock().unwrap().heads.push(head);
    }
}

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        self.head("metrics", &request);
        self.0.lock().unwrap().metrics.push(request.into_inner());
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.head("traces", &request);
        self.0.lock().unwrap().traces.push(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}
