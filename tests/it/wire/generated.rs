//! Generated traffic: the parser compared with the naive model, and with itself at other splits.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tokometer_wire::{Fault, Limits};

use crate::wire::model;
use crate::wire::model::{Stop, agree};
use crate::wire::traffic::{Reported, Step, Trace, ask, feed_random_splits, feed_until, reply};

fn data() -> impl Strategy<Value = Vec<u8>> {
    // CR, LF and `0` are frequent, because a body with bytes that look like framing could confuse the parser.
    vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'0'), any::<u8>()], 0..40)
}

/// A chunked body: upper or lower case sizes, leading zeros, extensions, trailers.
fn chunked() -> impl Strategy<Value = Vec<u8>> {
    let extension = prop_oneof![3 => Just(""), 1 => Just(";a=b"), 1 => Just(" ; a=\"b\""), 1 => Just("\t")];
    let trailers = prop_oneof![3 => Just(""), 1 => Just("A: b\r\n"), 1 => Just("A: b\r\nC:\r\n")];
    let chunk = (data(), extension.clone(), 0..3usize, any::<bool>());
    (vec(chunk, 0..6), extension, trailers).prop_map(|(chunks, last, trailers)| {
        let mut bytes = Vec::new();
        for (data, extension, zeros, upper) in chunks.into_iter().filter(|chunk| !chunk.0.is_empty()) {
            let size = if upper { format!("{:X}", data.len()) } else { format!("{:x}", data.len()) };
            bytes.extend([&b"00"[..zeros], size.as_bytes(), extension.as_bytes(), b"\r\n", &data, b"\r\n"].concat());
        }
        bytes.extend(format!("0{last}\r\n{trailers}\r\n").into_bytes());
        bytes
    })
}

/// The headers and bytes of a body that is not delimited by the end of the connection.
fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"\r\n".to_vec()),
        data().prop_map(|data| [format!("Content-Length: {}\r\n\r\n", data.len()).into_bytes(), data].concat()),
        chunked().prop_map(|body| [b"Transfer-Encoding: chunked\r\n\r\n".to_vec(), body].concat()),
    ]
}

fn other_fields() -> impl Strategy<Value = String> {
    "([A-Za-z-]{1,12}: [ -~]{0,20}\r\n){0,4}"
}

const METHODS: [&str; 6] = ["GET", "POST", "HEAD", "M-SEARCH", "CONNECT", "PRI"];

fn request() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    let start = prop_oneof![5 => Just(""), 1 => Just("\r\n")];
    let method = proptest::sample::select(&METHODS[..]);
    (start, method, "/[a-z?=]{0,8}", other_fields(), body()).prop_map(|(start, method, target, fields, body)| {
        let head = format!("{start}{method} {target} HTTP/1.1\r\n{fields}");
        (method, [head.into_bytes(), body].concat())
    })
}

/// A valid response to a request with this method. The last response may be delimited by the end of the connection.
fn response(method: &'static str, last: bool) -> impl Strategy<Value = Vec<u8>> {
    let interim = prop_oneof![Just("HTTP/1.1 100 Continue\r\n\r\n"), Just("HTTP/1.1 103 -\r\nLink: </a>\r\n\r\n")];
    let status = prop_oneof![5 => Just(200u16), 1 => Just(204), 1 => Just(304), 1 => Just(503), 1 => Just(99)];
    (vec(interim, 0..3), status, 0..2u8, other_fields(), body(), data()).prop_map(
        move |(interims, status, minor, fields, body, to_the_end)| {
            let head = format!("{}HTTP/1.{minor} {status:03} -\r\n{fields}", interims.concat());
            let no_body = method == "HEAD" || status == 204 || status == 304;
            let body = match body.as_slice() {
                b"\r\n" if no_body => body,
                b"\r\n" if last => [body, to_the_end].concat(),
                b"\r\n" => b"Content-Length: 0\r\n\r\n".to_vec(),
                _ if no_body => [&b"Content-Length: 7\r\n"[..], b"\r\n"].concat(),
                _ => body,
            };
            [head.into_bytes(), body].concat()
        },
    )
}

/// The requests and responses of one connection.
fn traffic() -> impl Strategy<Value = (Vec<Vec<u8>>, Vec<Vec<u8>>)> {
    vec(request(), 0..6).prop_flat_map(|requests| {
        let count = requests.len();
        let responses: Vec<_> = requests
            .iter()
            .enumerate()
            .map(|(index, (method, _))| response(method, index + 1 == count).boxed())
            .collect();
        (Just(requests.into_iter().map(|(_, bytes)| bytes).collect()), responses)
    })
}

/// Inserts, removes or changes a byte.
fn damage(bytes: &mut Vec<u8>, (place, kind, byte): &(Index, u8, u8)) {
    if bytes.is_empty() {
        return;
    }
    let place = place.index(bytes.len());
    match kind {
        0 => bytes.insert(place, *byte),
        1 => drop(bytes.remove(place)),
        _ => bytes[place] = *byte,
    }
}

proptest! {
    #[test]
    fn complete_traffic_matches_the_model((requests, responses) in traffic()) {
        let steps = [ask(requests.concat()), reply(responses.concat())];
        feed_random_splits(Limits::default(), &steps, &agree(&requests.concat(), &responses.concat()));
    }

    #[test]
    fn truncated_or_damaged_traffic_matches_the_model(
        (requests, responses) in traffic(),
        asked in vec((any::<Index>(), 0..3u8, prop_oneof![Just(b'\r'), Just(b'\n'), Just(b' '), any::<u8>()]), 0..2),
        response_complete in vec((any::<Index>(), 0..3u8, prop_oneof![Just(b'\r'), Just(b'\n'), Just(b' '), any::<u8>()]), 0..2),
        keep in (0.0..2.0f64, 0.0..2.0f64),
    ) {
        let (mut requests, mut responses) = (requests.concat(), responses.concat());
        asked.iter().for_each(|one| damage(&mut requests, one));
        response_complete.iter().for_each(|one| damage(&mut responses, one));
        requests.truncate((requests.len() as f64 * keep.0) as usize);
        responses.truncate((responses.len() as f64 * keep.1) as usize);
        let steps = [ask(&requests), reply(&responses)];
        feed_random_splits(Limits::default(), &steps, &agree(&requests, &responses));
    }

    #[test]
    fn responses_may_begin_once_the_request_headers_are_complete(
        (requests, responses) in traffic(),
        turns in vec((any::<bool>(), 1..80usize), 0..200),
    ) {
        let all_asked = model::requests(&requests.concat());
        let all_responses_complete = model::responses(&responses.concat(), &all_asked.methods, true);
        // End offset of each request's headers in all request bytes.
        let mut start = 0;
        let heads: Vec<usize> = requests
            .iter()
            .map(|request| {
                let head = request[2..].windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 6;
                start += request.len();
                start - request.len() + head
            })
            .collect();
        let (request_bytes, response_bytes) = (requests.concat(), responses.concat());
        let (mut asked, mut response_complete) = (0usize, 0usize);
        let mut steps: Vec<Step> = Vec::new();
        for (client, length) in turns.into_iter().chain([(true, usize::MAX), (false, usize::MAX)]) {
            if client {
                let next = asked.max(asked.saturating_add(length).min(request_bytes.len()));
                steps.push(ask(&request_bytes[asked..next]));
                asked = next;
            } else {
                let answerable = heads.iter().filter(|head| **head <= asked).count();
                let limit: usize = responses[..answerable].iter().map(Vec::len).sum();
                let next = response_complete.max(response_complete.saturating_add(length).min(limit));
                steps.push(reply(&response_bytes[response_complete..next]));
                response_complete = next;
            }
        }
        let outcome = feed_until(Limits::default(), &steps, |_| true);
        let joined = |request| {
            // Joins bodies that were reported in parts with messages of the other direction in between.
            let mut parts = Trace::default();
            outcome.of(request).into_iter().for_each(|reported| parts.note(reported, std::time::Instant::now()));
            parts.reported
        };
        match outcome.fault {
            Some(Fault::Upgraded | Fault::MalformedResponse) => {
                assert_eq!(all_responses_complete.stop, Stop::Bad(outcome.fault.unwrap()));
                assert!(all_asked.reported.starts_with(&without_open_body(joined(true))));
            }
            fault => {
                assert_eq!(fault, None);
                assert_eq!(joined(true), all_asked.reported);
            }
        }
        assert_eq!(joined(false), all_responses_complete.reported);
    }
}

/// Removes a last request body, which may be incomplete.
fn without_open_body(mut reported: Vec<Reported>) -> Vec<Reported> {
    reported.pop_if(|last| matches!(last, Reported::RequestBody(_)));
    reported
}
