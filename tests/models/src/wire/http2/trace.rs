//! Feeds the traffic of one connection to the parser and records the parser's calls.

use std::time::{Duration, Instant};

use tokometer_wire::{Fault, Limits, Reader, RequestHead, Reset, ResponseHead, Trailers, Visitor};

use crate::wire::traffic::{Reported, Step, fields, is_switch, same_at_random_splits, same_at_splits};

/// One visitor call: the number of the request, and the content.
pub type Call = (u64, Reported);

/// A visitor that records its calls. Adjacent body slices of a request or response are joined.
#[derive(Debug, Default)]
pub struct Trace {
    pub reported: Vec<Call>,
    /// The time of each call. Each joined body slice has its own time.
    pub times: Vec<Instant>,
}

/// Adds a call to `calls`, or joins a body slice to the last call.
pub fn note(calls: &mut Vec<Call>, number: u64, reported: Reported) {
    match (calls.last_mut(), &reported) {
        (Some((of, Reported::RequestBody(body))), Reported::RequestBody(more)) if *of == number => body.extend(more),
        (Some((of, Reported::ResponseBody(body))), Reported::ResponseBody(more)) if *of == number => body.extend(more),
        _ => calls.push((number, reported)),
    }
}

impl Trace {
    fn note(&mut self, number: u64, reported: Reported, at: Instant) {
        self.times.push(at);
        note(&mut self.reported, number, reported);
    }
}

impl Visitor for Trace {
    fn request_begin(&mut self, number: u64, at: Instant) -> bool {
        self.note(number, Reported::RequestBegin, at);
        true
    }

    fn request_head(&mut self, number: u64, head: &RequestHead<'_>, at: Instant) {
        let (method, target) = (head.method.to_owned(), head.target.to_owned());
        let reported = Reported::RequestHead { method, target, minor: head.minor, fields: fields(head.headers) };
        self.note(number, reported, at);
    }

    fn request_body(&mut self, number: u64, bytes: &[u8], at: Instant) {
        assert!(!bytes.is_empty(), "slices are never empty");
        self.note(number, Reported::RequestBody(bytes.to_owned()), at);
    }

    fn request_end(&mut self, number: u64, at: Instant) {
        self.note(number, Reported::RequestEnd, at);
    }

    fn interim(&mut self, number: u64, status: u16, at: Instant) {
        self.note(number, Reported::Interim(status), at);
    }

    fn response_head(&mut self, number: u64, head: &ResponseHead<'_>, at: Instant) {
        let reported = Reported::ResponseHead { status: head.status, minor: head.minor, fields: fields(head.headers) };
        self.note(number, reported, at);
    }

    fn response_body(&mut self, number: u64, bytes: &[u8], at: Instant) {
        assert!(!bytes.is_empty(), "slices are never empty");
        self.note(number, Reported::ResponseBody(bytes.to_owned()), at);
    }

    fn response_trailers(&mut self, number: u64, trailers: &Trailers<'_>, at: Instant) {
        self.note(number, Reported::Trailers(fields(trailers.fields)), at);
    }

    fn response_end(&mut self, number: u64, at: Instant) {
        self.note(number, Reported::ResponseEnd, at);
    }

    fn unobserved(&mut self, number: u64, at: Instant) {
        self.note(number, Reported::Unobserved, at);
    }

    fn unread(&mut self, number: u64, at: Instant) {
        self.note(number, Reported::Unread, at);
    }

    fn reset(&mut self, number: u64, reset: Reset, at: Instant) {
        self.note(number, Reported::Reset(reset), at);
    }
}

/// The visitor calls and final state of the parser for one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub reported: Vec<Call>,
    pub fault: Option<Fault>,
    /// Number of open streams; `None` if the connection has not switched to HTTP/2.
    pub open: Option<usize>,
}

impl Outcome {
    /// The calls in one line: `0:+ 0:POST /x 0:"body" 0:. 0:200 ...`.
    pub fn line(&self) -> String {
        self.reported.iter().map(|(number, reported)| format!("{number}:{reported}")).collect::<Vec<_>>().join(" ")
    }
}

/// Feeds `steps`; returns the first fault.
pub fn feed(limits: Limits, steps: &[Step]) -> Outcome {
    let mut reader = Reader::new(limits);
    let mut trace = Trace::default();
    let mut at = Instant::now();
    let mut fault = None;
    for step in steps {
        at += Duration::from_millis(1);
        let result = match step {
            Step::Request(bytes) => reader.request(bytes, at, &mut trace),
            Step::Response(bytes) => reader.response(bytes, at, &mut trace),
            Step::ServerFin => {
                reader.response_finished(at, &mut trace);
                Ok(())
            }
        };
        fault = fault.or(result.err());
        if fault.is_some_and(is_switch) {
            break;
        }
    }
    let open = match &reader {
        Reader::Http1(_) | Reader::WebSocket(_) => None,
        Reader::Http2(http2) => Some(http2.open()),
    };
    Outcome { reported: trace.reported, fault, open }
}

/// Feeds the steps whole, byte by byte, split at every place, and split at random places; all outcomes must be equal.
pub fn feed_every_split(limits: Limits, steps: &[Step]) -> Outcome {
    same_at_splits(steps, |_, _| true, |steps| feed(limits, steps))
}

/// Checks that splits at random places have the outcome `whole`.
pub fn feed_random_splits(limits: Limits, steps: &[Step], whole: &Outcome) {
    same_at_random_splits(steps, whole, |steps| feed(limits, steps));
}

/// [`feed_every_split`] with the default limits.
pub fn read(steps: &[Step]) -> Outcome {
    feed_every_split(Limits::default(), steps)
}
