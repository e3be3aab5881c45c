//! Unusual HTTP, and bytes that are not HTTP.

use super::peer::Step::*;
use super::peer::{Script, Step};

/// A request and its response, after which the client closes first and then the server.
fn round_trip(name: &str, request: impl AsRef<[u8]>, response: impl AsRef<[u8]>) -> Script {
    let (request, response) = (request.as_ref(), response.as_ref());
    let client = vec![send(request), Read(response.len()), Finish, ReadEnd];
    let server = vec![Read(request.len()), send(response), ReadEnd];
    Script { name: name.to_owned(), client, server }
}

fn script(name: &str, client: Vec<Step>, server: Vec<Step>) -> Script {
    Script { name: name.to_owned(), client, server }
}

pub(crate) fn send(bytes: impl AsRef<[u8]>) -> Step {
    Send(bytes.as_ref().to_vec())
}

/// Bytes without a pattern, so that a lost or repeated block is detected.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    std::iter::repeat_with(&mut next).take(length).collect()
}

const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// The whole corpus.
pub(crate) fn scripts() -> Vec<Script> {
    let mut scripts = shapes();
    scripts.extend(smuggling());
    scripts.extend(sizes());
    scripts.extend(endings());
    scripts
}

/// The scripts whose outcome depends only on the bytes, not on their timing or on how the connections end.
pub(crate) fn untimed() -> Vec<Script> {
    let mut scripts = shapes();
    scripts.extend(smuggling());
    scripts.extend(sizes());
    scripts.retain(|script| !script.client.iter().any(|step| matches!(step, Meet | Drip(_))));
    scripts
}

fn shapes() -> Vec<Script> {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                   2;ext=\"a;b\"\r\nok\r\n0003 ; x\r\nyes\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n";
    vec![
        round_trip("a plain request", GET, OK),
        round_trip("pipelined requests", GET.repeat(20), OK.repeat(20)),
        round_trip("chunk extensions and trailers", GET, chunked),
        round_trip(
            "interim responses 103 and 102 before the response",
            GET,
            format!("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n{OK}"),
        ),
        round_trip("500 interim responses", GET, "HTTP/1.1 100 Continue\r\n\r\n".repeat(500) + OK),
        expect_continue(),
        round_trip(
            "a response with a body to a HEAD request",
            "HEAD / HTTP/1.1\r\nhost: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        ),
        round_trip(
            "a response with status 204 and a body",
            GET,
            format!("HTTP/1.1 204 No Content\r\ncontent-length: 4\r\n\r\nbody{OK}"),
        ),
        round_trip(
            "a response with status 304 and a body",
            GET,
            format!("HTTP/1.1 304 Not Modified\r\ncontent-length: 4\r\n\r\nbody{OK}"),
        ),
        round_trip(
            "headers with mixed case and unusual spacing",
            "GET / HTTP/1.1\r\nHoSt:x\r\nX-A:   1  \r\nx-a:2\r\n\r\n",
            "HTTP/1.1 200\r\nDATE: never\r\nSet-Cookie: a\r\nset-cookie: b\r\nContent-Length:2\r\n\r\nok",
        ),
        round_trip(
            "an HTTP/1.0 request with keep-alive",
            "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
        ),
        round_trip(
            "a CONNECT request",
            "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n\x16\x03\x01hello",
            "HTTP/1.1 200 Connection established\r\n\r\n\x16\x03\x03world",
        ),
        round_trip(
            "an upgrade to WebSocket",
            "GET /v1/realtime HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: AAAA\r\n\r\n\u{81}\u{85}mask!",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n\u{81}\u{5}hello",
        ),
        round_trip(
            "an upgrade to h2c",
            "GET / HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        ),
        round_trip(
            "the HTTP/2 connection preface",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0",
        ),
        round_trip("bytes that are not HTTP", noise(4096), noise(5000)),
        round_trip("a response without a status line", GET, "ok then"),
        round_trip(
            "an event stream with all types of line endings",
            GET,
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n21\r\ndata: a\n\ndata: b\r\n\r\ndata: c\r\r:x\n\n\r\n0\r\n\r\n",
        ),
    ]
}

fn expect_continue() -> Script {
    let (head, body) = ("POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n", "abc");
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    script(
        "a request with Expect: 100-continue",
        vec![send(head), Read(interim.len()), send(body), Read(interim.len() + OK.len()), Finish, ReadEnd],
        vec![Read(head.len()), send(interim), Read(head.len() + body.len()), send(OK), ReadEnd],
    )
}

fn smuggling() -> Vec<Script> {
    let requests: [(&str, &[u8]); 22] = [
        ("Content-Length, then Transfer-Encoding (CL.TE)", b"POST / HTTP/1.1\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nG"),
        ("Transfer-Encoding, then Content-Length (TE.CL)", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n"),
        ("two Transfer-Encoding headers, one unknown (TE.TE)", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("a tab before the Transfer-Encoding value", b"POST / HTTP/1.1\r\ntransfer-encoding:\tchunked\r\n\r\n0\r\n\r\n"),
        ("a space before the colon of a header", b"POST / HTTP/1.1\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n"),
        ("two equal Content-Length headers", b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\na"),
        ("two different Content-Length headers", b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
        ("a list of Content-Length values", b"POST / HTTP/1.1\r\ncontent-length: 1, 1\r\n\r\na"),
        ("a Content-Length with a sign", b"POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\na"),
        ("a Content-Length above 64 bits", b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\na"),
        ("a GET request with a body", b"GET / HTTP/1.1\r\ncontent-length: 1\r\n\r\na"),
        ("a request with a folded header", b"GET / HTTP/1.1\r\nx-a: 1\r\n  2\r\n\t3\r\nhost: x\r\n\r\n"),
        ("request lines that end with bare line feeds", b"GET / HTTP/1.1\nhost: x\nx: y\n\n"),
        ("request lines that end with bare carriage returns", b"GET / HTTP/1.1\rhost: x\r\r"),
        ("a NUL byte in a header", b"GET / HTTP/1.1\r\nx-a: a\0b\r\n\r\n"),
        ("bytes above 127 in the request target and a header", b"GET /\xff HTTP/1.1\r\nx-a: \xc3\x28\xfe\r\n\r\n"),
        ("a chunk size that overflows", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc"),
        ("a chunk size that is not a number", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n"),
        ("Content-Length and Transfer-Encoding as trailers", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 9\r\ntransfer-encoding: x\r\n\r\n"),
        ("empty lines before the request", b"\r\n\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n"),
        ("an absolute request target and two Host headers", b"GET http://a/ HTTP/1.1\r\nhost: b\r\nhost: c\r\n\r\n"),
        ("an unknown HTTP version", b"GET / HTTP/9.9\r\nhost: x\r\n\r\n"),
    ];
    let mut scripts: Vec<Script> = requests.iter().map(|(name, request)| round_trip(name, request, OK)).collect();
    let responses: [(&str, &[u8]); 4] = [
        (
            "a response with Content-Length and Transfer-Encoding",
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "a response with two Content-Length headers",
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 2\r\n\r\nabc",
        ),
        ("a response with a folded header", b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n"),
        (
            "a response longer than its Content-Length",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 No\r\n\r\n",
        ),
    ];
    scripts.extend(responses.iter().map(|(name, response)| round_trip(name, GET, response)));
    scripts
}

fn sizes() -> Vec<Script> {
    let long_head = format!("GET / HTTP/1.1\r\nx-long: {}\r\n\r\n", "a".repeat(300_000));
    let many_headers = format!("HTTP/1.1 200 OK\r\n{}content-length: 0\r\n\r\n", "x-header: value\r\n".repeat(20_000));
    let body = noise(10_000_000);
    let upload = [format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let download = [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let (drip, drop) = (format!("{GET}{GET}"), format!("{OK}{OK}"));
    vec![
        round_trip("300 KB of request headers", long_head, OK),
        round_trip("a response with 20,000 headers", GET, many_headers),
        round_trip("a 10 MB request body", &upload, OK),
        round_trip("a 10 MB response", GET, &download),
        script(
            "a 10 MB response before the request is read",
            vec![Send(body[..100_000].to_vec()), Finish, Meet, ReadEnd],
            vec![Meet, ReadEnd, Send(body.clone()), Finish, ReadEnd],
        ),
        script(
            "one byte at a time in both directions",
            vec![Drip(drip.clone().into()), Read(drop.len()), Finish, ReadEnd],
            vec![Read(drip.len()), Drip(drop.into()), ReadEnd],
        ),
        round_trip(
            "a response with one line of 2 MB",
            GET,
            [b"HTTP/1.1 200 OK\r\n\r\ndata: ", &body[..2_000_000], b"\n\n"].concat(),
        ),
        round_trip(
            "a response with 50,000 chunks of one byte",
            GET,
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{}0\r\n\r\n", "1\r\na\r\n".repeat(50_000)),
        ),
    ]
}

fn endings() -> Vec<Script> {
    let close_delimited = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end";
    vec![
        script(
            "the server closes the connection first",
            vec![send(GET), ReadEnd],
            vec![Read(GET.len()), send(close_delimited), Close],
        ),
        script(
            "the server half-closes, then the client sends more",
            vec![send(GET), ReadEnd, send("more"), Finish],
            vec![Read(GET.len()), send(close_delimited), Finish, ReadEnd],
        ),
        script(
            "the client half-closes before the response",
            vec![send(GET), Finish, ReadEnd],
            vec![ReadEnd, send(OK), Close],
        ),
        script(
            "both half-close at once",
            vec![send(GET), Meet, Finish, ReadEnd],
            vec![Read(GET.len()), Meet, Finish, ReadEnd],
        ),
        script("a silent client that half-closes", vec![Finish, ReadEnd], vec![ReadEnd]),
        script("a server that closes at once", vec![ReadEnd], vec![Close]),
        script("a server that resets at once", vec![Meet, ReadEnd], vec![Reset, Meet]),
        script("the client resets while it waits", vec![send(GET), Meet, Reset], vec![Read(GET.len()), Meet, ReadEnd]),
        script(
            "the client resets in the middle of the response",
            vec![send(GET), Read(4), Meet, Reset],
            vec![Read(GET.len()), send(OK), Meet, ReadEnd],
        ),
        script(
            "the server resets before it responds",
            vec![send(GET), Meet, ReadEnd],
            vec![Read(GET.len()), Reset, Meet],
        ),
        script(
            "the server resets in the middle of the response",
            vec![send(GET), Read(OK.len()), Meet, ReadEnd],
            vec![Read(GET.len()), send(OK), Meet, Reset],
        ),
        script(
            "the client half-closes, then resets",
            vec![send(GET), Finish, Meet, Reset],
            vec![ReadEnd, send("HTTP/1.1 200 OK\r\n"), Meet],
        ),
        script(
            "the server dies in the middle of a chunk",
            vec![send(GET), ReadEnd],
            vec![Read(GET.len()), send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nhalf"), Close],
        ),
        script(
            "the server dies in the middle of its headers",
            vec![send(GET), ReadEnd],
            vec![Read(GET.len()), send("HTTP/1.1 20"), Close],
        ),
        script(
            "the client closes in the middle of its headers",
            vec![send("POST / HT"), Finish, ReadEnd],
            vec![ReadEnd],
        ),
        script(
            "a response before the request is complete",
            vec![
                send("POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n"),
                Read(OK.len()),
                send("remaining"),
                Finish,
                ReadEnd,
            ],
            vec![Read(38), send(OK), ReadEnd],
        ),
    ]
}
