//! Observer of one connection.

mod session;
mod visitor;

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
use crate::observer::session::Session;
use tokometer_wire::budget::{Account, Share};
use tokometer_wire::websocket::{Extensions, Sender};
use tokometer_wire::{Fault, Reader, RequestHead};

/// Memory charged per open request: its state, decoders and entries in the in-flight tables, rounded up (measured by a
/// test in `tests/it/observer_cost.rs`).
const REQUEST_BYTES: usize = 4096;

/// Value of `Requests::skipped` if no request is skipped.
const NONE_SKIPPED: u16 = u16::MAX;

/// Memory charged for a WebSocket session, rounded up.
const SESSION_BYTES: usize = 4096;

/// Maximum memory of a parser that is kept when an idle connection gives up its open requests: two compression tables of
/// the default size, and entries for streams.
const KEPT_READER_BYTES: usize = 16 * 1024;

fn message(direction: Direction) -> Message {
    match direction {
        Direction::Request => Message::Request,
        Direction::Response => Message::Response,
    }
}

/// The directions that need decoding, and whether the connection is over the limit of observed connections: one bit each,
/// because every connection stores this value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Flags(u8);

impl Flags {
    const DECODES: u8 = 0b11;
    const OVER_LIMIT: u8 = 0b100;

    fn is_over_limit(self) -> bool {
        self.0 & Flags::OVER_LIMIT != 0
    }

    fn decodes_any(self) -> bool {
        self.0 & Flags::DECODES != 0
    }

    fn decodes(self, direction: Direction) -> bool {
        self.0 & 1 << direction as u8 != 0
    }

    fn add_decoding(&mut self, direction: Direction) {
        self.0 |= 1 << direction as u8;
    }
}

fn sender(direction: Direction) -> Sender {
    match direction {
        Direction::Request => Sender::Client,
        Direction::Response => Sender::Server,
    }
}

/// Parses one connection until it ends, or switches to a protocol that is not parsed.
pub(super) struct ConnectionObserver {
    http: Option<Reader>,
    requests: Requests,
}

/// Open requests of a connection, and their shared state.
pub(super) struct Requests {
    pub(super) shared: Arc<Shared>,
    connection: u64,
    /// This and the following fields have small types, because every connection stores them.
    pub(super) listener: u16,
    /// Bytes of the current read for which decoding allowance is granted.
    earning: u32,
    /// The client is currently not reading.
    pub(super) client_blocked: bool,
    /// The directions in which bodies or messages are or were decoded. Only bytes in these directions increase the
    /// decoding allowance, so that plain responses do not increase it for floods of compressed requests.
    flags: Flags,
    /// Low 15 bits of the number of a skipped request whose headers have not arrived yet, or [`NONE_SKIPPED`]. No other
    /// headers arrive before them.
    skipped: u16,
    /// Memory charged to the connection.
    share: Share,
    cpu: CpuBudget,
    pub(super) open: Open,
    network: ClientNetwork,
    /// Set if the connection is a WebSocket whose messages are parsed.
    pub(super) session: Option<Box<Session>>,
}

impl ConnectionObserver {
    /// If `over_limit` is true, requests are counted as unobserved until there is room.
    pub(super) fn new(connection: &Connection, shared: Arc<Shared>, over_limit: bool) -> ConnectionObserver {
        let address = connection.peer.map(|peer| peer.ip());
        let account = shared.lasting.budget.account(address, shared.settings.coding_ratio);
        account.touch(connection.accepted);
        let share = account.share();
        if over_limit {
            shared.sink.detached(connection.listener, Detach::Shed);
        }
        let flags = Flags(if over_limit { Flags::OVER_LIMIT } else { 0 });
        ConnectionObserver {
            http: Some(Reader::new(shared.limits())),
            requests: Requests {
                shared,
                connection: connection.id,
                listener: u16::try_from(connection.listener).unwrap_or(u16::MAX),
                earning: 0,
                client_blocked: false,
                flags,
                skipped: NONE_SKIPPED,
                share,
                cpu: CpuBudget::default(),
                open: Open::default(),
                network: ClientNetwork::default(),
                session: None,
            },
        }
    }

    /// Exhausts the CPU budget until this many bytes are received.
    #[cfg(test)]
    pub(super) fn exhaust(&mut self, bytes: usize, at: Instant) {
        self.requests.cpu = CpuBudget::exhausted(bytes);
        self.requests.flags.add_decoding(Direction::Response);
        self.exhausted(false, at);
    }

    /// Stops parsing. Records open requests as unobserved, and counts the reason.
    fn detach(&mut self, why: Detach, at: Option<Instant>) {
        self.http = None;
        self.requests.lose_all(at);
        self.requests.session = None;
        self.requests.count(why);
        // Cannot fail: the share only shrinks.
        self.requests.share.hold(0).ok();
    }

    pub(super) fn account(&self) -> &Account {
        self.requests.account()
    }

    /// Gives up the open requests, which are recorded as unobserved. If there are none, or if the parser holds much
    /// memory, also gives up what the parser holds; later requests are then found again, or only counted. The messages
    /// of a WebSocket cannot be found again.
    pub(super) fn take_back(&mut self) {
        let Some(http) = &mut self.http else { return };
        if http.is_websocket() {
            return self.detach(Detach::Memory, None);
        }
        self.requests.count(Detach::Memory);
        let frees_parser = self.requests.open.is_empty() || http.holds() > KEPT_READER_BYTES;
        self.requests.lose_all(None);
        if frees_parser {
            http.free(Instant::now(), &mut self.requests);
        }
        self.hold();
    }

    /// Charges the connection for its current memory. Without room, open requests are no longer observed, and then
    /// incomplete headers are dropped.
    fn charge(&mut self, at: Instant) {
        let is_websocket = self.http.as_ref().is_some_and(Reader::is_websocket);
        let incomplete = self.activity() == Activity::Incomplete || is_websocket && self.requests.open.is_empty();
        self.requests.account().set_incomplete(incomplete);
        if self.hold() {
            return;
        }
        let Some(http) = &mut self.http else { return };
        if http.is_websocket() {
            return self.detach(Detach::Memory, Some(at));
        }
        if !self.requests.open.is_empty() || http.holds() > 0 {
            self.requests.count(Detach::Memory);
            self.requests.lose_all(Some(at));
        }
        if !self.hold()
            && let Some(http) = &mut self.http
        {
            http.free(at, &mut self.requests);
            self.hold();
        }
    }

    /// False if the budget has no room for the connection's current memory.
    fn hold(&mut self) -> bool {
        let requests = &mut self.requests;
        let session = if requests.session.is_some() { SESSION_BYTES } else { 0 };
        let request_bytes = requests.open.len() * REQUEST_BYTES;
        let reader = self.http.as_ref().map_or(0, Reader::holds);
        requests.share.hold(request_bytes + session + reader).is_ok()
    }

    /// Parses the bytes, and charges for CPU time and memory.
    fn read_metered(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        self.requests.earning = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        // A client can make requests and compressed bodies expensive to parse, but not plain responses.
        if !self.requests.flags.decodes_any() && direction == Direction::Response {
            self.read(direction, bytes, at);
        } else {
            if self.requests.flags.decodes(direction) {
                self.requests.account().earn(sender(direction), bytes.len());
            }
            let begin = cpu_time();
            self.read(direction, bytes, at);
            let taken = cpu_time().saturating_sub(begin);
            let was_exhausted = self.requests.cpu.is_exhausted();
            if !self.requests.cpu.spend(bytes.len(), taken) {
                self.exhausted(was_exhausted, at);
            }
        }
        self.charge(at);
    }

    /// Handles an exhausted CPU budget. Finding requests is cheap, unlike parsing their bodies. The messages of a
    /// WebSocket cannot be found without parsing them.
    fn exhausted(&mut self, was_exhausted: bool, at: Instant) {
        match &self.http {
            None => {}
            Some(http) if http.is_websocket() => self.detach(Detach::Work, Some(at)),
            Some(_) => {
                if !was_exhausted {
                    self.requests.count(Detach::Work);
                }
                self.requests.lose_all(Some(at));
            }
        }
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
        if let Err(fault) = result {
            self.count_fault(direction, fault, at);
        }
    }

    /// Counts a fault. Except after a switch to another protocol, later requests are still found.
    fn count_fault(&mut self, direction: Direction, fault: Fault, at: Instant) {
        let why = match fault {
            // Switching the parser to HTTP/2 or WebSocket was impossible.
            Fault::Upgraded | Fault::Http2 | Fault::WebSocket(_) => {
                return self.detach(Detach::Upgraded, Some(at));
            }
            Fault::MalformedFrame => {
                if direction == Direction::Response {
                    self.requests.lose_all(Some(at));
                }
                Detach::MalformedFrame
            }
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
        self.requests.count(why);
    }
}

impl Observer for ConnectionObserver {
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        let sample = Sample::begin();
        self.requests.account().touch(at);
        self.read_metered(direction, bytes, at);
        if self.http.as_ref().is_none_or(Reader::is_blind) {
            self.requests.shared.sink.unparsed(self.requests.listener as usize, message(direction), bytes.len());
        }
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
        self.requests.flags.decodes_any() && self.http.is_some()
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
        let known = self.http.as_ref().is_some_and(|http| http.is_certain() && http.is_idle());
        known && self.requests.open.is_empty() && self.requests.session.is_none()
    }

    fn activity(&self) -> Activity {
        self.http.as_ref().map_or(Activity::InProgress, Reader::activity)
    }
}

impl Requests {
    fn find(&mut self, number: u64) -> Option<(&mut OpenRequest, &Account, &Shared)> {
        Some((self.open.find(number)?, self.share.account(), &self.shared))
    }

    fn account(&self) -> &Account {
        self.share.account()
    }

    /// Counts a fault or an exhausted limit.
    fn count(&self, why: Detach) {
        self.shared.sink.detached(self.listener as usize, why);
    }

    /// True if the next request may be observed.
    fn has_room(&mut self) -> bool {
        if self.flags.is_over_limit() && self.shared.admit() {
            self.flags.0 &= !Flags::OVER_LIMIT;
        }
        !self.flags.is_over_limit()
            && !self.cpu.is_exhausted()
            && self.open.len() < self.shared.settings.max_open_requests
            && self.share.hold(self.share.bytes() + REQUEST_BYTES).is_ok()
    }

    /// Records a request that is not observed.
    fn record_skipped(&self, number: u64, head: Option<&RequestHead<'_>>, at: Instant) {
        OpenRequest::record_skipped(self.connection, number, self.listener as usize, head, at, &self.shared);
    }

    /// Marks the direction as decoded from now on, and grants the allowance for the current read.
    fn begin_decoding(&mut self, direction: Direction) {
        if !self.flags.decodes(direction) {
            self.flags.add_decoding(direction);
            let earning = std::mem::take(&mut self.earning);
            self.account().earn(sender(direction), earning as usize);
        }
    }

    /// Ends a request, if it is open.
    fn end(&mut self, number: u64, ending: Ending, at: Instant) {
        if let Some(mut request) = self.open.remove(number) {
            self.left(&mut request, at);
            request.end(ending, at, &self.shared);
        }
    }

    pub(super) fn take_oldest(&mut self, at: Instant) -> Option<Box<OpenRequest>> {
        let mut request = self.open.pop_first()?;
        self.left(&mut request, at);
        Some(request)
    }

    /// Updates the counts for a request that is no longer open, and adds the connection's network values to it.
    fn left(&mut self, request: &mut OpenRequest, at: Instant) {
        self.shared.lasting.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(network) = self.network.now(at) {
            request.measured.network(&network);
        }
    }

    /// Adds a new request, with the connection's current network values.
    pub(super) fn push(&mut self, mut request: Box<OpenRequest>) {
        if let Some(network) = self.network.at_begin(request.measured.started()) {
            request.measured.network_at_begin(&network);
        }
        self.open.push(request);
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
        if !self.requests.flags.is_over_limit() {
            self.requests.shared.forget();
        }
    }
}
