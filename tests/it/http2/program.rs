//! The whole program between two real HTTP/2 ends (the `h2` crate): 100 concurrent streams are forwarded unmodified,
//! and each has a correct record. In rewrite mode, the gRPC calls have the same records as in proxy mode.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokometer::app::DataPath;
use tokometer::replay::{Notebook, Replayed};
use tokometer_observe::measure::{CountSource, Outcome, Record};

use tokometer_proxy::listen::Listener;

use crate::end_to_end::{data_path, relay_to};
use crate::http2::messages::{framed, vllm, vllm_chunk, vllm_end, vllm_prompt};
use crate::listener::listener_to;
use crate::rewrite::usage;

const STREAMS: usize = 100;

/// Raised limit: by default `h2` closes a connection with many unread small frames, of which token streams consist.
const SMALL_FRAMES: usize = 1 << 24;

/// Kinds of requests; the header `x-kind` sends the kind to the server.
const KINDS: [&str; 5] = ["sse", "json", "grpc", "busy", "cancelled"];

/// Number of tokens in the response to a request.
fn tokens_of(number: usize) -> usize {
    1 + number % 7
}

/// A stream that records the bytes of both directions.
struct Taped {
    stream: TcpStream,
    tape: Tape,
}

/// The bytes that were read, and the bytes that were written.
type Tape = Arc<Mutex<(Vec<u8>, Vec<u8>)>>;

impl AsyncRead for Taped {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.tape.lock().unwrap().0.extend_from_slice(&buf.filled()[before..]);
        read
    }
}

impl AsyncWrite for Taped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.tape.lock().unwrap().1.extend_from_slice(&bytes[..count]);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Reads a body and its trailers to their end.
pub(crate) async fn drain(mut body: RecvStream) -> Result<(), h2::Error> {
    while let Some(bytes) = body.data().await.transpose()? {
        body.flow_control().release_capacity(bytes.len())?;
    }
    body.trailers().await.map(drop)
}

/// Synchronization points of the requests.
struct SyncPoints {
    /// The server responds only after it has received all requests.
    asked: Barrier,
    /// The client stays connected until the server has received every cancellation.
    cancelled: Barrier,
}

/// Serves connections until the first one ends. In proxy mode there is only one, whose bytes are in `tape`.
async fn serve_all(listener: TcpListener, tape: Tape, sync: Arc<SyncPoints>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                connections.spawn(serve(stream, Arc::clone(&tape), Arc::clone(&sync)));
            }
            Some(ended) = connections.join_next() => return ended.unwrap(),
        }
    }
}

async fn serve(stream: TcpStream, tape: Tape, sync: Arc<SyncPoints>) {
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(STREAMS as u32)
        .data_frame_budget(SMALL_FRAMES)
        .handshake::<_, Bytes>(Taped { stream, tape })
        .await
        .unwrap();
    while let Some(request) = connection.accept().await {
        let (request, respond) = request.unwrap();
        tokio::spawn(reply(request, respond, Arc::clone(&sync)));
    }
}

async fn reply(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, sync: Arc<SyncPoints>) {
    let header = |name| request.headers()[name].to_str().unwrap().to_owned();
    let (kind, number) = (header("x-kind"), header("x-request-id").parse().unwrap());
    drain(request.into_body()).await.unwrap();
    sync.asked.wait().await;
    let head = |content_type| Response::builder().header("content-type", content_type).body(()).unwrap();
    let grpc_status =
        |status| HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static(status))]);
    match kind.as_str() {
        "sse" => {
            let mut send = respond.send_response(head("text/event-stream"), false).unwrap();
            for _ in 0..tokens_of(number) {
                event(&mut send, r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}"#).await;
            }
            event(&mut send, r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#).await;
            let usage =
                format!(r#"{{"choices":[],"usage":{{"prompt_tokens":3,"completion_tokens":{}}}}}"#, tokens_of(number));
            event(&mut send, &usage).await;
            event(&mut send, "[DONE]").await;
            send.send_data(Bytes::new(), true).unwrap();
        }
        "json" => {
            let mut send = respond.send_response(head("application/json"), false).unwrap();
            let body = format!(
                r#"{{"choices":[{{"index":0,"message":{{"content":"a"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":3,"completion_tokens":{}}}}}"#,
                tokens_of(number)
            );
            send.send_data(body.into(), true).unwrap();
        }
        "grpc" => {
            let mut send = respond.send_response(head("application/grpc"), false).unwrap();
            send.send_data(framed(&vllm_prompt(3)).into(), false).unwrap();
            for _ in 0..tokens_of(number) {
                send.send_data(framed(&vllm_chunk(0, "a", 1)).into(), false).unwrap();
                tokio::task::yield_now().await;
            }
            send.send_data(framed(&vllm_end(0, tokens_of(number) as u32)).into(), false).unwrap();
            send.send_trailers(grpc_status("0")).unwrap();
        }
        "busy" => {
            let mut response = head("application/grpc");
            response.headers_mut().extend(grpc_status("8"));
            respond.send_response(response, true).unwrap();
        }
        _ => {
            let mut send = respond.send_response(head("application/grpc"), false).unwrap();
            send.send_data(framed(&vllm_chunk(0, "a", 1)).into(), false).unwrap();
            let reason = std::future::poll_fn(|cx| send.poll_reset(cx)).await.unwrap();
            assert_eq!(reason, Reason::CANCEL);
            sync.cancelled.wait().await;
        }
    }
}

async fn event(send: &mut SendStream<Bytes>, data: &str) {
    send.send_data(format!("data: {data}\n\n").into(), false).unwrap();
    tokio::task::yield_now().await;
}

async fn ask(mut send: SendRequest<Bytes>, number: usize) {
    let kind = KINDS[number % KINDS.len()];
    let is_grpc = !matches!(kind, "sse" | "json");
    let (path, content_type) = match is_grpc {
        true => ("/vllm.Inference/GenerateStream", "application/grpc"),
        false => ("/v1/chat/completions", "application/json"),
    };
    let request = Request::post(format!("http://server{path}"))
        .header("content-type", content_type)
        .header("x-kind", kind)
        .header("x-request-id", number.to_string())
        .body(())
        .unwrap();
    let body = match is_grpc {
        true => framed(&vllm::GenerateRequest { model: "m".to_owned(), ..Default::default() }),
        false => format!(r#"{{"model":"m","stream":{}}}"#, kind == "sse").into_bytes(),
    };
    let (response, mut stream) = send.send_request(request, false).unwrap();
    stream.send_data(body.into(), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    if kind == "cancelled" {
        assert!(body.data().await.unwrap().is_ok());
        stream.send_reset(Reason::CANCEL);
    } else {
        drain(body).await.unwrap();
    }
}

fn check(record: &Record) {
    let number: usize = record.request.id.as_ref().unwrap().parse().unwrap();
    let kind = KINDS[number % KINDS.len()];
    let tokens = record.tokens.output.map(|count| (count.tokens as usize, count.source));
    let usage = Some((tokens_of(number), CountSource::Usage));
    match kind {
        "sse" | "json" => assert_eq!((record.outcome, tokens), (Outcome::Ok, usage), "{record:?}"),
        "grpc" => {
            let counted = tokens.map(|(tokens, source)| (tokens, source != CountSource::Deltas));
            assert_eq!((record.outcome, counted), (Outcome::Ok, Some((tokens_of(number), true))), "{record:?}");
            assert_eq!(record.tokens.input.map(|count| count.tokens), Some(3));
        }
        "busy" => {
            assert_eq!((record.outcome, tokens), (Outcome::RejectedBusy, None), "{record:?}");
            assert_eq!(record.response.error_type.as_deref(), Some("RESOURCE_EXHAUSTED"));
        }
        _ => assert_eq!((record.outcome, tokens), (Outcome::ClientAbortMidStream, Some((1, CountSource::Deltas)))),
    }
    assert_eq!(record.labels.request_model.as_deref(), Some("m"));
    assert_eq!(record.times.first_token.is_some(), !matches!(kind, "json" | "busy"), "{record:?}");
}

/// Sends these requests through the proxy from `make`; returns the server's bytes, the client's bytes, and the records.
fn exchanged(
    numbers: &[usize],
    pooled: bool,
    make: impl FnOnce(SocketAddr, &Notebook) -> (DataPath, String),
) -> (Tape, Tape, Replayed) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let notebook = Notebook::default();
    let (server_tape, client_tape) = (Tape::default(), Tape::default());
    let path = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (path, url) = make(listener.local_addr().unwrap(), &notebook);
        let cancelled = numbers.iter().filter(|number| KINDS[*number % KINDS.len()] == "cancelled").count();
        let sync = Arc::new(SyncPoints { asked: Barrier::new(numbers.len()), cancelled: Barrier::new(cancelled + 1) });
        let served = tokio::spawn(serve_all(listener, Arc::clone(&server_tape), Arc::clone(&sync)));
        let stream = TcpStream::connect(url.trim_start_matches("http://")).await.unwrap();
        let (send, connection) = h2::client::Builder::new()
            .data_frame_budget(SMALL_FRAMES)
            .handshake::<_, Bytes>(Taped { stream, tape: Arc::clone(&client_tape) })
            .await
            .unwrap();
        let driven = tokio::spawn(connection);
        // Waits for the server's stream limit, which must be known before this many requests are sent.
        let mut send = send.ready().await.unwrap();
        let mut asked = Vec::new();
        for number in numbers {
            send = send.ready().await.unwrap();
            asked.push(tokio::spawn(ask(send.clone(), *number)));
        }
        for ask in asked {
            ask.await.unwrap();
        }
        sync.cancelled.wait().await;
        drop(send);
        driven.await.unwrap().unwrap();
        // If the proxy pools connections (rewrite mode), its server connection stays open and `served` does not end.
        if !pooled {
            served.await.unwrap();
        }
        path
    });
    path.stop();
    (server_tape, client_tape, notebook.take())
}

#[test]
fn hundred_streams_are_forwarded_unmodified_and_recorded() {
    let numbers: Vec<usize> = (0..STREAMS).collect();
    let (server_tape, client_tape, replayed) = exchanged(&numbers, false, relay_to);
    let (server_tape, client_tape) = (server_tape.lock().unwrap(), client_tape.lock().unwrap());
    assert!(client_tape.1.starts_with(b"PRI * HTTP/2.0\r\n"));
    assert!(client_tape.1 == server_tape.0, "the server reads what the client writes");
    // The client closes once it has all responses, so it may miss final acknowledgements from the server.
    assert!(server_tape.1.starts_with(&client_tape.0), "the client reads what the server writes");
    assert!(server_tape.1.len() - client_tape.0.len() < 64, "except for final control frames");
    assert_eq!((replayed.detached.len(), replayed.in_flight), (0, 0));
    assert_eq!(replayed.records.len(), STREAMS);
    let mut sequences: Vec<u64> = replayed.records.iter().map(|record| record.sequence).collect();
    sequences.sort_unstable();
    assert_eq!(sequences, (0..STREAMS as u64).collect::<Vec<_>>());
    replayed.records.iter().for_each(check);
}

#[test]
fn grpc_calls_have_the_same_records_in_rewrite_mode() {
    let is_grpc = |number: &usize| !matches!(KINDS[number % KINDS.len()], "sse" | "json");
    let numbers: Vec<usize> = (0..STREAMS).filter(is_grpc).collect();
    let (.., replayed) = exchanged(&numbers, true, |upstream, notebook| {
        let listener = Listener { rewrite: Some(Arc::new(usage())), ..listener_to(upstream) };
        data_path(listener, notebook)
    });
    assert_eq!((replayed.detached.len(), replayed.in_flight, replayed.records.len()), (0, 0, numbers.len()));
    replayed.records.iter().for_each(check);
}
