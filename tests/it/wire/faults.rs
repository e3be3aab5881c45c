//! Parser faults: bytes that are not HTTP/1.1, or that are ambiguous.

use tokometer_wire::websocket::Extensions;
use tokometer_wire::{Fault, Limits};

use crate::wire::traffic::{ask, feed_every_split, read, reply};

const GET: &str = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";

/// Checks the fault that these request bytes cause, and the visitor calls before the fault.
fn asking(request: impl AsRef<[u8]>, fault: Fault, reported: &str) {
    let request = request.as_ref();
    let outcome = read(&[ask(request)]);
    let text = request.escape_ascii().to_string();
    assert_eq!((outcome.fault, outcome.line().as_str()), (Some(fault), reported), "{text}");
}

/// Checks the fault that these response bytes to a GET cause, and the visitor calls before the fault.
fn response_started(response: impl AsRef<[u8]>, fault: Fault, reported: &str) {
    let response = response.as_ref();
    let outcome = read(&[ask(GET), reply(response)]);
    let text = response.escape_ascii().to_string();
    assert_eq!((outcome.fault, outcome.line()), (Some(fault), format!("+ GET /x .{reported}")), "{text}");
}

#[test]
fn first_bytes_without_a_method_are_not_http() {
    let space: &[u8] = b" GET / HTTP/1.1\r\n\r\n";
    for bytes in [
        space,
        b"\0",
        b"\x16 GET / HTTP/1.1",
        b"\x16\x02",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"PING\r\n",
        b"{\"a\": 1}",
        b"\xff",
    ] {
        asking(bytes, Fault::NotHttp, "");
    }
    // After a valid request, invalid bytes are a malformed request.
    let later = format!("{GET}\0");
    asking(later, Fault::MalformedRequest, "+ GET /x .");
}

#[test]
fn tls_is_recognized_in_both_directions_at_any_split() {
    let client_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    asking(client_hello, Fault::Tls, "");
    let alert = b"\x15\x03\x01\x00\x02\x02\x46";
    response_started(alert, Fault::Tls, " ?");
    response_started(b"\x15HTTP/1.1", Fault::MalformedResponse, " ?");
    // Within a connection that began as HTTP, the same bytes are a malformed request.
    asking([GET.as_bytes(), client_hello].concat(), Fault::MalformedRequest, "+ GET /x .");
}

#[test]
fn http2_preface_is_recognized_at_any_split() {
    asking("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0", Fault::Http2, "");
    asking("PRI * HTTP/2.0\r\n\r\n", Fault::Http2, "");
    asking("PRI * HTTP/2.0\r\nHost: a\r\n\r\n", Fault::MalformedRequest, "");
    asking(format!("{GET}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Fault::MalformedRequest, "+ GET /x . + ?");
}

#[test]
fn request_lines_without_a_meaning_are_rejected() {
    for head in ["GET / HTTP/3.0\r\n\r\n", "GET /\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n", "GET / HTTP/1.1 x\r\n\r\n"] {
        asking(head, Fault::MalformedRequest, "+ ?");
    }
}

#[test]
fn hidden_length_fields_are_rejected() {
    for field in [
        "Transfer-Encoding : chunked",
        "Content-Length\t: 5",
        "\x0bContent-Length: 5",
        "a: b\r\n Transfer-Encoding: chunked",
        " Content-Length: 5",
        "a: b\rTransfer-Encoding: chunked",
        "Transfer-Encoding chunked",
        "Content-Length\0: 5",
    ] {
        asking(format!("POST / HTTP/1.1\r\n{field}\r\n\r\n"), Fault::MalformedRequest, "+ ?");
    }
}

#[test]
fn ambiguous_request_length_is_rejected() {
    for fields in [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 6",
        "Content-Length: 5,",
        "Content-Length:",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 5 5",
        "Content-Length: 0x5",
        "Content-Length: 18446744073709551616",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: gzip\r\nContent-Length: 5",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding:",
    ] {
        asking(format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n"), Fault::MalformedRequest, "+ POST / ?");
    }
    asking("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::MalformedRequest, "+ POST / ?");
}

#[test]
fn malformed_chunks_are_rejected() {
    for (body, reported) in [
        ("\r\n", ""),
        ("x\r\n", ""),
        (" 5\r\nhello", ""),
        (";a\r\nhello", ""),
        ("-1\r\n", ""),
        ("0x5\r\nhello", ""),
        ("5\rhello", ""),
        ("5 x\r\nhello", ""),
        ("5;a\nhello", ""),
        ("5;a\rb\r\nhello", ""),
        ("10000000000000000\r\n", ""),
        ("ffffffffffffffffff\r\n", ""),
        ("5\r\nhello0\r\n\r\n", r#" "hello""#),
        ("5\r\nhelloxx0\r\n\r\n", r#" "hello""#),
        ("5\r\nhello\r0\r\n\r\n", r#" "hello""#),
        ("0\r\n\rx", ""),
        ("0\r\nA: b\n\r\n", ""),
        ("0\r\nA: b\r\r\n", ""),
    ] {
        asking(
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}"),
            Fault::MalformedRequest,
            &format!("+ POST /{reported} ?"),
        );
        response_started(
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}"),
            Fault::MalformedResponse,
            &format!(" 200{reported} ?"),
        );
    }
}

#[test]
fn largest_chunk_size_does_not_overflow() {
    let outcome =
        read(&[ask(GET), reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nand so on")]);
    assert_eq!((outcome.line().as_str(), outcome.fault), (r#"+ GET /x . 200 "and so on""#, None));
    let outcome = read(&[ask(GET), reply("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\nand so on")]);
    assert_eq!((outcome.line().as_str(), outcome.fault), (r#"+ GET /x . 200 "and so on""#, None));
}

#[test]
fn malformed_responses_are_rejected() {
    for head in [
        "x",
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "http/1.1 200 OK\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
    ] {
        response_started(head, Fault::MalformedResponse, " ?");
    }
}

#[test]
fn responses_without_a_request_are_unexpected() {
    let outcome = read(&[reply("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")]);
    assert_eq!((outcome.line().as_str(), outcome.fault), ("", None));
    response_started("HTTP/1.1 204 -\r\n\r\nHTTP/1.1 204 -\r\n\r\n", Fault::UnexpectedResponse, " 204 ! * 204 !");
    // Servers close idle connections so: it is not a fault.
    let closed = "HTTP/1.1 204 -\r\n\r\nHTTP/1.1 408 -\r\n\r\n";
    let outcome = read(&[ask("GET /x HTTP/1.1\r\nHost: x\r\n\r\n"), reply(closed)]);
    assert_eq!((outcome.line().as_str(), outcome.fault), ("+ GET /x . 204 !", None));
    response_started("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", Fault::MalformedResponse, r#" 200 "a" !"#);
}

#[test]
fn protocol_switch_is_reported_with_its_headers() {
    response_started("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x-other\r\n\r\n\x01\x02", Fault::Upgraded, " 101");
    let websocket = Fault::WebSocket(Extensions::default());
    response_started("HTTP/1.1 101 -\r\nUpgrade: WebSocket\r\n\r\n\x01\x02", websocket, " 101");
    for status in [200, 299] {
        let outcome = read(&[
            ask("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"),
            reply(format!("HTTP/1.1 {status} Connection established\r\nContent-Length: 5\r\n\r\n\x16\x03")),
        ]);
        assert_eq!(outcome.fault, Some(Fault::Upgraded));
        assert_eq!(outcome.line(), format!("+ CONNECT a:443 . {status}"));
    }
}

#[test]
fn headers_over_the_cap_are_rejected() {
    let limits = Limits { head_bytes: 60 };
    let head = |length: usize| {
        let start = "GET / HTTP/1.1\r\na: ";
        format!("{start}{}\r\n\r\n", "x".repeat(length - start.len() - 4))
    };
    let fits = feed_every_split(limits, &[ask(head(60) + &head(60))]);
    assert_eq!((fits.line().as_str(), fits.fault), ("+ GET / . + GET / .", None));
    let over = feed_every_split(limits, &[ask(head(60) + &head(61) + &head(60))]);
    assert_eq!((over.line().as_str(), over.fault), ("+ GET / . + GET / . + GET / .", None));
    let endless = feed_every_split(limits, &[ask("x".repeat(200))]);
    assert_eq!((endless.line().as_str(), endless.fault), ("", Some(Fault::HeadTooLarge)));
    let endless = feed_every_split(limits, &[ask(format!("GET /{}", "x".repeat(200)))]);
    assert_eq!((endless.line().as_str(), endless.fault), ("+ ?", Some(Fault::HeadTooLarge)));
}

#[test]
fn length_fields_beyond_the_cap_are_read() {
    let limits = Limits { head_bytes: 100 };
    let start = "POST / HTTP/1.1\r\n";
    let long = format!("a: {}\r\n", "x".repeat(100));
    let folded = format!("{long} Content-Encoding: {}\r\n\tb: c\r\n", "y".repeat(100));
    let many = "a: b\r\n".repeat(30);
    for other in [&long, &folded, &many] {
        for length in ["Content-Length: 2\r\n\r\nhi", "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"] {
            for fields in [format!("{other}{length}"), length.replacen("\r\n", &format!("\r\n{other}"), 1)] {
                let outcome = feed_every_split(limits, &[ask(format!("{start}{fields}GET /2 HTTP/1.1\r\n\r\n"))]);
                assert_eq!(outcome.line(), r#"+ POST / "hi" . + GET /2 ."#, "{fields:?}");
            }
        }
    }
    let many = "Content-Length: 2\r\n".repeat(10);
    let outcome = feed_every_split(limits, &[ask(format!("{start}{many}\r\nhi"))]);
    assert_eq!((outcome.line().as_str(), outcome.fault), ("+ ?", Some(Fault::HeadTooLarge)));
}

#[test]
fn length_field_after_512_fields_is_read() {
    let fields = "a: b\r\n".repeat(600);
    let request = ask(format!("POST / HTTP/1.1\r\n{fields}Content-Length: 2\r\n\r\nhi"));
    let request = crate::wire::traffic::feed(Limits::default(), &[request]);
    assert_eq!((request.line().as_str(), request.fault), (r#"+ POST / "hi" ."#, None));
    let response = reply(format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
    let response = crate::wire::traffic::feed(Limits::default(), &[ask(GET), response]);
    assert_eq!((response.line().as_str(), response.fault), ("+ GET /x . ?", Some(Fault::HeadTooLarge)));
}
