//! One load-generating client: it sends one request after another.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::load::events::{Events, Found, Media};
use crate::load::recorder::{Outcome, Recorder};
use crate::load::request::Request;
use crate::load::settings::{Inspect, Settings};
use crate::load::summary::End;
use crate::load::{Run, http1, http2};

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    connection: Connection,
    run: Arc<Run>,
    recorder: Arc<Recorder>,
    events: Events,
}

/// The connection, by HTTP version.
#[derive(Debug)]
enum Connection {
    Http1(http1::Connection),
    /// Shared with other clients.
    Http2(Arc<http2::Connection>),
}

/// An open request. It is recorded however it ends, including at the end of the run.
struct Open<'a> {
    recorder: &'a Recorder,
    outcome: Outcome,
    timed: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.recorder.end(self.outcome, self.timed);
    }
}

/// The response to one request, as it arrives.
pub(crate) struct Measured<'a> {
    events: &'a mut Events,
    outcome: &'a mut Outcome,
    settings: &'a Settings,
    recorder: &'a Recorder,
    aborts_after: Option<u64>,
    media: Media,
}

impl Measured<'_> {
    /// Marks the request as sent.
    pub(crate) fn asked(&mut self) {
        self.outcome.sent = Some(Instant::now());
    }

    /// Records the response headers.
    pub(crate) fn head(&mut self, status: u16, content_type: &[u8]) {
        (self.outcome.status, self.outcome.headers) = (Some(status), Some(Instant::now()));
        self.media = Media::of(content_type);
        self.events.restart(self.media);
    }

    /// Processes body bytes.
    pub(crate) fn body(&mut self, bytes: &[u8], found: &mut Found) {
        if self.settings.inspect == Inspect::Events {
            self.events.take(bytes, found);
        }
    }

    /// Records one read: its number of bytes and the events found in it.
    pub(crate) fn read(&mut self, bytes: usize, found: Found, now: Instant) {
        let warm = self.recorder.is_warm(self.settings.warm_up);
        let mut gap = None;
        if found.token_events > 0 {
            self.outcome.first.get_or_insert(now);
            gap = self.outcome.last.map(|last| now - last).filter(|_| warm);
            self.outcome.last = Some(now);
            self.outcome.token_events += found.token_events;
        }
        let transit = self.settings.stamp.zip(found.stamp).filter(|_| warm);
        let transit = transit.map(|(epoch, stamp)| (now - epoch).saturating_sub(Duration::from_nanos(stamp)));
        self.recorder.read(bytes, found.token_events, gap, transit);
    }

    /// Whether the client aborts the request at this point.
    pub(crate) fn is_given_up(&self) -> bool {
        self.aborts_after.is_some_and(|events| self.outcome.token_events >= events)
    }

    /// Returns how the request ended. Call it when the body is complete.
    pub(crate) fn end(&mut self) -> End {
        let reported = self.events.end();
        self.outcome.usage = reported.usage;
        let unread = self.settings.inspect == Inspect::Bytes || self.media == Media::Whole;
        match self.outcome.status {
            Some(200..=299) if reported.error => End::ErrorEvent,
            Some(200..=299) if unread => End::Complete,
            Some(200..=299) if self.outcome.token_events == 0 && reported.usage.unwrap_or(0) == 0 => End::NoTokens,
            Some(200..=299) if !reported.done => End::NoDone,
            Some(200..=299) => End::Complete,
            _ => End::ErrorStatus,
        }
    }
}

impl Client {
    /// Creates a client with its own connection, or with a shared one (HTTP/2).
    pub(crate) fn new(
        address: SocketAddr,
        request: &Request,
        shared: Option<Arc<http2::Connection>>,
        run: Arc<Run>,
        recorder: Arc<Recorder>,
    ) -> Client {
        let connection = match shared {
            Some(shared) => Connection::Http2(shared),
            None => Connection::Http1(http1::Connection::new(address, request, &run.settings)),
        };
        let events = Events::new(request.api, run.settings.stamp.is_some());
        Client { connection, run, recorder, events }
    }

    /// Sends requests until the run has none left.
    pub(crate) async fn work(mut self) {
        let (run, recorder) = (Arc::clone(&self.run), Arc::clone(&self.recorder));
        let settings = &run.settings;
        while let Some(number) = run.next() {
            recorder.begin();
            let outcome = Outcome::default();
            let mut open = Open { recorder: &recorder, outcome, timed: recorder.is_warm(settings.warm_up) };
            let mut measured = Measured {
                events: &mut self.events,
                outcome: &mut open.outcome,
                settings,
                recorder: &recorder,
                aborts_after: abort_after(settings, number),
                media: Media::default(),
            };
            let round_trip = async {
                match &mut self.connection {
                    Connection::Http1(connection) => connection.round_trip(&mut measured).await,
                    Connection::Http2(connection) => connection.round_trip(&mut measured).await,
                }
            };
            let end = match settings.timeout {
                Some(limit) => tokio::time::timeout(limit, round_trip).await.unwrap_or(Ok(End::Timeout)),
                None => round_trip.await,
            };
            open.outcome.end = end.unwrap_or_else(|error| match error.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => End::Reset,
                _ => End::Truncated,
            });
            if let Connection::Http1(connection) = &mut self.connection
                && (open.outcome.end != End::Complete || !settings.keep_alive)
            {
                connection.close();
            }
            if open.outcome.end == End::Refused {
                // Wait before the next request to a server that is down.
                drop(open);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Number of token events after which request `number` is aborted, if it is to be.
fn abort_after(settings: &Settings, number: u64) -> Option<u64> {
    let mut chance = fastrand::Rng::with_seed(settings.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (chance.f64() < settings.abort).then(|| chance.u64(1..=(settings.max_tokens / 2).max(1)))
}
