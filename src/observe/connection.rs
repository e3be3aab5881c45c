//! The observer of one connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::decode::StreamEvent;
use crate::measure::Detach;
use crate::measure::Ending;
use crate::measure::Message;
use crate::observe::SAMPLE;
use crate::observe::Shared;
use crate::observe::exchange::Exchange;
use crate::observe::open::Open;
use crate::observe::session::Session;
use crate::observe::session::Turn;
use crate::relay::Close;
use crate::relay::Connection;
use crate::relay::Direction;
use crate::relay::Observer;
use crate::relay::Side;
use crate::wire::Fault;
use crate::wire::Reader;
use crate::wire::RequestHead;
use crate::wire::Reset;
use crate::wire::ResponseHead;
use crate::wire::Trailers;
use crate::wire::Visitor;
use crate::wire::websocket::Seen;
use crate::wire::websocket::Sender;

/// Reads one connection until it ends or can no longer be followed.
#[derive(Debug)]
pub(super) struct ConnectionObserver {
    http: Option<Reader>,
    exchanges: Exchanges,
}

/// The open exchanges of a connection, and what they share.
#[derive(Debug)]
struct Exchanges {
    shared: Arc<Shared>,
    connection: u64,
    /// Narrow, so that it and the next share a word: every connection has one of these.
    pair: u32,
    /// Calls since the last timed one.
    untimed: u8,
    /// The client takes no bytes now.
    held_up: bool,
    open: Open,
    /// The connection is a WebSocket whose messages are read.
    session: Option<Box<Session>>,
}

impl ConnectionObserver {
    pub(super) fn new(connection: &Connection, shared: Arc<Shared>) -> ConnectionObserver {
        ConnectionObserver {
            http: Some(Reader::new(shared.limits())),
            exchanges: Exchanges {
                shared,
                connection: connection.id,
                pair: u32::try_from(connection.pair).unwrap_or(u32::MAX),
                untimed: 0,
                held_up: false,
                open: Open::default(),
                session: None,
            },
        }
    }

    /// Stops reading. What is open can no longer be told and leaves unrecorded; the reason is counted.
    fn detach(&mut self, why: Detach) {
        self.http = None;
        self.exchanges.abandon();
        self.exchanges.session = None;
        self.exchanges.shared.sink.detached(self.exchanges.pair as usize, why);
    }

    fn read(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        let Some(http) = &mut self.http else { return };
        // On HTTP/2 only the frames tell whose bytes these are.
        if direction == Direction::Response && !http.is_shared() {
            http.warm();
            if let Some(exchange) = self.exchanges.open.first() {
                exchange.warm();
            }
        }
        let result = match direction {
            Direction::Request => http.request(bytes, at, &mut self.exchanges),
            Direction::Response => match http.response(bytes, at, &mut self.exchanges) {
                Err(Fault::WebSocket(extensions)) => {
                    let shared = Arc::clone(&self.exchanges.shared);
                    let (limits, memory) = (shared.coding_limits(), &shared.lasting.codings);
                    http.follow_websocket(extensions, limits, memory, bytes, at, &mut self.exchanges)
                }
                result => result,
            },
        };
        self.followed(result);
    }

    fn followed(&mut self, result: Result<(), Fault>) {
        if let Err(fault) = result {
            self.detach(match fault {
                Fault::Upgraded => Detach::Upgraded,
                // These are followed; were they not to be, this is what it would be.
                Fault::Http2 | Fault::WebSocket(_) => Detach::Upgraded,
                Fault::MalformedFrame => Detach::MalformedFrame,
                Fault::NotHttp => Detach::NotHttp,
                Fault::MalformedRequest => Detach::MalformedRequest,
                Fault::MalformedResponse => Detach::MalformedResponse,
                Fault::HeadTooLarge => Detach::HeadTooLarge,
                Fault::UnexpectedResponse => Detach::UnexpectedResponse,
                Fault::PipelineTooDeep => Detach::PipelineTooDeep,
                Fault::HeaderCompression => Detach::HeaderCompression,
                Fault::HeaderTableTooLarge => Detach::HeaderTableTooLarge,
                Fault::TooManyStreams => Detach::TooManyStreams,
            });
        }
    }
}

impl Observer for ConnectionObserver {
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        self.exchanges.untimed += 1;
        if self.exchanges.untimed < SAMPLE {
            return self.read(direction, bytes, at);
        }
        self.exchanges.untimed = 0;
        let begin = Instant::now();
        self.read(direction, bytes, at);
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_mul(u64::from(SAMPLE));
        self.exchanges.shared.lasting.busy_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn finished(&mut self, direction: Direction, at: Instant) {
        let Some(http) = &mut self.http else { return };
        match direction {
            Direction::Response => {
                let result = http.response_finished(at, &mut self.exchanges);
                self.followed(result);
            }
            Direction::Request => self.exchanges.open.iter_mut().for_each(|exchange| exchange.client_left()),
        }
    }

    fn waits(&mut self, direction: Direction, since: Instant) {
        if direction == Direction::Response && self.http.is_some() {
            self.exchanges.held_up = true;
            // Those behind the first cannot be answered either, as nothing of the server's is read.
            self.exchanges.open.iter_mut().for_each(|exchange| exchange.held_up(since));
        }
    }

    fn blocked(&mut self, direction: Direction, since: Instant, until: Instant) {
        let Some(http) = &self.http else { return };
        if direction == Direction::Response {
            self.exchanges.held_up = false;
            self.exchanges.open.iter_mut().for_each(|exchange| exchange.resumed(until));
            let held_up = if http.is_shared() { usize::MAX } else { 1 };
            self.exchanges.open.iter_mut().take(held_up).for_each(|exchange| exchange.blocked(since, until));
        }
    }

    fn closed(&mut self, close: Close, at: Instant) {
        self.http = None;
        let ending = match close {
            Close::Finished { first: Side::Client } | Close::Reset(Side::Client) => Ending::ClientGone,
            Close::Finished { first: Side::Server } => Ending::ServerFinished,
            Close::Reset(Side::Server) => Ending::ServerReset,
            Close::Refused => Ending::Refused,
            Close::ConnectTimeout => Ending::ConnectTimeout,
            Close::IdleTimeout => Ending::IdleTimeout,
            Close::Drained => Ending::Drained,
        };
        if let Some(session) = self.exchanges.session.take() {
            self.exchanges.end_session(*session, ending, at);
        }
        while let Some(exchange) = self.exchanges.take_oldest() {
            exchange.end(ending, at, &self.exchanges.shared);
        }
    }

    fn idle(&self) -> bool {
        // A connection that cannot be read, or is a WebSocket of which nobody knows what it says, may be in the middle of anything.
        // A session is one to its client, also between two answers.
        let known = self.http.as_ref().is_some_and(|http| !http.is_websocket());
        known && self.exchanges.open.is_empty() && self.exchanges.session.is_none()
    }
}

impl Exchanges {
    fn find(&mut self, number: u64) -> Option<(&mut Exchange, &Shared)> {
        Some((self.open.find(number)?, &self.shared))
    }

    fn end(&mut self, number: u64, ending: Ending, at: Instant) {
        if let Some(exchange) = self.open.remove(number) {
            self.shared.lasting.open.fetch_sub(1, Ordering::Relaxed);
            exchange.end(ending, at, &self.shared);
        }
    }

    fn take_oldest(&mut self) -> Option<Box<Exchange>> {
        let exchange = self.open.pop_first()?;
        self.shared.lasting.open.fetch_sub(1, Ordering::Relaxed);
        Some(exchange)
    }

    /// An answer of the session begins.
    fn begin_answer(&mut self, asked: bool, at: Instant) {
        let Some(session) = &mut self.session else { return };
        self.shared.lasting.open.fetch_add(1, Ordering::Relaxed);
        let mut exchange = Exchange::begin_in_session(session, asked, at, &self.shared);
        if self.held_up {
            exchange.held_up(at);
        }
        self.open.push(exchange);
    }

    /// The server said `event` in the session.
    fn said(&mut self, event: &StreamEvent, at: Instant) {
        if self.open.is_empty() {
            // What is said between two answers belongs to neither.
            if event.channels.is_empty() {
                return;
            }
            self.begin_answer(false, at);
        }
        let Some(session) = &mut self.session else { return };
        if let (Some(exchange), Some(decoder)) = (self.open.first_mut(), session.server()) {
            exchange.message(event, decoder, at, &self.shared);
        }
        if event.end
            && let Some(exchange) = self.open.pop_first()
        {
            self.shared.lasting.open.fetch_sub(1, Ordering::Relaxed);
            session.end(*exchange, Ending::Complete, at, &self.shared);
        }
    }

    /// The connection of the session is over.
    fn end_session(&mut self, mut session: Session, ending: Ending, at: Instant) {
        let Some(mut exchange) = self.take_oldest() else { return };
        let ending = session.ending(ending).unwrap_or_else(|| {
            exchange.fail();
            ending
        });
        session.end(*exchange, ending, at, &self.shared);
    }

    fn abandon(&mut self) {
        while let Some(exchange) = self.take_oldest() {
            exchange.abandon(&self.shared);
        }
    }
}

/// What is dropped without having been closed or detached, or with exchanges that are open, has panicked: it still leaves the gauges it
/// entered.
impl Drop for ConnectionObserver {
    fn drop(&mut self) {
        if self.http.is_some() {
            self.detach(Detach::Panic);
        }
        self.exchanges.abandon();
        self.exchanges.shared.forget();
    }
}

impl Visitor for Exchanges {
    fn request_begin(&mut self, exchange: u64, at: Instant) {
        self.shared.lasting.open.fetch_add(1, Ordering::Relaxed);
        self.open.push(Exchange::begin(self.connection, exchange, self.pair as usize, at));
    }

    fn request_head(&mut self, exchange: u64, head: &RequestHead<'_>, at: Instant) {
        let held_up = self.held_up;
        if let Some((exchange, shared)) = self.find(exchange) {
            exchange.request_head(head, shared);
            if held_up {
                exchange.held_up(at);
            }
        }
    }

    fn request_body(&mut self, exchange: u64, bytes: &[u8], _at: Instant) {
        if let Some((exchange, shared)) = self.find(exchange) {
            exchange.request_body(bytes, shared);
        }
    }

    fn request_end(&mut self, exchange: u64, at: Instant) {
        if let Some((exchange, shared)) = self.find(exchange) {
            exchange.request_end(at, shared);
        }
    }

    fn response_head(&mut self, exchange: u64, head: &ResponseHead<'_>, at: Instant) {
        if let Some((exchange, shared)) = self.find(exchange) {
            exchange.response_head(head, at, shared);
        }
        if head.status == 101 {
            let connection = self.connection;
            let session = self.find(exchange).and_then(|(exchange, _)| exchange.handshake(connection));
            self.session = session.filter(|_| head.is_websocket()).map(Box::new);
            self.response_end(exchange, at);
        }
    }

    fn response_body(&mut self, exchange: u64, bytes: &[u8], at: Instant) {
        if let Some((exchange, shared)) = self.find(exchange) {
            exchange.response_body(bytes, at, shared);
        }
    }

    fn response_trailers(&mut self, exchange: u64, trailers: &Trailers<'_>, _at: Instant) {
        if let Some((exchange, _)) = self.find(exchange) {
            exchange.response_trailers(trailers);
        }
    }

    fn response_end(&mut self, exchange: u64, at: Instant) {
        self.end(exchange, Ending::Complete, at);
    }

    fn websocket(&mut self, _exchange: u64, sender: Sender, seen: &Seen<'_>, at: Instant) {
        let Some(turn) = self.session.as_mut().and_then(|session| session.take(sender, seen)) else { return };
        match turn {
            Turn::Bytes(of, bytes) => {
                if let Some(exchange) = self.open.first_mut() {
                    exchange.message_bytes(of, bytes);
                }
            }
            Turn::Asked if self.open.is_empty() => self.begin_answer(true, at),
            // vLLM's clients commit again and again while they are being answered.
            Turn::Asked => {}
            Turn::Said(event) => self.said(&event, at),
            Turn::Unread(of, why) => {
                if let Some(exchange) = self.open.first_mut().filter(|_| of == Message::Response) {
                    exchange.messages_unread();
                }
                self.shared.sink.unread(self.pair as usize, of, why);
            }
        }
    }

    fn reset(&mut self, exchange: u64, reset: Reset, at: Instant) {
        self.end(exchange, ending(reset), at);
    }
}

/// RFC 9113, section 7.
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
