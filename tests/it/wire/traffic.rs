//! Feeds the traffic of one connection to the parser and records the parser's calls.

use std::time::Duration;
use std::time::Instant;

use tokometer_wire::Fault;
use tokometer_wire::Http1;
use tokometer_wire::Limits;
use tokometer_wire::RequestHead;
use tokometer_wire::Reset;
use tokometer_wire::ResponseHead;
use tokometer_wire::Trailers;
use tokometer_wire::Visitor;

/// Header fields as names and values.
pub(crate) type Fields = Vec<(String, Vec<u8>)>;

/// One call of the visitor. Calls for adjacent body slices are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
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
}

impl Told {
    /// True for calls caused by the client's bytes.
    pub(crate) fn of_request(&self) -> bool {
        use Told::*;
        matches!(self, RequestBegin | RequestHead { .. } | RequestBody(_) | RequestEnd)
    }
}

impl std::fmt::Display for Told {
    /// `+ POST /x "body" .` for a request, `100 200 "body" !` for its response.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Told::RequestBegin => f.write_str("+"),
            Told::RequestHead { method, target, .. } => write!(f, "{method} {target}"),
            Told::RequestBody(body) | Told::ResponseBody(body) => write!(f, "\"{}\"", body.escape_ascii()),
            Told::RequestEnd => f.write_str("."),
            Told::Interim(status) | Told::ResponseHead { status, .. } => write!(f, "{status}"),
            Told::Trailers(fields) => write!(f, "trailers({})", fields.len()),
            Told::ResponseEnd => f.write_str("!"),
            Told::Reset(reset) => write!(f, "{reset:?}"),
            Told::Unobserved => f.write_str("?"),
        }
    }
}

/// Records its calls.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) told: Vec<Told>,
    /// The time of each call; joined body slices count separately.
    pub(crate) times: Vec<Instant>,
    begun: u64,
    ended: u64,
}

pub(crate) fn fields(headers: &[httparse::Header<'_>]) -> Fields {
    headers.iter().map(|header| (header.name.to_owned(), header.value.to_owned())).collect()
}

impl Trace {
    pub(crate) fn note(&mut self, told: Told, at: Instant) {
        self.times.push(at);
        match (self.told.last_mut(), &told) {
            (Some(Told::RequestBody(body)), Told::RequestBody(more)) => body.extend_from_slice(more),
            (Some(Told::ResponseBody(body)), Told::ResponseBody(more)) => body.extend_from_slice(more),
            _ => self.told.push(told),
        }
    }
}

/// HTTP/1 numbers requests in the order in which they begin, and their responses end in the same order.
impl Visitor for Trace {
    fn request_begin(&mut self, exchange: u64, at: Instant) -> bool {
        assert_eq!(exchange, self.begun);
        self.begun += 1;
        self.note(Told::RequestBegin, at);
        true
    }

    fn request_head(&mut self, exchange: u64, head: &RequestHead<'_>, at: Instant) {
        assert_eq!(exchange + 1, self.begun);
        let (method, target) = (head.method.to_owned(), head.target.to_owned());
        self.note(Told::RequestHead { method, target, minor: head.minor, fields: fields(head.headers) }, at);
    }

    fn request_body(&mut self, exchange: u64, bytes: &[u8], at: Instant) {
        assert_eq!(exchange + 1, self.begun);
        assert!(!bytes.is_empty(), "slices are never empty");
        self.note(Told::RequestBody(bytes.to_owned()), at);
    }

    fn request_end(&mut self, exchange: u64, at: Instant) {
        assert_eq!(exchange + 1, self.begun);
        self.note(Told::RequestEnd, at);
    }

    fn interim(&mut self, exchange: u64, status: u16, at: Instant) {
        assert_eq!(exchange, self.ended);
        self.note(Told::Interim(status), at);
    }

    fn response_head(&mut self, exchange: u64, head: &ResponseHead<'_>, at: Instant) {
        assert_eq!(exchange, self.ended);
        let told = Told::ResponseHead { status: head.status, minor: head.minor, fields: fields(head.headers) };
        self.note(told, at);
    }

    fn response_body(&mut self, exchange: u64, bytes: &[u8], at: Instant) {
        assert_eq!(exchange, self.ended);
        assert!(!bytes.is_empty(), "slices are never empty");
        self.note(Told::ResponseBody(bytes.to_owned()), at);
    }

    fn response_trailers(&mut self, _: u64, _: &Trailers<'_>, _: Instant) {
        panic!("trailers are reported only in HTTP/2");
    }

    fn response_end(&mut self, exchange: u64, at: Instant) {
        assert_eq!(exchange, self.ended);
        self.ended += 1;
        self.note(Told::ResponseEnd, at);
    }

    fn reset(&mut self, _: u64, _: Reset, _: Instant) {
        panic!("streams are reset only in HTTP/2");
    }
}

/// One read of one direction.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Request(Vec<u8>),
    Response(Vec<u8>),
    /// The server's FIN.
    ServerFin,
}

/// The client sends these bytes.
pub(crate) fn ask(bytes: impl AsRef<[u8]>) -> Step {
    Step::Request(bytes.as_ref().to_owned())
}

/// The server sends these bytes.
pub(crate) fn answer(bytes: impl AsRef<[u8]>) -> Step {
    Step::Response(bytes.as_ref().to_owned())
}

/// Everything observable about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) told: Vec<Told>,
    pub(crate) fault: Option<Fault>,
    pub(crate) open: usize,
    pub(crate) request_open: bool,
    pub(crate) response_open: bool,
}

impl Outcome {
    /// The calls in one line.
    pub(crate) fn line(&self) -> String {
        self.told.iter().map(Told::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The calls for one direction.
    pub(crate) fn of(&self, request: bool) -> Vec<Told> {
        self.told.iter().filter(|told| told.of_request() == request).cloned().collect()
    }
}

/// Feeds `steps` until the first fault.
pub(crate) fn feed(limits: Limits, steps: &[Step]) -> Outcome {
    let mut http1 = Http1::new(limits);
    let mut trace = Trace::default();
    let mut at = Instant::now();
    let mut fault = None;
    for step in steps {
        at += Duration::from_millis(1);
        let result = match step {
            Step::Request(bytes) => http1.request(bytes, at, &mut trace),
            Step::Response(bytes) => http1.response(bytes, at, &mut trace),
            Step::ServerFin => http1.response_finished(at, &mut trace),
        };
        fault = result.err();
        if fault.is_some() {
            break;
        }
    }
    Outcome {
        told: trace.told,
        fault,
        open: http1.open(),
        request_open: http1.request_open(),
        response_open: http1.response_open(),
    }
}

/// The same bytes, split before each offset (counted over all steps) for which `is_cut` returns true.
pub(crate) fn cut(steps: &[Step], mut is_cut: impl FnMut(usize) -> bool) -> Vec<Step> {
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
pub(crate) fn same_at_splits<O: PartialEq + std::fmt::Debug>(
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

/// Feeds `steps` split at random places (the same in every run); the outcome must equal `whole`.
pub(crate) fn same_at_random_splits<O: PartialEq + std::fmt::Debug>(
    steps: &[Step],
    whole: &O,
    feed: impl Fn(&[Step]) -> O,
) {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mean = [2, 5, 17, 60][seed as usize % 4];
        assert_eq!(*whole, feed(&cut(steps, |_| random.usize(..mean) == 0)), "random cuts, seed {seed}");
    }
}

/// [`same_at_splits`] for HTTP/1.
pub(crate) fn feed_every_split(limits: Limits, steps: &[Step]) -> Outcome {
    // Long traffic is split at a few hundred places: at all of its first and last bytes, and at some in between.
    let places = |place: usize, length: usize| {
        place < 300 || length - place < 100 || place.is_multiple_of((length / 400).max(1))
    };
    same_at_splits(steps, places, |steps| feed(limits, steps))
}

/// [`same_at_random_splits`] for HTTP/1.
pub(crate) fn feed_random_splits(limits: Limits, steps: &[Step], whole: &Outcome) {
    same_at_random_splits(steps, whole, |steps| feed(limits, steps));
}

/// [`feed_every_split`] with the default limits.
pub(crate) fn read(steps: &[Step]) -> Outcome {
    feed_every_split(Limits::default(), steps)
}
