//! Traffic of a real implementation (the `h2` crate): compression with tables and Huffman codes, flow control, many
//! streams. The parser must report the messages that both sides exchanged.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokometer_wire::Limits;

use crate::wire::http2::trace::{Outcome, feed, feed_random_splits};
use crate::wire::traffic::{Fields, Reported, Step};

/// The writes of both sides in order.
type Log = Arc<Mutex<Vec<Step>>>;

/// One end of a connection, whose writes are recorded.
struct Recorded {
    stream: DuplexStream,
    log: Log,
    step: fn(Vec<u8>) -> Step,
}

impl AsyncRead for Recorded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            let step = (self.step)(bytes[..count].to_vec());
            self.log.lock().unwrap().push(step);
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

/// One request and its response, as both sides send them.
#[derive(Clone, Debug)]
struct Case {
    path: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    reply: Vec<Vec<u8>>,
    trailers: Vec<(String, String)>,
    /// The server resets the stream after the body of its response.
    reset: bool,
}

fn case() -> impl Strategy<Value = Case> {
    // There are few names and values, so that table entries are reused. Some values are long, so that entries are
    // evicted.
    let name = "x-[a-c]{1,2}";
    let value = prop_oneof!["[ -~]{0,3}[!-~]".prop_map(|v| v.trim_start().to_owned()), "[!-~]{600,900}"];
    let fields = vec((name, value), 0..6);
    let body = vec(any::<u8>(), 0..400);
    let reply = vec(vec(any::<u8>(), 0..3000), 0..4);
    ("/[a-z0-9%?=&]{0,30}", fields.clone(), body, reply, fields, prop::bool::weighted(0.1))
        .prop_map(|(path, fields, body, reply, trailers, reset)| Case { path, fields, body, reply, trailers, reset })
}

fn map(fields: &[(String, String)]) -> HeaderMap {
    let pair = |(name, value): &(String, String)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
    };
    fields.iter().map(pair).collect()
}

/// The parsed fields without pseudo-header fields, sorted, because `h2` chooses their order.
fn plain(fields: &Fields) -> Vec<(String, String)> {
    let pair = |(name, value): &(String, Vec<u8>)| (name.clone(), String::from_utf8(value.clone()).unwrap());
    let mut plain: Vec<_> = fields.iter().filter(|(name, _)| !name.starts_with(':')).map(pair).collect();
    plain.sort();
    plain
}

fn sorted(fields: &[(String, String)]) -> Vec<(String, String)> {
    let mut fields = fields.to_vec();
    fields.sort();
    fields
}

async fn serve(stream: Recorded, cases: Vec<Case>, table: u32) {
    let mut connection =
        h2::server::Builder::new().header_table_size(table).handshake::<_, Bytes>(stream).await.unwrap();
    let mut cases = cases.into_iter();
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request.unwrap();
        let case = cases.next().unwrap();
        tokio::spawn(async move {
            let mut body = request.into_body();
            while let Some(bytes) = body.data().await {
                body.flow_control().release_capacity(bytes.unwrap().len()).unwrap();
            }
            let mut response = Response::new(());
            *response.headers_mut() = map(&case.fields);
            let mut send = respond.send_response(response, false).unwrap();
            for part in case.reply {
                send.send_data(part.into(), false).unwrap();
            }
            if case.reset {
                send.send_reset(Reason::INTERNAL_ERROR);
            } else {
                send.send_trailers(map(&case.trailers)).unwrap();
            }
        });
    }
}

/// Sends all requests concurrently on one connection; returns the writes of both sides. Also checks the responses that
/// the client received, because otherwise the comparison would prove nothing.
async fn talk(cases: Vec<Case>, table: u32) -> Vec<Step> {
    let log = Log::default();
    let (client, server) = tokio::io::duplex(4096);
    let client = Recorded { stream: client, log: Arc::clone(&log), step: Step::Request };
    let server = Recorded { stream: server, log: Arc::clone(&log), step: Step::Response };
    let served = tokio::spawn(serve(server, cases.clone(), table));
    let (mut send, connection) =
        h2::client::Builder::new().header_table_size(table).handshake::<_, Bytes>(client).await.unwrap();
    let driven = tokio::spawn(connection);
    let mut responses = Vec::new();
    for case in cases {
        send = send.ready().await.unwrap();
        let mut request = Request::new(());
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = format!("http://server{}", case.path).parse().unwrap();
        *request.headers_mut() = map(&case.fields);
        let (response, mut body) = send.send_request(request, false).unwrap();
        body.send_data(case.body.clone().into(), true).unwrap();
        responses.push(tokio::spawn(async move {
            // The reset may arrive before the headers were sent.
            let Ok(response) = response.await else {
                assert!(case.reset);
                return;
            };
            let mut body = response.into_body();
            let mut read = Vec::new();
            while let Some(bytes) = body.data().await {
                let Ok(bytes) = bytes else {
                    assert!(case.reset);
                    return;
                };
                body.flow_control().release_capacity(bytes.len()).unwrap();
                read.extend_from_slice(&bytes);
            }
            assert_eq!(read, case.reply.concat());
            assert_eq!(body.trailers().await.unwrap().unwrap_or_default(), map(&case.trailers));
        }));
    }
    for reply in responses {
        reply.await.unwrap();
    }
    drop(send);
    driven.await.unwrap().unwrap();
    served.await.unwrap();
    Arc::into_inner(log).unwrap().into_inner().unwrap()
}

/// Checks that the calls for the request with this number match the messages that were sent.
fn check(outcome: &Outcome, number: u64, case: &Case) {
    let reported: Vec<&Reported> =
        outcome.reported.iter().filter(|(of, _)| *of == number).map(|(_, reported)| reported).collect();
    let joined = |is: fn(&Reported) -> Option<&Vec<u8>>| {
        reported.iter().filter_map(|reported| is(reported)).flatten().copied().collect::<Vec<u8>>()
    };
    let Reported::RequestHead { method, target, fields, .. } = reported[1] else { panic!("{reported:?}") };
    assert_eq!((method.as_str(), target.as_str()), ("POST", case.path.as_str()));
    assert_eq!(plain(fields), sorted(&case.fields));
    let asked = joined(|reported| if let Reported::RequestBody(body) = reported { Some(body) } else { None });
    assert_eq!(asked, case.body);
    assert_eq!(reported.iter().filter(|reported| ***reported == Reported::RequestEnd).count(), 1);
    let head = reported.iter().find_map(|reported| {
        if let Reported::ResponseHead { status, fields, .. } = reported { Some((*status, plain(fields))) } else { None }
    });
    let response_complete =
        joined(|reported| if let Reported::ResponseBody(body) = reported { Some(body) } else { None });
    let trailers = reported
        .iter()
        .find_map(|reported| if let Reported::Trailers(fields) = reported { Some(plain(fields)) } else { None });
    if case.reset {
        // The reset may discard bytes that were queued before it.
        assert!(matches!(reported.last(), Some(Reported::Reset(_))), "{reported:?}");
        assert!(case.reply.concat().starts_with(&response_complete));
    } else {
        assert_eq!(head, Some((200, sorted(&case.fields))));
        assert_eq!(response_complete, case.reply.concat());
        assert_eq!(trailers, Some(sorted(&case.trailers)));
        assert_eq!(reported.last(), Some(&&Reported::ResponseEnd));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn parsed_messages_match_those_of_two_real_ends(
        cases in vec(case(), 1..12),
        table in prop::sample::select(&[0, 100, 4096, 65536][..]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let steps = runtime.block_on(talk(cases.clone(), table));
        let outcome = feed(Limits::default(), &steps);
        prop_assert_eq!((outcome.fault, outcome.open), (None, Some(0)));
        for (number, case) in cases.iter().enumerate() {
            check(&outcome, number as u64, case);
        }
        feed_random_splits(Limits::default(), &steps, &outcome);
    }
}
