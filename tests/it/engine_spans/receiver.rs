use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use prost::Message;
use tokometer_engine::engine_spans::{Receiver, Refusal, Settings};
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;

use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn channel(receiver: &Receiver) -> Channel {
    Channel::from_shared(format!("http://{}", receiver.addresses()[0])).unwrap().connect().await.unwrap()
}

fn request(spans: usize, tag: u64) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest::decode(message(spans, tag).as_slice()).unwrap()
}

#[test]
fn grpc_and_http_share_a_port_with_and_without_gzip() {
    let kept = Arc::new(FakeCollector::default());
    let (receiver, _) = receive(Settings::default(), Some(Arc::clone(&kept)));
    let to = receiver.addresses()[0];
    runtime().block_on(async {
        let mut client = TraceServiceClient::new(channel(&receiver).await);
        let mut call = tonic::Request::new(request(3, 1));
        call.metadata_mut().insert("authorization", "Bearer engine".parse().unwrap());
        assert_eq!(client.export(call).await.unwrap().into_inner().partial_success, None);
        let mut client = client.send_compressed(CompressionEncoding::Gzip);
        client.export(request(500, 2)).await.unwrap();
    });
    assert_eq!(post_traces(to, &message(4, 3)), 200);
    let gzipped = "content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\nx-scope-orgid: team\r\n";
    assert_eq!(post(to, "/v1/traces", gzipped, &gzip(&message(600, 4))).0, 200);
    assert_eq!(post_traces(to, b""), 200, "a message may be empty");
    let measurements = receiver.measurements();
    until("every message", || kept.messages.lock().unwrap().len() == 5);
    let messages = kept.messages.lock().unwrap();
    for (n, (bytes, _)) in messages.iter().take(4).enumerate() {
        assert_eq!(bytes, &message([3, 500, 4, 600][n], n as u64 + 1), "the same bytes, in the same order");
    }
    assert_eq!(messages[0].1["authorization"], "Bearer engine");
    assert_eq!(messages[3].1["x-scope-orgid"], "team");
    assert!(messages.iter().all(|(_, headers)| headers.keys().all(|name| name != "content-encoding")));
    until("all counted", || measurements.forwarded.get() == 1107);
    assert_eq!(measurements.received.get(), 1107);
    receiver.stop(Duration::from_secs(1));
    assert_eq!(measurements.waiting_bytes(), 0);
}

#[test]
fn invalid_exports_are_refused_over_http() {
    let (receiver, _) = receive(Settings { max_message_bytes: 10_000, ..Settings::default() }, None);
    let to = receiver.addresses()[0];
    let protobuf = "content-type: application/x-protobuf\r\n";
    let gzipped = "content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\n";
    let zeros = gzip(&[0; 1_000_000]);
    for (path, headers, body, status, says) in [
        ("/v1/traces", "content-type: application/json\r\n", &b"{}"[..], 415, "http/protobuf"),
        ("/v1/traces", "", b"{}", 415, "http/protobuf"),
        ("/v1/metrics", protobuf, b"", 404, "only traces"),
        ("/v1/logs", protobuf, b"", 404, "only traces"),
        ("/else", protobuf, b"", 404, "/v1/traces"),
        ("/v1/traces", protobuf, b"this is no protobuf", 400, "ExportTraceServiceRequest"),
        ("/v1/traces", gzipped, b"this is no gzip", 400, "gzip"),
        ("/v1/traces", gzipped, &gzip(&message(9, 1))[..40], 400, "gzip"),
        ("/v1/traces", gzipped, &zeros, 413, "too large"),
        ("/v1/traces", protobuf, &[0; 10_001], 413, "too large"),
        ("/v1/traces", "content-type: application/x-protobuf\r\ncontent-encoding: br\r\n", b"x", 415, "gzip"),
    ] {
        let (got, response) = post(to, path, headers, body);
        let response = String::from_utf8_lossy(&response).into_owned();
        assert_eq!(got, status, "{path} {headers}: {response}");
        assert!(response.contains(says), "{response}");
    }
    let measurements = receiver.measurements();
    let counts = Refusal::ALL.iter().map(|why| measurements.refused(*why).get()).collect::<Vec<_>>();
    assert_eq!((counts, measurements.received.get(), measurements.waiting_bytes()), (vec![3, 2, 0, 0, 6], 0, 0));
    receiver.stop(Duration::from_secs(1));
}

#[test]
fn invalid_exports_are_refused_over_grpc() {
    let (receiver, _) = receive(Settings { max_message_bytes: 10_000, ..Settings::default() }, None);
    let to = receiver.addresses()[0];
    runtime().block_on(async {
        let channel = channel(&receiver).await;
        let metrics = ExportMetricsServiceRequest::default();
        let wrong = MetricsServiceClient::new(channel.clone()).export(metrics).await.unwrap_err();
        assert_eq!((wrong.code(), wrong.message().contains("only traces")), (Code::Unimplemented, true));
        let large = TraceServiceClient::new(channel).export(request(1000, 1)).await.unwrap_err();
        assert_eq!(large.code(), Code::ResourceExhausted);
        assert!(large.details().is_empty(), "a retry would be useless");

        // Sends data that no gRPC client would send.
        let stream = tokio::net::TcpStream::connect(to).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        for garbage in [
            &b""[..],
            b"\0\0\0",
            b"\0\0\0\0\x09short",
            b"\x02\0\0\0\0",
            b"\0\0\0\0\x03\xff\xff\xff",
            b"\x01\0\0\0\x01x",
        ] {
            let uri = "http://x/opentelemetry.proto.collector.trace.v1.TraceService/Export";
            let call = http::Request::post(uri).header("content-type", "application/grpc").body(()).unwrap();
            let (response, mut body) = client.send_request(call, false).unwrap();
            body.send_data(bytes::Bytes::copy_from_slice(garbage), true).unwrap();
            let response = response.await.unwrap();
            assert_eq!((response.status().as_u16(), response.headers()["grpc-status"].as_bytes()), (200, &b"3"[..]));
        }
    });
    receiver.stop(Duration::from_secs(1));
}

#[test]
fn slow_sender_times_out_and_frees_its_place() {
    let settings = Settings { read_timeout: Duration::from_millis(300), max_connections: 2, ..Settings::default() };
    let (receiver, _) = receive(settings, None);
    let (to, measurements) = (receiver.addresses()[0], receiver.measurements());
    // Both allowed connections are in use: `slow` has sent a part of a message, `silent` a part of the HTTP/2 preface.
    let mut slow = TcpStream::connect(to).unwrap();
    slow.write_all(b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\ncontent-length: 9000\r\n\r\nabc")
        .unwrap();
    let mut silent = TcpStream::connect(to).unwrap();
    silent.write_all(b"PR").unwrap();
    until("a closed connection", || {
        TcpStream::connect(to).unwrap().read_exact(&mut [0; 1]).ok();
        measurements.refused_connections.get() > 0
    });
    let mut response = String::new();
    slow.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    let mut nothing = Vec::new();
    // The read may fail with a reset, because the receiver has not read all data of `silent`.
    silent.read_to_end(&mut nothing).ok();
    assert!(nothing.is_empty());
    until("room", || measurements.waiting_bytes() == 0);
    until("a place", || {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok();
        let mut response = String::new();
        stream.read_to_string(&mut response).ok();
        response.contains(" 404 ")
    });
    receiver.stop(Duration::from_secs(1));
}

#[test]
fn overload_is_deferred_in_bounded_memory_without_loss() {
    let kept = Arc::new(FakeCollector::default());
    let most = 1 << 20;
    let settings = Settings { max_waiting_bytes: most, max_connections: 64, ..Settings::default() };
    let (receiver, _) = receive(settings.clone(), Some(Arc::clone(&kept)));
    let (to, measurements) = (receiver.addresses()[0], receiver.measurements());
    // The collector does not reply until `gate` is released.
    let gate = kept.gate.try_lock().unwrap();
    let (mut taken, mut put_off) = (0, 0);
    let limit = most + 4 * settings.max_message_bytes;
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..16)
            .map(|sender| {
                let measurements = Arc::clone(&measurements);
                scope.spawn(move || {
                    let mut counts = (0u64, 0u64);
                    for n in 0..15 {
                        let (status, response) = post(
                            to,
                            "/v1/traces",
                            "content-type: application/x-protobuf\r\n",
                            &message(1000, sender * 100 + n),
                        );
                        match status {
                            200 => counts.0 += 1,
                            429 => {
                                assert!(String::from_utf8_lossy(&response).contains("retry-after: 1\r\n"));
                                counts.1 += 1;
                            }
                            other => panic!("{other}"),
                        }
                        assert!(measurements.waiting_bytes() <= limit);
                    }
                    counts
                })
            })
            .collect();
        for sender in senders {
            let (one, other) = sender.join().unwrap();
            taken += one;
            put_off += other;
        }
    });
    assert_eq!(taken + put_off, 240);
    assert!(taken > 10 && put_off > 150, "{taken} taken, {put_off} put off");
    until("joined messages to be dropped", || measurements.waiting_bytes() <= most);
    let details = runtime().block_on(async {
        let mut client = TraceServiceClient::new(channel(&receiver).await);
        let busy = client.export(request(1000, 7777)).await.unwrap_err();
        assert_eq!(busy.code(), Code::ResourceExhausted);
        busy.details().to_vec()
    });
    assert!(
        String::from_utf8_lossy(&details).contains("google.rpc.RetryInfo"),
        "the response must contain a retry delay"
    );
    drop(gate);
    until("forwarding of all accepted spans", || measurements.forwarded.get() == taken * 1000);
    assert_eq!(measurements.received.get(), taken * 1000);
    until("room", || measurements.waiting_bytes() == 0);
    assert_eq!(post_traces(to, &message(1, 9)), 200);
    receiver.stop(Duration::from_secs(1));
}

#[test]
fn address_in_use_error_names_the_fix() {
    let (receiver, notebook) = receive(Settings::default(), None);
    let settings = Settings { listen: receiver.addresses().to_vec(), ..Settings::default() };
    let error = Receiver::start(&settings, Arc::new(notebook), None).unwrap_err().to_string();
    assert!(error.contains("engine_spans.listen") && error.contains(&receiver.addresses()[0].to_string()), "{error}");
    receiver.stop(Duration::from_secs(1));
}
