//! Lock-free table of the requests in flight; its memory grows with the peak number of requests.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::time::Instant;

use crate::live::free::Free;
use crate::live::model_name;
use crate::live::pairs::Pair;
use crate::live::settings::Settings;
use crate::live::slot::CONVERSES;
use crate::live::slot::Doing;
use crate::live::slot::NEVER;
use crate::live::slot::Seen;
use crate::live::slot::Slot;
use tokometer_decode::Route;

/// Slots allocated at a time.
const CHUNK: usize = 256;

/// A request in flight at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// Index of the listener.
    pub pair: usize,
    /// Route name as in the configuration.
    pub route: &'static str,
    /// `model` of the request.
    pub model: Option<Box<str>>,
    /// Connection number in this process.
    pub connection: u64,
    /// Request number on its connection, from 0.
    pub sequence: u64,
    /// State: `requesting`, `prefill`, `decode`, `whole` (non-streamed response), `held_up` (blocked on the client),
    /// `ending` (refused, or the end marker has arrived), `session` (a conversation in which the engine may be silent).
    pub doing: &'static str,
    /// Time since the first byte of the request.
    pub age: Duration,
    /// Time waited for the next token; `None` when none is expected.
    pub waited: Option<Duration>,
    /// From the last byte of the request to the first token.
    pub first_token: Option<Duration>,
    /// Time since the first token.
    pub decoding: Option<Duration>,
    /// Tokens so far, a lower bound.
    pub tokens: u64,
    /// `max_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// Size of the request body in bytes.
    pub request_bytes: u64,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    epoch: Instant,
    chunks: Vec<OnceLock<Box<[Slot]>>>,
    free: Free,
    pub(super) pairs: Vec<Pair>,
    /// Requests that found no free slot.
    untracked: AtomicU64,
}

impl Table {
    pub(super) fn new(settings: &Settings, pairs: &[String], epoch: Instant) -> Table {
        let most = settings.max_in_flight.max(1);
        Table {
            epoch,
            chunks: (0..most.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            free: Free::new(u32::try_from(most).unwrap_or(u32::MAX)),
            pairs: pairs.iter().map(|name| Pair::new(name)).collect(),
            untracked: AtomicU64::new(0),
        }
    }

    /// Nanoseconds since the table was created.
    pub(super) fn nanos(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.epoch))
    }

    /// Takes a free slot; `None` when all are in use, which is counted.
    pub(super) fn take(&self) -> Option<u32> {
        let place = self.free.take(|place| Some(&self.slot(place)?.link));
        match place {
            Some(place) => {
                let chunk = self.chunks.get(place as usize / CHUNK)?;
                chunk.get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
            }
            None => drop(self.untracked.fetch_add(1, Relaxed)),
        }
        place
    }

    /// Returns a slot.
    pub(super) fn give_back(&self, place: u32) {
        if let Some(slot) = self.slot(place) {
            self.free.give_back(place, &slot.link);
        }
    }

    /// A slot that was taken before.
    pub(super) fn slot(&self, place: u32) -> Option<&Slot> {
        self.chunks.get(place as usize / CHUNK)?.get()?.get(place as usize % CHUNK)
    }

    /// Every request in flight.
    pub(super) fn look(&self) -> impl Iterator<Item = Seen> + '_ {
        (0..self.free.used()).filter_map(|place| self.slot(place)?.look())
    }

    /// Requests that found no free slot.
    pub(super) fn untracked(&self) -> u64 {
        self.untracked.load(Relaxed)
    }

    /// Converts a slot's values at `now`.
    pub(super) fn open(&self, seen: &Seen, now: u64) -> Open {
        let since = |then: u64| Duration::from_nanos(now.saturating_sub(then));
        let known = |number: u64| Some(number).filter(|number| *number != NEVER);
        let (doing, waits) = match seen.doing() {
            Doing::Nothing if seen.has(CONVERSES) => ("session", false),
            Doing::Nothing if seen.requested == NEVER => ("requesting", false),
            Doing::Nothing => ("ending", false),
            Doing::HeldUp => ("held_up", false),
            Doing::Prefilling => ("prefill", true),
            Doing::Decoding => ("decode", true),
            Doing::Whole => ("whole", true),
        };
        let first = known(seen.first_token).zip(known(seen.requested));
        Open {
            pair: usize::from(seen.pair),
            route: Route::names().nth(usize::from(seen.route)).unwrap_or("other"),
            model: model_name::text(&seen.model),
            connection: seen.connection,
            sequence: seen.sequence,
            doing,
            age: since(seen.started),
            waited: waits.then(|| since(seen.waits_since())),
            first_token: first.map(|(token, requested)| Duration::from_nanos(token.saturating_sub(requested))),
            decoding: known(seen.first_token).map(since),
            tokens: seen.tokens,
            max_tokens: known(seen.max_tokens),
            request_bytes: seen.request_bytes,
        }
    }
}

/// Saturates just below [`NEVER`], at 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER - 1)
}
