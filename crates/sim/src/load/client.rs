//! One load-generating client: it sends one request after another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};

use crate::load::Run;
use crate::load::connection::{Connection, end_of};
use crate::load::events::{Events, Media};
use crate::load::recorder::{Outcome, Recorder};
use crate::load::settings::Settings;
use crate::load::summary::End;

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) run: Arc<Run>,
    /// Shared with other clients over HTTP/2.
    pub(crate) connection: Arc<Connection>,
    pub(crate) request: Request<Full<Bytes>>,
    pub(crate) events: Events,
}

/// Measurements of an open request. They are recorded on drop, even if the run ends before the request.
struct Measured<'a> {
    recorder: &'a Recorder,
    settings: &'a Settings,
    outcome: Outcome,
    /// The request began after the warm-up.
    timed: bool,
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        self.recorder.end(self.outcome, self.timed);
    }
}

impl Client {
    /// Sends requests until the requests or the duration of the run are used up.
    pub(crate) async fn work(mut self) {
        let run = Arc::clone(&self.run);
        let (settings, recorder) = (&run.settings, &run.recorder);
        while let Some(number) = run.next() {
            recorder.begin();
            let timed = recorder.is_warm(settings.warm_up);
            let mut measured = Measured { recorder, settings, outcome: Outcome::default(), timed };
            let round_trip = self.round_trip(&mut measured, abort_after(settings, number));
            let end = match settings.timeout {
                Some(limit) => tokio::time::timeout(limit, round_trip).await.unwrap_or(Err(End::Timeout)),
                None => round_trip.await,
            };
            let (Ok(end) | Err(end)) = end;
            measured.outcome.end = end;
            if end == End::Refused {
                // Wait before the next request to a server that is down.
                drop(measured);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Sends a request and reads the response until it ends, or until the client aborts it after `aborts_after` events.
    ///
    /// A server may close a reused connection at any time, and llama.cpp does so after each stream. If a reused
    /// connection closes before the response begins, the request is retried on a new connection (RFC 9112, 9.3.1).
    async fn round_trip(&mut self, measured: &mut Measured<'_>, aborts_after: Option<u64>) -> Result<End, End> {
        let (mut sender, reused) = self.connection.sender().await?;
        measured.outcome.sent = Some(Instant::now());
        let mut response = sender.send(self.request.clone()).await;
        if reused && response.as_ref().is_err_and(|error| !error.is_parse()) {
            (sender, _) = self.connection.sender().await?;
            measured.outcome.sent = Some(Instant::now());
            response = sender.send(self.request.clone()).await;
        }
        let (head, mut body) = response.map_err(|error| end_of(&error))?.into_parts();
        let status = head.status.as_u16();
        (measured.outcome.status, measured.outcome.headers) = (Some(status), Some(Instant::now()));
        let media = Media::of(&head.headers);
        self.events.restart(media);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| end_of(&error))?;
            let Some(bytes) = frame.data_ref() else { continue };
            measured.read(&mut self.events, bytes);
            if aborts_after.is_some_and(|events| measured.outcome.token_events >= events) {
                return Err(End::Aborted);
            }
        }
        let received = self.events.end();
        measured.outcome.usage = received.usage;
        let end = match () {
            () if !head.status.is_success() => End::ErrorStatus,
            () if received.error => End::ErrorEvent,
            () if media == Media::Whole => End::Complete,
            () if measured.outcome.token_events == 0 && received.usage.unwrap_or(0) == 0 => End::NoTokens,
            () if !received.done => End::NoDone,
            () => End::Complete,
        };
        if end == End::Complete && self.run.settings.keep_alive {
            self.connection.keep(sender).await;
        }
        Ok(end)
    }
}

impl Measured<'_> {
    /// Measures the next bytes of the body.
    fn read(&mut self, events: &mut Events, bytes: &[u8]) {
        let (now, warm) = (Instant::now(), self.recorder.is_warm(self.settings.warm_up));
        let found = events.take(bytes);
        let mut gap = None;
        if found.token_events > 0 {
            self.outcome.first.get_or_insert(now);
            gap = self.outcome.last.map(|last| now - last).filter(|_| warm);
            self.outcome.last = Some(now);
            self.outcome.token_events += found.token_events;
        }
        let transit = self.settings.stamp.zip(found.stamp).filter(|_| warm);
        let transit = transit.map(|(epoch, stamp)| (now - epoch).saturating_sub(Duration::from_nanos(stamp)));
        self.recorder.read(bytes.len(), found.token_events, gap, transit);
    }
}

/// Number of token events after which request `number` is aborted; `None` if it is not aborted.
fn abort_after(settings: &Settings, number: u64) -> Option<u64> {
    let mut chance = fastrand::Rng::with_seed(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (chance.f64() < settings.abort).then(|| chance.u64(1..=(settings.max_tokens / 2).max(1)))
}
