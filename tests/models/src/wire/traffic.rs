//! Feeds the traffic of one connection to the parser and records the parser's calls.

use std::time::{Duration, Instant};

use tokometer_wire::{Fault, Http1, Limits, RequestHead, Reset, ResponseHead, Trailers, Visitor};

/// Header fields as names and values.
pub type Fields = Vec<(String, Vec<u8>)>;

/// One call of the visitor. Calls for adjacent body slices are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reported {
    RequestBegin,
    RequestHead { method: String, target: String, minor: u8, fields: Fields },
    RequestBody(Vec<u8>),
    RequestEnd,
    Interim(u16),
    ResponseHead { status: u16, minor: u8, fields: Fields },
    ResponseBody(Vec<u8>),
    Trailers(Fields),
    ResponseEnd,
    Reset(Reset),
    Unobserved,
    Unread,
}

impl Reported {
    /// True for calls caused by the client's bytes.
    pub fn of_request(&self) -> bool {
        use Reported::*;
        matches!(self, RequestBegin | RequestHead { .. } | RequestBody(_) | RequestEnd)
    }
}

impl std::fmt::Display for Reported {
    /// `+ POST /x "body" .` for a request, `100 200 "body" !` for its response; `?` if the rest of both is not parsed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reported::RequestBegin => f.write_str("+"),
            Reported::RequestHead { method, target, .. } => write!(f, "{method} {target}"),
            Reported::RequestBody(body) | Reported::ResponseBody(body) => write!(f, "\"{}\"", body.escape_ascii()),
            Reported::RequestEnd => f.write_str("."),
            Reported::Interim(status) | Reported::ResponseHead { status, .. } => write!(f, "{status}"),
            Reported::Trailers(fields) => write!(f, "trailers({})", fields.len()),
            Reported::ResponseEnd => f.write_str("!"),
            Reported::Reset(reset) => write!(f, "{reset:?}"),
            Reported::Unobserved => f.write_str("?"),
            Reported::Unread => f.write_str("*"),
        }
    }
}

/// A visitor that records its calls.
#[derive(Debug, Default)]
pub struct Trace {
    pub reported: Vec<Reported>,
    /// The time of each call. Each joined body slice has its own time.
    pub times: Vec<Instant>,
    begun: u64,
    ended: u64,
}

pub fn fields(headers: &[httparse::Header<'_>]) -> Fields {
    headers.iter().map(|header| (header.name.to_owned(), header.value.to_owned())).collect()
}

impl Trace {
    /// Responses are in the order of requests. Those that were lost are skipped.
    fn respond(&mut self, number: u64) {
        assert!((self.ended..self.begun).contains(&number));
        self.ended = number;
    }

    pub fn note(&mut self, reported: Reported, at: Instant) {
        self.times.push(at);
        match (self.reported.last_mut(), &reported) {
            (Some(Reported::RequestBody(body)), Reported::RequestBody(more)) => body.extend_from_slice(more),
            (Some(Reported::ResponseBody(body)), Reported::ResponseBody(more)) => body.extend_from_slice(more),
            _ => self.reported.push(reported),
        }
    }
}

/// Asserts that HTTP/1 requests are numbered in the order in which they begin, and that responses end in this order.
impl Visitor for Trace {
    fn request_begin(&mut self, number: u64, at: Instant) -> bool {
        assert_eq!(number, self.begun);
        self.begun += 1;
        self.note(Reported::RequestBegin, at);
        true
    }

    fn request_head(&mut self, number: u64, head: &RequestHead<'_>, at: Instant) {
        assert_eq!(number + 1, self.begun);
        let (method, target) = (head.method.to_owned(), head.target.to_owned());
        self.note(Reported::RequestHead { method, target, minor: head.minor, fields: fields(head.headers) }, at);
    }

    fn request_body(&mut self, number: u64, bytes: &[u8], at: Instant) {
        assert_eq!(number + 1, self.begun);
        assert!(!bytes.is_empty(), "slices are never empty");
        self.note(Reported::RequestBody(bytes.to_owned()), at);
    }

    fn request_end(&mut self, number: u64, at: Instant) {
        assert_eq!(number + 1, self.begun);
        self.note(Reported::RequestEnd, at);
    }

    fn interim(&mut self, number: u64, status: u16, at: Instant) {
        self.respond(number);
        self.note(Reported::Interim(status), at);
    }

    fn response_head(&mut self, number: u64, head: &ResponseHead<'_>, at: Instant) {
        self.respond(number);
        let reported = Reported::ResponseHead { status: head.status, minor: head.minor, fields: fields(head.headers) };
        self.note(reported, at);
    }

    fn response_body(&mut self, number: u64, bytes: &[u8], at: Instant) {
        assert_eq!(number, self.ended);
        assert!(!bytes.is_empty(), "slices are never empty");
        self.note(Reported::ResponseBody(bytes.to_owned()), at);
    }

    fn response_trailers(&mut self, _: u64, _: &Trailers<'_>, _: Instant) {
        panic!("trailers are reported only in HTTP/2");
    }

    fn response_end(&mut self, number: u64, at: Instant) {
        assert_eq!(number, self.ended);
        self.ended += 1;
        self.note(Reported::ResponseEnd, at);
    }

    fn unobserved(&mut self, _: u64, at: Instant) {
        self.note(Reported::Unobserved, at);
    }

    fn unread(&mut self, number: u64, at: Instant) {
        assert_eq!(number, self.begun);
        self.begun += 1;
        self.note(Reported::Unread, at);
    }

    fn reset(&mut self, _: u64, _: Reset, _: Instant) {
        panic!("streams are reset only in HTTP/2");
    }
}

/// One read of one direction.
#[derive(Clone, Debug)]
pub enum Step {
    Request(Vec<u8>),
    Response(Vec<u8>),
    /// The server's FIN.
    ServerFin,
}

/// The client sends these bytes.
pub fn ask(bytes: impl AsRef<[u8]>) -> Step {
    Step::Request(bytes.as_ref().to_owned())
}

/// The server sends these bytes.
pub fn reply(bytes: impl AsRef<[u8]>) -> Step {
    Step::Response(bytes.as_ref().to_owned())
}

/// The visitor calls and final state of the parser for one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub reported: Vec<Reported>,
    pub fault: Option<Fault>,
    pub open: usize,
    pub request_open: bool,
    pub response_open: bool,
}

impl Outcome {
    /// The calls in one line.
    pub fn line(&self) -> String {
        self.reported.iter().map(Reported::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The calls for one direction, except those that end a request without parsing it.
    pub fn of(&self, request: bool) -> Vec<Reported> {
        let is_parsed = |reported: &&Reported| !matches!(reported, Reported::Unobserved | Reported::Unread);
        self.reported.iter().filter(is_parsed).filter(|reported| reported.of_request() == request).cloned().collect()
    }
}

/// True if another parser continues.
pub fn is_switch(fault: Fault) -> bool {
    matches!(fault, Fault::Http2 | Fault::WebSocket(_) | Fault::Upgraded)
}

/// Feeds `steps`; returns the first fault.
pub fn feed(limits: Limits, steps: &[Step]) -> Outcome {
    feed_until(limits, steps, is_switch)
}

/// Feeds `steps` up to a fault for which `stops` is true; returns the first fault.
pub fn feed_until(limits: Limits, steps: &[Step], stops: fn(Fault) -> bool) -> Outcome {
    let mut http1 = Http1::new(limits);
    let mut trace = Trace::default();
    let mut at = Instant::now();
    let mut fault = None;
    for step in steps {
        at += Duration::from_millis(1);
        let result = match step {
            Step::Request(bytes) => http1.request(bytes, at, &mut trace),
            Step::Response(bytes) => http1.response(bytes, at, &mut trace),
            Step::ServerFin => {
                http1.response_finished(at, &mut trace);
                Ok(())
            }
        };
        let ended = result.is_err_and(stops);
        fault = fault.or(result.err());
        if ended {
            break;
        }
    }
    Outcome {
        reported: trace.reported,
        fault,
        open: http1.open(),
        request_open: http1.request_open(),
        response_open: http1.response_open(),
    }
}

/// The same bytes, split before each offset (counted over all steps) for which `is_cut` returns true.
pub fn cut(steps: &[Step], mut is_cut: impl FnMut(usize) -> bool) -> Vec<Step> {
    let mut offset = 0;
    let mut pieces = Vec::new();
    for step in steps {
        let (bytes, of_client) = match step {
            Step::Request(bytes) => (bytes, true),
            Step::Response(bytes) => (bytes, false),
            Step::ServerFin => {
                pieces.push(Step::ServerFin);
                continue;
            }
        };
        let step_of = if of_client { Step::Request } else { Step::Response };
        let mut piece = Vec::new();
        for byte in bytes {
            if is_cut(offset) && !piece.is_empty() {
                pieces.push(step_of(std::mem::take(&mut piece)));
            }
            piece.push(*byte);
            offset += 1;
        }
        pieces.push(step_of(piece));
    }
    pieces
}

/// Feeds `steps` whole, byte by byte, split once at each place that `places` (place, total bytes) accepts, and split at
/// random places. All outcomes must be equal; returns the outcome.
pub fn same_at_splits<O: PartialEq + std::fmt::Debug>(
    steps: &[Step],
    places: impl Fn(usize, usize) -> bool,
    feed: impl Fn(&[Step]) -> O,
) -> O {
    let whole = feed(steps);
    let length: usize = steps
        .iter()
        .map(|step| match step {
            Step::Request(bytes) | Step::Response(bytes) => bytes.len(),
            Step::ServerFin => 0,
        })
        .sum();
    assert_eq!(whole, feed(&cut(steps, |_| true)), "byte by byte");
    for place in (0..length).filter(|place| places(*place, length)) {
        assert_eq!(whole, feed(&cut(steps, |offset| offset == place)), "cut at {place}");
    }
    same_at_random_splits(steps, &whole, feed);
    whole
}

/// Feeds `steps` split at random places, which are the same in every run. The outcome must equal `whole`.
pub fn same_at_random_splits<O: PartialEq + std::fmt::Debug>(steps: &[Step], whole: &O, feed: impl Fn(&[Step]) -> O) {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mean = [2, 5, 17, 60][seed as usize % 4];
        assert_eq!(*whole, feed(&cut(steps, |_| random.usize(..mean) == 0)), "random cuts, seed {seed}");
    }
}

/// [`same_at_splits`] for HTTP/1.
pub fn feed_every_split(limits: Limits, steps: &[Step]) -> Outcome {
    // Long traffic is split at a few hundred places: at each of the first and last bytes, and at some places in
    // between.
    let places = |place: usize, length: usize| {
        place < 300 || length - place < 100 || place.is_multiple_of((length / 400).max(1))
    };
    same_at_splits(steps, places, |steps| feed(limits, steps))
}

/// [`same_at_random_splits`] for HTTP/1.
pub fn feed_random_splits(limits: Limits, steps: &[Step], whole: &Outcome) {
    same_at_random_splits(steps, whole, |steps| feed(limits, steps));
}

/// [`feed_every_split`] with the default limits.
pub fn read(steps: &[Step]) -> Outcome {
    feed_every_split(Limits::default(), steps)
}
