//! Observer of one connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::input::{Activity, Close, Connection, Direction, Network, NetworkSource, Observer, Side, TraceParent};
use crate::measure::{Detach, Ending, Message};
use crate::observer::Shared;
use crate::observer::cost::{CpuBudget, Sample, cpu_time};
use crate::observer::network::ClientNetwork;
use crate::observer::open::Open;
use crate::observer::request::OpenRequest;
use crate::observer::session::{Effect, Session};
use tokometer_decode::StreamEvent;
use tokometer_wire::budget::{Account, Exhausted, Share};
use tokometer_wire::websocket::{Event, Extensions, Sender};
use tokometer_wire::{Fault, Reader, RequestHead, Reset, ResponseHead, Trailers, Visitor};

/// Memory charged per open request: its state, decoders and entries in the in-flight tables, rounded up (measured by a
/// test in `tests/it/observer_cost.rs`).
const REQUEST_BYTES: usize = 4096;

/// Value of `Requests::skipped` if no request is skipped.
const NONE_SKIPPED: u16 = u16::MAX;

/// Memory charged for a WebSocket session, rounded up.
const SESSION_BYTES: usize = 4096;

/// Number of bytes for which decoding allowance is granted. Request bytes count only a third: unlike streams, requests
/// need no allowance for a flush at each event, and anyone can send them.
fn earning(direction: Direction, bytes: usize) -> u32 {
    let bytes = match direction {
        Direction::Request => bytes / 3,
        Direction::Response => bytes,
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The directions that need decoding, one bit each, because every connection stores this value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Decodes(u8);

impl Decodes {
    fn any(self) -> bool {
        self.0 != 0
    }

    fn has(self, direction: Direction) -> bool {
        self.0 & 1 << direction as u8 != 0
    }

    fn add(&mut self, direction: Direction) {
        self.0 |= 1 << direction as u8;
    }
}

/// Parses one connection until it ends or can no longer be parsed.
pub(super) struct ConnectionObserver {
    http: Option<Reader>,
    requests: Requests,
}

/// Open requests of a connection, and their shared state.
struct Requests {
    shared: Arc<Shared>,
    connection: u64,
    /// This and the following fields have small types, because every connection stores them.
    listener: u16,
    /// Bytes of the current read for which decoding allowance is granted.
    earning: u32,
    /// The client is currently not reading.
    client_blocked: bool,
    /// The directions in which bodies or messages are or were decoded. Only bytes in these directions increase the
    /// decoding allowance, so that plain responses do not increase it for floods of compressed requests.
    decodes: Decodes,
    /// Number of requests in progress: open ones that are complete or whose response has begun, and skipped ones. On
    /// HTTP/2, the end of a skipped request is unknown.
    in_progress: u16,
    /// Low 15 bits of the number of a skipped request whose headers have not arrived yet, or [`NONE_SKIPPED`]. No other
    /// headers arrive before them.
    skipped: u16,
    /// Memory charged to the connection.
    share: Share,
    cpu: CpuBudget,
    open: Open,
    network: ClientNetwork,
    /// Set if the connection is a WebSocket whose messages are parsed.
    session: Option<Box<Session>>,
}

impl ConnectionObserver {
    /// # Errors
    /// The memory budget has no room for the observer.
    pub(super) fn new(connection: &Connection, shared: Arc<Shared>) -> Result<ConnectionObserver, Exhausted> {
        let address = connection.peer.map(|peer| peer.ip());
        let mut share = shared.lasting.budget.account(address, shared.settings.coding_ratio).share();
        share.hold(size_of::<ConnectionObserver>())?;
        Ok(ConnectionObserver {
            http: Some(Reader::new(shared.limits())),
            requests: Requests {
                shared,
                connection: connection.id,
                listener: u16::try_from(connection.listener).unwrap_or(u16::MAX),
                earning: 0,
                client_blocked: false,
                decodes: Decodes::default(),
                in_progress: 0,
                skipped: NONE_SKIPPED,
                share,
                cpu: CpuBudget::default(),
                open: Open::default(),
                network: ClientNetwork::default(),
                session: None,
            },
        })
    }

    /// Stops parsing. Records open requests as unobserved, and counts the reason.
    fn detach(&mut self, why: Detach, at: Option<Instant>) {
        self.http = None;
        self.requests.lose_all(at);
        self.requests.session = None;
        self.requests.shared.sink.detached(self.requests.listener as usize, why);
        // Cannot fail: the share only shrinks.
        self.requests.share.hold(size_of::<ConnectionObserver>()).ok();
    }

    /// Charges the connection for its current memory.
    fn charge(&mut self, at: Instant) {
        let requests = &mut self.requests;
        let session = if requests.session.is_some() { SESSION_BYTES } else { 0 };
        let request_bytes = requests.open.len() * REQUEST_BYTES;
        let reader = self.http.as_ref().map_or(0, Reader::holds);
        if requests.share.hold(size_of::<ConnectionObserver>() + request_bytes + session + reader).is_err() {
            self.detach(Detach::Memory, Some(at));
        }
    }

    /// Parses the bytes, and charges for CPU time and memory.
    fn read_metered(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        self.requests.earning = earning(direction, bytes.len());
        // A client can make requests and compressed bodies expensive to parse, but not plain responses.
        if !self.requests.decodes.any() && direction == Direction::Response {
            self.read(direction, bytes, at);
        } else {
            if self.requests.decodes.has(direction) {
                self.requests.account().earn(self.requests.earning as usize);
            }
            let begin = cpu_time();
            self.read(direction, bytes, at);
            let taken = cpu_time().saturating_sub(begin);
            if !self.requests.cpu.spend(bytes.len(), taken) && self.http.is_some() {
                self.detach(Detach::Work, Some(at));
            }
        }
        self.charge(at);
    }

    fn read(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        let Some(http) = &mut self.http else { return };
        // On HTTP/2, the affected request is not known before the frames are parsed.
        if direction == Direction::Response && !http.is_shared() {
            http.warm();
            if let Some(request) = self.requests.open.first() {
                request.warm();
            }
        }
        let result = match direction {
            Direction::Request => http.request(bytes, at, &mut self.requests),
            Direction::Response => match http.response(bytes, at, &mut self.requests) {
                Err(Fault::WebSocket(extensions)) => {
                    if matches!(extensions, Extensions::Deflate(_)) {
                        self.requests.begin_decoding(Direction::Response);
                        self.requests.begin_decoding(Direction::Request);
                    }
                    let account = self.requests.account().clone();
                    http.follow_websocket(extensions, &account, bytes, at, &mut self.requests)
                }
                result => result,
            },
        };
        self.detach_on_fault(result, at);
    }

    fn detach_on_fault(&mut self, result: Result<(), Fault>, at: Instant) {
        if let Err(fault) = result {
            let why = match fault {
                Fault::Upgraded => Detach::Upgraded,
                // These faults are normally handled by switching the parser; they arrive here only if switching is
                // impossible.
                Fault::Http2 | Fault::WebSocket(_) => Detach::Upgraded,
                Fault::MalformedFrame => Detach::MalformedFrame,
                Fault::NotHttp => Detach::NotHttp,
                Fault::Tls => Detach::Tls,
                Fault::MalformedRequest => Detach::MalformedRequest,
                Fault::MalformedResponse => Detach::MalformedResponse,
                Fault::HeadTooLarge => Detach::HeadTooLarge,
                Fault::UnexpectedResponse => Detach::UnexpectedResponse,
                Fault::HeaderCompression => Detach::HeaderCompression,
                Fault::HeaderTableTooLarge => Detach::HeaderTableTooLarge,
                Fault::HeaderExpansion => Detach::HeaderExpansion,
            };
            self.detach(why, Some(at));
        }
    }
}

impl Observer for ConnectionObserver {
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        let sample = Sample::begin();
        self.read_metered(direction, bytes, at);
        sample.end(&self.requests.shared.lasting.busy_nanos);
    }

    fn late(&mut self, by: Duration) {
        self.requests.open.iter_mut().for_each(|request| request.measured.late(by));
    }

    fn waited(&mut self, by: Duration, at: Instant) {
        let begun = self.requests.open.iter_mut().filter(|request| request.measured.started() == at);
        begun.for_each(|request| request.measured.late(by));
    }

    fn is_costly(&self) -> bool {
        self.requests.decodes.any() && self.http.is_some()
    }

    fn finished(&mut self, direction: Direction, at: Instant) {
        let sample = Sample::begin();
        if let Some(http) = &mut self.http {
            match direction {
                Direction::Response => http.response_finished(at, &mut self.requests),
                Direction::Request => {
                    self.requests.open.iter_mut().for_each(|request| request.measured.client_left(at))
                }
            }
        }
        sample.end(&self.requests.shared.lasting.busy_nanos);
    }

    fn waits(&mut self, direction: Direction, since: Instant) {
        if direction == Direction::Response && self.http.is_some() {
            self.requests.client_blocked = true;
            // Later responses are blocked too, because the server's data is not read while the client is blocked.
            self.requests.open.iter_mut().for_each(|request| request.measured.client_blocked(since));
        }
    }

    fn blocked(&mut self, direction: Direction, since: Instant, until: Instant) {
        let Some(http) = &self.http else { return };
        if direction == Direction::Response {
            self.requests.client_blocked = false;
            self.requests.open.iter_mut().for_each(|request| request.measured.resumed(until));
            let client_blocked = if http.is_shared() { usize::MAX } else { 1 };
            self.requests
                .open
                .iter_mut()
                .take(client_blocked)
                .for_each(|request| request.measured.blocked(since, until));
        }
    }

    fn lost(&mut self, at: Instant) {
        if self.http.is_some() {
            self.lost_packets(at);
            self.detach(Detach::CaptureGap, Some(at));
        }
    }

    fn lost_packets(&mut self, _at: Instant) {
        self.requests.open.iter_mut().for_each(|request| request.measured.lost_packets());
    }

    fn sent_trace(&mut self, sent: TraceParent) {
        if let Some(request) = self.requests.open.iter_mut().last() {
            request.measured.sent_trace(sent);
        }
    }

    fn network(&mut self, network: &Network) {
        self.requests.network.set(network);
    }

    fn network_source(&mut self, source: Arc<dyn NetworkSource>) {
        self.requests.network.read_from(source);
    }

    fn closed(&mut self, close: Close, at: Instant) {
        let sample = Sample::begin();
        self.http = None;
        let ending = match close {
            Close::Finished { first: Side::Client } | Close::Reset(Side::Client) | Close::Evicted => Ending::ClientGone,
            Close::Finished { first: Side::Server } | Close::Truncated => Ending::ServerFinished,
            Close::Reset(Side::Server) => Ending::ServerReset,
            Close::Refused => Ending::Refused,
            Close::ConnectTimeout => Ending::ConnectTimeout,
            Close::IdleTimeout => Ending::IdleTimeout,
            Close::Drained => Ending::Drained,
            Close::CaptureEnded => Ending::Unobserved,
        };
        if let Some(session) = self.requests.session.take() {
            self.requests.end_session(*session, ending, at);
        }
        while let Some(request) = self.requests.take_oldest(at) {
            request.end(ending, at, &self.requests.shared);
        }
        sample.end(&self.requests.shared.lasting.busy_nanos);
    }

    fn idle(&self) -> bool {
        // A connection that cannot be parsed, or a WebSocket whose messages are not parsed, may be in the middle of a
        // request. A WebSocket session is in use even between two responses.
        let known = self.http.as_ref().is_some_and(|http| !http.is_websocket());
        known && self.requests.open.is_empty() && self.requests.session.is_none()
    }

    fn activity(&self) -> Activity {
        let known = self.http.as_ref().is_some_and(|http| !http.is_websocket());
        let Requests { open, session, in_progress, .. } = &self.requests;
        if !known || session.is_some() || *in_progress > 0 {
            Activity::InProgress
        } else if open.is_empty() {
            Activity::Idle
        } else {
            Activity::Incomplete
        }
    }
}

impl Requests {
    fn find(&mut self, number: u64) -> Option<(&mut OpenRequest, &Account, &Shared)> {
        Some((self.open.find(number)?, self.share.account(), &self.shared))
    }

    fn account(&self) -> &Account {
        self.share.account()
    }

    /// At the maximum, the number stays the same: the connection then counts as in use until it ends.
    fn begin_progress(&mut self) {
        self.in_progress = self.in_progress.saturating_add(1);
    }

    fn end_progress(&mut self) {
        if self.in_progress < u16::MAX {
            self.in_progress = self.in_progress.saturating_sub(1);
        }
    }

    /// Marks the direction as decoded from now on, and grants the allowance for the current read.
    fn begin_decoding(&mut self, direction: Direction) {
        if !self.decodes.has(direction) {
            self.decodes.add(direction);
            let earning = std::mem::take(&mut self.earning);
            self.account().earn(earning as usize);
        }
    }

    /// Ends an open request; false if it is not open.
    fn end(&mut self, number: u64, ending: Ending, at: Instant) -> bool {
        let Some(mut request) = self.open.remove(number) else { return false };
        self.left(&mut request, at);
        request.end(ending, at, &self.shared);
        true
    }

    fn take_oldest(&mut self, at: Instant) -> Option<Box<OpenRequest>> {
        let mut request = self.open.pop_first()?;
        self.left(&mut request, at);
        Some(request)
    }

    /// Updates the counts for a request that is no longer open, and adds the connection's network values to it.
    fn left(&mut self, request: &mut OpenRequest, at: Instant) {
        if request.measured.is_in_progress() {
            self.end_progress();
        }
        self.shared.lasting.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(network) = self.network.now(at) {
            request.measured.network(&network);
        }
    }

    /// Adds a new request, with the connection's current network values.
    fn push(&mut self, mut request: Box<OpenRequest>) {
        if let Some(network) = self.network.at_begin(request.measured.started()) {
            request.measured.network_at_begin(&network);
        }
        self.open.push(request);
    }

    /// Starts a response of the session. `asked`: when the client requested it.
    fn begin_response(&mut self, asked: Option<Instant>, at: Instant) {
        let Some(session) = &mut self.session else { return };
        self.shared.lasting.open.fetch_add(1, Ordering::Relaxed);
        let mut request = OpenRequest::begin_in_session(session, asked, at, &self.shared);
        if self.client_blocked {
            request.measured.client_blocked(at);
        }
        self.push(request);
    }

    /// Processes an event that the server sent in the session; starts a response if none is open.
    fn session_event(&mut self, event: &StreamEvent, at: Instant) {
        if self.open.is_empty() {
            // An event without output between two responses belongs to neither.
            if event.channels.is_empty() {
                return;
            }
            self.begin_response(None, at);
        }
        let Some(session) = &mut self.session else { return };
        if let (Some(request), Some(decoder)) = (self.open.first_mut(), session.server.as_deref()) {
            request.message(event, decoder, at, &self.shared);
        }
        if event.end
            && let Some(request) = self.take_oldest(at)
            && let Some(session) = &mut self.session
        {
            request.end_in_session(session, Ending::Complete, at, &self.shared);
        }
    }

    /// Ends the open response of a session whose connection ended.
    fn end_session(&mut self, mut session: Session, ending: Ending, at: Instant) {
        let Some(mut request) = self.take_oldest(at) else { return };
        let ending = session.ending(ending).unwrap_or_else(|| {
            request.measured.fail();
            ending
        });
        request.end_in_session(&mut session, ending, at, &self.shared);
    }

    /// Ends all open requests as unobserved at `at`; without `at`, each at its latest recorded moment.
    fn lose_all(&mut self, at: Option<Instant>) {
        while let Some(first) = self.open.first() {
            let at = at.unwrap_or_else(|| first.measured.latest());
            let Some(request) = self.take_oldest(at) else { break };
            // Parsing this request may have panicked. The other requests must still be recorded.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| request.lose(at, &self.shared))) {
                std::mem::forget(payload);
            }
        }
    }
}

/// An observer that is dropped without being closed or detached, or with open requests, has panicked. Corrects the
/// gauges.
impl Drop for ConnectionObserver {
    fn drop(&mut self) {
        if self.http.is_some() {
            self.detach(Detach::Panic, None);
        }
        self.requests.lose_all(None);
        self.requests.shared.forget();
    }
}

impl Visitor for Requests {
    fn request_begin(&mut self, number: u64, at: Instant) -> bool {
        let full = self.open.len() >= self.shared.settings.max_open_requests;
        if full || self.share.hold(self.share.bytes() + REQUEST_BYTES).is_err() {
            self.skipped = skipped(number);
            self.begin_progress();
            return false;
        }
        self.shared.lasting.open.fetch_add(1, Ordering::Relaxed);
        self.push(OpenRequest::begin(self.connection, number, self.listener as usize, at));
        true
    }

    fn request_head(&mut self, number: u64, head: &RequestHead<'_>, at: Instant) {
        if self.skipped == skipped(number) {
            self.skipped = NONE_SKIPPED;
            return OpenRequest::record_skipped(
                self.connection,
                number,
                self.listener as usize,
                head,
                at,
                &self.shared,
            );
        }
        let client_blocked = self.client_blocked;
        let Some((request, account, shared)) = self.find(number) else { return };
        request.request_head(head, account, shared);
        if client_blocked {
            request.measured.client_blocked(at);
        }
        if request.decodes(Message::Request) {
            self.begin_decoding(Direction::Request);
        }
    }

    fn unobserved(&mut self, number: u64, at: Instant) {
        if self.end(number, Ending::Unobserved, at) {
            self.begin_progress();
        }
    }

    fn request_body(&mut self, number: u64, bytes: &[u8], _at: Instant) {
        if let Some((request, _, shared)) = self.find(number) {
            request.request_body(bytes, shared);
        }
    }

    fn request_end(&mut self, number: u64, at: Instant) {
        if let Some((request, _, shared)) = self.find(number) {
            let began = !request.measured.is_in_progress();
            request.request_end(at, shared);
            if began {
                self.begin_progress();
            }
        }
    }

    fn response_head(&mut self, number: u64, head: &ResponseHead<'_>, at: Instant) {
        if let Some((found, account, shared)) = self.find(number) {
            let began = !found.measured.is_in_progress();
            found.response_head(head, at, account, shared);
            if found.decodes(Message::Response) {
                self.begin_decoding(Direction::Response);
            }
            if began {
                self.begin_progress();
            }
        }
        if head.status == 101 {
            let session = self.find(number).and_then(|(request, ..)| request.handshake());
            self.session = session.filter(|_| head.is_websocket()).map(Box::new);
            self.response_end(number, at);
        }
    }

    fn response_body(&mut self, number: u64, bytes: &[u8], at: Instant) {
        if let Some((request, _, shared)) = self.find(number) {
            request.response_body(bytes, at, shared);
        }
    }

    fn response_trailers(&mut self, number: u64, trailers: &Trailers<'_>, _at: Instant) {
        if let Some((request, ..)) = self.find(number) {
            request.response_trailers(trailers);
        }
    }

    fn response_end(&mut self, number: u64, at: Instant) {
        if !self.end(number, Ending::Complete, at) {
            self.end_progress();
        }
    }

    fn websocket(&mut self, _request: u64, sender: Sender, event: &Event<'_>, at: Instant) {
        let Some(effect) = self.session.as_mut().and_then(|session| session.take(sender, event)) else { return };
        match effect {
            Effect::Bytes(of, bytes) => {
                if let Some(request) = self.open.first_mut() {
                    match of {
                        Message::Request => request.measured.request_body(bytes),
                        Message::Response => request.measured.response_body(bytes),
                    }
                }
            }
            Effect::Requested if self.open.is_empty() => self.begin_response(Some(at), at),
            // vLLM's clients send `input_audio_buffer.commit` repeatedly during a response.
            Effect::Requested => {}
            Effect::Event(event) => self.session_event(&event, at),
            Effect::Unread(of, why) => {
                if let Some(request) = self.open.first_mut().filter(|_| of == Message::Response) {
                    request.measured.response_unread();
                }
                self.shared.sink.unread(self.listener as usize, of, why);
            }
        }
    }

    fn reset(&mut self, number: u64, reset: Reset, at: Instant) {
        self.end(number, ending(reset), at);
    }
}

/// See [`Requests::skipped`].
fn skipped(number: u64) -> u16 {
    (number & 0x7fff) as u16
}

/// HTTP/2 error codes (RFC 9113, section 7).
const REFUSED_STREAM: u32 = 0x7;
const ENHANCE_YOUR_CALM: u32 = 0xb;

fn ending(reset: Reset) -> Ending {
    match reset {
        Reset::ByClient(_) => Ending::ClientGone,
        Reset::ByServer(REFUSED_STREAM | ENHANCE_YOUR_CALM) => Ending::Busy,
        Reset::ByServer(_) => Ending::ServerReset,
        Reset::NotTaken => Ending::Refused,
    }
}
