//! Messages that RFC 9110 and RFC 9112 allow, including unusual ones.

use std::time::{Duration, Instant};

use tokometer_wire::{Http1, Limits};

use crate::wire::traffic::{Reported, Step, Trace, ask, read, reply};

const GET: &str = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";

/// Checks the visitor calls for this response to a plain GET, and that the response is complete.
fn response_complete(response: impl AsRef<[u8]>, expected: &str) {
    let outcome = read(&[ask(GET), reply(response)]);
    assert_eq!(outcome.line(), format!("+ GET /x . {expected}"));
    assert_eq!((outcome.fault, outcome.open, outcome.response_open), (None, 0, false));
}

/// Checks the visitor calls for this request, and that the request is complete.
fn asked(request: impl AsRef<[u8]>, expected: &str) {
    let outcome = read(&[ask(request)]);
    assert_eq!(outcome.line(), expected);
    assert_eq!((outcome.fault, outcome.open, outcome.request_open), (None, 1, false));
}

#[test]
fn content_length_delimits_a_body() {
    asked("POST /x HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", r#"+ POST /x "hello" ."#);
    asked("POST /x HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "+ POST /x .");
    asked("POST /x HTTP/1.1\r\ncontent-length:  0005 \r\n\r\nhello", r#"+ POST /x "hello" ."#);
    response_complete("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", r#"200 "hi" !"#);
    response_complete("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 !");
}

#[test]
fn repeated_equal_content_length_is_one_length() {
    asked("POST /x HTTP/1.1\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\nhello", r#"+ POST /x "hello" ."#);
    response_complete("HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nhi", r#"200 "hi" !"#);
}

#[test]
fn chunks_delimit_a_body() {
    let head = "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (body, expected) in [
        ("5\r\nhello\r\n0\r\n\r\n", r#"+ POST /x "hello" ."#),
        ("0\r\n\r\n", "+ POST /x ."),
        ("3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", r#"+ POST /x "hello" ."#),
        ("c\r\nhello, world\r\n0\r\n\r\n", r#"+ POST /x "hello, world" ."#),
        ("C\r\nhello, world\r\n0\r\n\r\n", r#"+ POST /x "hello, world" ."#),
        ("0000000000000000000005\r\nhello\r\n000\r\n\r\n", r#"+ POST /x "hello" ."#),
        ("5;name=value\r\nhello\r\n0;last\r\n\r\n", r#"+ POST /x "hello" ."#),
        ("5 ; name = \"va;lue\"\r\nhello\r\n0 \r\n\r\n", r#"+ POST /x "hello" ."#),
        ("5\t\r\nhello\r\n0\r\nChecksum: 1\r\nOther: 2\r\n\r\n", r#"+ POST /x "hello" ."#),
        ("2\r\n\r\n\r\n0\r\n\r\n", r#"+ POST /x "\r\n" ."#),
    ] {
        asked(format!("{head}{body}"), expected);
        let response = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let body = expected.trim_start_matches("+ POST /x").trim_end_matches('.');
        response_complete(response, &format!("200{body}!"));
    }
}

#[test]
fn chunks_longer_than_a_slice_are_reported_in_parts() {
    let data = "x".repeat(70_000);
    response_complete(
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{data}\r\n0\r\n\r\n", data.len()),
        &format!(r#"200 "{data}" !"#),
    );
}

#[test]
fn transfer_codings_are_case_insensitive_lists() {
    let body = "1\r\na\r\n0\r\n\r\n";
    for coding in ["CHUNKED", "chunked ,", "gzip, chunked", "gzip ,, Chunked", "gzip\r\nTransfer-Encoding: chunked"] {
        asked(format!("POST /x HTTP/1.1\r\ntransfer-ENCODING: {coding}\r\n\r\n{body}"), r#"+ POST /x "a" ."#);
    }
}

#[test]
fn end_of_the_connection_delimits_a_body_without_length() {
    for head in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
    ] {
        let open = read(&[ask(GET), reply(format!("{head}to the end\r\n\r\n"))]);
        assert_eq!(open.line(), r#"+ GET /x . 200 "to the end\r\n\r\n""#);
        assert_eq!((open.fault, open.open, open.response_open), (None, 1, true));

        let ended = read(&[ask(GET), reply(format!("{head}to the end\r\n\r\n")), Step::ServerFin]);
        assert_eq!(ended.line(), r#"+ GET /x . 200 "to the end\r\n\r\n" !"#);
        assert_eq!((ended.fault, ended.open, ended.response_open), (None, 0, false));
    }
}

#[test]
fn fin_within_a_response_leaves_it_open() {
    for (response, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", r#"+ GET /x . 200 "hel""#),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", r#"+ GET /x . 200 "hel""#),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n", r#"+ GET /x . 200 "hel""#),
    ] {
        let outcome = read(&[ask(GET), reply(response), Step::ServerFin]);
        assert_eq!(outcome.line(), expected);
        assert_eq!((outcome.fault, outcome.open, outcome.response_open), (None, 1, true));
    }
    for cut_head in ["", "HTT", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 100 Continue\r\n\r\n"] {
        let outcome = read(&[ask(GET), reply(cut_head), Step::ServerFin]);
        assert_eq!((outcome.fault, outcome.open, outcome.response_open), (None, 1, false), "{cut_head}");
    }
}

#[test]
fn responses_without_a_body_ignore_their_length() {
    response_complete("HTTP/1.1 204 No Content\r\n\r\n", "204 !");
    response_complete("HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", "304 !");
    let head = "HEAD /x HTTP/1.1\r\n\r\n";
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.0 404 Not Found\r\n\r\n",
    ] {
        let outcome = read(&[ask([head, GET].concat()), reply([response, "HTTP/1.1 204 -\r\n\r\n"].concat())]);
        let status = &response[9..12];
        assert_eq!(outcome.line(), format!("+ HEAD /x . + GET /x . {status} ! 204 !"));
        assert_eq!((outcome.fault, outcome.open), (None, 0));
    }
}

#[test]
fn any_number_of_interim_responses_is_allowed() {
    response_complete(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
         HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
        r#"100 102 103 100 200 "a" !"#,
    );
}

#[test]
fn chunked_http_1_0_responses_are_parsed_as_chunked() {
    let outcome = read(&[
        ask("GET /x HTTP/1.0\r\n\r\n"),
        reply("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"),
    ]);
    assert_eq!(outcome.line(), r#"+ GET /x . 200 "a" !"#);
}

#[test]
fn empty_lines_before_a_request_are_ignored() {
    asked("\r\n\r\nGET / HTTP/1.1\r\n\r\n\r\n", "+ GET / .");
    let outcome = read(&[ask("\r\n\r\n")]);
    assert_eq!((outcome.line().as_str(), outcome.fault, outcome.open), ("", None, 0));
}

#[test]
fn any_token_is_a_method_and_any_target_is_accepted() {
    asked("M-SEARCH * HTTP/1.1\r\n\r\n", "+ M-SEARCH * .");
    asked("!#$%&'*+-.^_`|~09aZ http://a/b?c HTTP/1.1\r\n\r\n", "+ !#$%&'*+-.^_`|~09aZ http://a/b?c .");
    asked("CONNECT a:443 HTTP/1.1\r\n\r\n", "+ CONNECT a:443 .");
    asked("PRIOR / HTTP/1.1\r\n\r\n", "+ PRIOR / .");
    asked("PRI / HTTP/1.1\r\n\r\n", "+ PRI / .");
    asked("head / HTTP/1.1\r\n\r\n", "+ head / .");
}

#[test]
fn bare_line_feeds_end_header_lines() {
    asked("GET / HTTP/1.1\nHost: a\n\n", "+ GET / .");
    asked("GET / HTTP/1.1\r\nHost: a\n\r\n", "+ GET / .");
    response_complete("HTTP/1.1 200 OK\nContent-Length: 1\n\na", r#"200 "a" !"#);
}

#[test]
fn refused_connect_has_an_ordinary_response() {
    let outcome = read(&[
        ask("CONNECT a:443 HTTP/1.1\r\n\r\n"),
        reply("HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 2\r\n\r\nno"),
        ask(GET),
    ]);
    assert_eq!(outcome.line(), r#"+ CONNECT a:443 . 405 "no" ! + GET /x ."#);
    assert_eq!((outcome.fault, outcome.open), (None, 1));
}

#[test]
fn headers_are_reported_with_all_fields() {
    let outcome = read(&[
        ask("POST /v1/chat?x=1 HTTP/1.0\r\nHost: A\r\nx-Y:  caf\u{e9} \r\nEmpty:\r\n\r\n"),
        reply("HTTP/1.1 429\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n"),
    ]);
    let owned = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_owned())).collect()
    };
    assert_eq!(
        outcome.reported,
        [
            Reported::RequestBegin,
            Reported::RequestHead {
                method: "POST".to_owned(),
                target: "/v1/chat?x=1".to_owned(),
                minor: 0,
                fields: owned(&[("Host", "A"), ("x-Y", "caf\u{e9}"), ("Empty", "")]),
            },
            Reported::RequestEnd,
            Reported::ResponseHead {
                status: 429,
                minor: 1,
                fields: owned(&[("retry-after", "3"), ("content-length", "0")]),
            },
            Reported::ResponseEnd,
        ]
    );
}

#[test]
fn headers_may_have_512_fields() {
    for count in [127, 128, 129, 511, 512] {
        let request = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count));
        let response = format!("HTTP/1.1 204 -\r\n{}\r\n", "a: b\r\n".repeat(count));
        let outcome = crate::wire::traffic::feed(Limits::default(), &[ask(request), reply(response)]);
        assert_eq!((outcome.line().as_str(), outcome.fault), ("+ GET / . 204 !", None), "{count}");
    }
}

#[test]
fn request_begins_at_its_first_byte_and_headers_at_their_last() {
    let mut http1 = Http1::new(Limits::default());
    let mut trace = Trace::default();
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    // The request is reported once its method is complete (piece 3), but with the time of its first byte (piece 1).
    for (ms, piece) in [(0, "\r\n"), (1, "G"), (2, "E"), (3, "T / HTTP/1.1\r\n"), (4, "\r"), (5, "\n")] {
        http1.request(piece.as_bytes(), at(ms), &mut trace).unwrap();
        assert_eq!(trace.reported.len(), [0, 0, 0, 1, 1, 3][ms as usize], "after piece {ms}");
    }
    http1.response(b"HTTP/1.1 200 OK\r\n", at(6), &mut trace).unwrap();
    http1.response(b"Content-Length: 2\r\n\r\na", at(7), &mut trace).unwrap();
    http1.response(b"b", at(8), &mut trace).unwrap();
    assert_eq!(trace.reported.len(), 6);
    assert_eq!(trace.times, [1, 5, 5, 7, 7, 8, 8].map(at));
}

#[test]
fn possible_http2_preface_is_not_a_request_until_complete() {
    let mut http1 = Http1::new(Limits::default());
    let mut trace = Trace::default();
    let start = Instant::now();
    let later = start + Duration::from_millis(1);
    http1.request(b"PRI * HTTP/", start, &mut trace).unwrap();
    assert_eq!((trace.reported.len(), http1.open(), http1.request_open()), (0, 0, false));
    http1.request(b"1.1\r\n\r\n", later, &mut trace).unwrap();
    assert_eq!((trace.reported.len(), http1.open()), (3, 1));
    assert_eq!(trace.times, [start, later, later]);
}
