//! The observer of one connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::measure::Detach;
use crate::measure::Ending;
use crate::observe::SAMPLE;
use crate::observe::Shared;
use crate::observe::exchange::Exchange;
use crate::relay::Close;
use crate::relay::Connection;
use crate::relay::Direction;
use crate::relay::Observer;
use crate::relay::Side;
use crate::wire::Fault;
use crate::wire::Http1;
use crate::wire::RequestHead;
use crate::wire::ResponseHead;
use crate::wire::Visitor;

/// Reads one connection until it ends or can no longer be followed.
#[derive(Debug)]
pub(super) struct ConnectionObserver {
    http: Option<Box<Http1>>,
    /// Calls since the last timed one.
    untimed: u8,
    exchanges: Exchanges,
}

/// The open exchanges of a connection, the oldest first: responses belong to the front, requests to the back.
#[derive(Debug)]
struct Exchanges {
    shared: Arc<Shared>,
    connection: u64,
    pair: usize,
    begun: u64,
    open: VecDeque<Box<Exchange>>,
    /// Requests whose answers were complete before they were (early answers): their end is only noted.
    answered_early: bool,
}

impl ConnectionObserver {
    pub(super) fn new(connection: &Connection, shared: Arc<Shared>) -> ConnectionObserver {
        ConnectionObserver {
            http: Some(Box::new(Http1::new(shared.limits()))),
            untimed: 0,
            exchanges: Exchanges {
                shared,
                connection: connection.id,
                pair: connection.pair,
                begun: 0,
                open: VecDeque::new(),
                answered_early: false,
            },
        }
    }

    /// Stops reading. What is open can no longer be told and leaves unrecorded; the reason is counted.
    fn detach(&mut self, why: Detach) {
        self.http = None;
        self.exchanges.abandon();
        self.exchanges.shared.sink.detached(self.exchanges.pair, why);
    }

    fn read(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        let Some(http) = &mut self.http else { return };
        let result = match direction {
            Direction::Request => http.request(bytes, at, &mut self.exchanges),
            Direction::Response => http.response(bytes, at, &mut self.exchanges),
        };
        self.followed(result);
    }

    fn followed(&mut self, result: Result<(), Fault>) {
        if let Err(fault) = result {
            self.detach(match fault {
                Fault::Upgraded => Detach::Upgraded,
                Fault::Http2 => Detach::Http2,
                Fault::NotHttp => Detach::NotHttp,
                Fault::MalformedRequest => Detach::MalformedRequest,
                Fault::MalformedResponse => Detach::MalformedResponse,
                Fault::HeadTooLarge => Detach::HeadTooLarge,
                Fault::UnexpectedResponse => Detach::UnexpectedResponse,
                Fault::PipelineTooDeep => Detach::PipelineTooDeep,
            });
        }
    }
}

impl Observer for ConnectionObserver {
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        self.untimed += 1;
        if self.untimed < SAMPLE {
            return self.read(direction, bytes, at);
        }
        self.untimed = 0;
        let begin = Instant::now();
        self.read(direction, bytes, at);
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_mul(u64::from(SAMPLE));
        self.exchanges.shared.lasting.busy_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn finished(&mut self, direction: Direction, at: Instant) {
        let Some(http) = &mut self.http else { return };
        if direction == Direction::Response {
            let result = http.response_finished(at, &mut self.exchanges);
            self.followed(result);
        }
    }

    fn blocked(&mut self, direction: Direction, since: Instant, until: Instant) {
        if direction == Direction::Response
            && let Some(exchange) = self.exchanges.open.front_mut()
        {
            exchange.blocked(since, until);
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
        while let Some(exchange) = self.exchanges.take_oldest() {
            exchange.end(ending, at, &self.exchanges.shared);
        }
    }

    fn idle(&self) -> bool {
        // A connection that cannot be read may be in the middle of anything.
        self.http.is_some() && self.exchanges.open.is_empty()
    }
}

impl Exchanges {
    fn take_oldest(&mut self) -> Option<Box<Exchange>> {
        let exchange = self.open.pop_front()?;
        self.shared.lasting.open.fetch_sub(1, Ordering::Relaxed);
        Some(exchange)
    }

    fn abandon(&mut self) {
        while let Some(exchange) = self.take_oldest() {
            exchange.abandon(&self.shared);
        }
    }
}

/// What is dropped without having been closed or detached has panicked: it still leaves the gauges it entered.
impl Drop for ConnectionObserver {
    fn drop(&mut self) {
        if self.http.is_some() {
            self.detach(Detach::Panic);
        }
        self.exchanges.shared.forget();
    }
}

impl Visitor for Exchanges {
    fn request_begin(&mut self, at: Instant) {
        self.shared.lasting.open.fetch_add(1, Ordering::Relaxed);
        self.open.push_back(Box::new(Exchange::begin(self.connection, self.begun, self.pair, at)));
        self.begun += 1;
        self.answered_early = false;
    }

    fn request_head(&mut self, head: &RequestHead<'_>, _at: Instant) {
        if let Some(exchange) = self.open.back_mut() {
            exchange.request_head(head, &self.shared);
        }
    }

    fn request_body(&mut self, bytes: &[u8], _at: Instant) {
        if let Some(exchange) = self.open.back_mut().filter(|_| !self.answered_early) {
            exchange.request_body(bytes, &self.shared);
        }
    }

    fn request_end(&mut self, at: Instant) {
        if let Some(exchange) = self.open.back_mut().filter(|_| !self.answered_early) {
            exchange.request_end(at);
        }
    }

    fn interim(&mut self, _status: u16, _at: Instant) {}

    fn response_head(&mut self, head: &ResponseHead<'_>, at: Instant) {
        if let Some(exchange) = self.open.front_mut() {
            exchange.response_head(head, at, &self.shared);
        }
        if head.status == 101 {
            self.response_end(at);
        }
    }

    fn response_body(&mut self, bytes: &[u8], at: Instant) {
        if let Some(exchange) = self.open.front_mut() {
            exchange.response_body(bytes, at, &self.shared);
        }
    }

    fn response_end(&mut self, at: Instant) {
        // With one exchange left, its request may still be coming: what follows of it belongs to nobody.
        self.answered_early = self.open.len() == 1;
        if let Some(exchange) = self.take_oldest() {
            exchange.end(Ending::Complete, at, &self.shared);
        }
    }
}
