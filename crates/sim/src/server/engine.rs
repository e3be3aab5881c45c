//! State shared by all requests: the queue, the counters and the random number seed.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use crate::server::fault::Fault;
use crate::server::histogram::FIRST_TOKEN;
use crate::server::histogram::Histogram;
use crate::server::histogram::REQUEST;
use crate::server::pacer::Pacer;
use crate::server::settings::Settings;
use crate::server::spans::Tracer;

/// Counters of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Generation requests received, refused ones included.
    pub requests: u64,
    /// Requests generating now.
    pub running: u64,
    /// Requests waiting in the queue now.
    pub waiting: u64,
    /// Prompt tokens of all scheduled requests.
    pub prompt_tokens: u64,
    /// Generated tokens, whether or not they reached a client.
    pub generation_tokens: u64,
    /// Requests that ended with the end-of-text token.
    pub stopped: u64,
    /// Requests that reached their `max_tokens`.
    pub exhausted: u64,
    /// Requests whose client disconnected before the end.
    pub aborted: u64,
    /// Requests that received an error status.
    pub refused: u64,
    /// Requests hit by a fault.
    pub faulted: u64,
}

/// State shared by all requests.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) pacer: Option<Pacer>,
    pub(crate) tracer: Option<Tracer>,
    slots: Semaphore,
    requests: AtomicU64,
    running: AtomicU64,
    waiting: AtomicU64,
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    stopped: AtomicU64,
    exhausted: AtomicU64,
    aborted: AtomicU64,
    refused: AtomicU64,
    faulted: AtomicU64,
    pub(crate) first_token: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) latency: Histogram,
}

impl Engine {
    pub(crate) fn new(settings: Settings, tracer: Option<Tracer>) -> Engine {
        let zero = || AtomicU64::new(0);
        Engine {
            pacer: settings.spin.then(Pacer::default),
            tracer,
            slots: Semaphore::new(settings.max_concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            settings,
            requests: zero(),
            running: zero(),
            waiting: zero(),
            prompt_tokens: zero(),
            generation_tokens: zero(),
            stopped: zero(),
            exhausted: zero(),
            aborted: zero(),
            refused: zero(),
            faulted: zero(),
            first_token: Histogram::new(FIRST_TOKEN),
            queue_time: Histogram::new(REQUEST),
            latency: Histogram::new(REQUEST),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            requests: self.requests.load(Relaxed),
            running: self.running.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            generation_tokens: self.generation_tokens.load(Relaxed),
            stopped: self.stopped.load(Relaxed),
            exhausted: self.exhausted.load(Relaxed),
            aborted: self.aborted.load(Relaxed),
            refused: self.refused.load(Relaxed),
            faulted: self.faulted.load(Relaxed),
        }
    }

    /// Sleeps with the precision that the settings ask for.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        match &self.pacer {
            Some(pacer) => pacer.sleep_until(at).await,
            None => tokio::time::sleep_until(at).await,
        }
    }

    /// Counts a request and returns its random number generator.
    pub(crate) fn begin(&self) -> fastrand::Rng {
        let number = self.requests.fetch_add(1, Relaxed);
        // An odd multiplier spreads adjacent numbers over all seeds.
        fastrand::Rng::with_seed(self.settings.seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Draws the random fault of a request.
    pub(crate) fn mishap(&self, chance: &mut fastrand::Rng) -> Option<Fault> {
        let mut draw = chance.f64();
        for (fault, probability) in &self.settings.faults {
            if draw < *probability {
                return Some(*fault);
            }
            draw -= probability;
        }
        None
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_fault(&self) {
        self.faulted.fetch_add(1, Relaxed);
    }

    /// Waits for a free slot. Dropping the future before it completes counts the request as aborted.
    pub(crate) async fn schedule(&self, prompt_tokens: u64) -> Slot<'_> {
        let arrived = Instant::now();
        let place = Place::take(self);
        // The semaphore is never closed; without a permit the request would run without a slot.
        let permit = self.slots.acquire().await.ok();
        place.leave();
        let scheduled = Instant::now();
        self.running.fetch_add(1, Relaxed);
        self.prompt_tokens.fetch_add(prompt_tokens, Relaxed);
        self.queue_time.observe(scheduled - arrived);
        Slot { engine: self, _permit: permit, arrived, scheduled, ended: false }
    }
}

/// A place in the queue.
struct Place<'a> {
    engine: &'a Engine,
    left: bool,
}

impl<'a> Place<'a> {
    fn take(engine: &'a Engine) -> Place<'a> {
        engine.waiting.fetch_add(1, Relaxed);
        Place { engine, left: false }
    }

    fn leave(mut self) {
        self.left = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.engine.waiting.fetch_sub(1, Relaxed);
        if !self.left {
            self.engine.aborted.fetch_add(1, Relaxed);
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The end-of-text token was generated.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// An injected fault ended it.
    Fault,
}

/// A running request. If it is dropped before `end`, it counts as aborted by its client.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    engine: &'a Engine,
    _permit: Option<SemaphorePermit<'a>>,
    arrived: Instant,
    scheduled: Instant,
    ended: bool,
}

impl Slot<'_> {
    pub(crate) fn scheduled(&self) -> Instant {
        self.scheduled
    }

    pub(crate) fn queue_time(&self) -> Duration {
        self.scheduled - self.arrived
    }

    pub(crate) fn first_token(&self) {
        self.engine.first_token.observe(self.arrived.elapsed());
    }

    pub(crate) fn generate(&self, tokens: u64) {
        self.engine.generation_tokens.fetch_add(tokens, Relaxed);
    }

    pub(crate) fn end(mut self, finish: Finish) {
        self.ended = true;
        match finish {
            Finish::Stop => self.engine.stopped.fetch_add(1, Relaxed),
            Finish::Length => self.engine.exhausted.fetch_add(1, Relaxed),
            Finish::Fault => return,
        };
        self.engine.latency.observe(self.arrived.elapsed());
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.engine.running.fetch_sub(1, Relaxed);
        if !self.ended {
            self.engine.aborted.fetch_add(1, Relaxed);
        }
    }
}
