//! Requests in flight: a sink that watches them, and metrics read from them.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::export::Collect;
use crate::export::Points;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::live::history::History;
use crate::live::recent::Kept;
use crate::live::recent::Recent;
use crate::live::seat::Seat;
use crate::live::settings::Settings;
use crate::live::slot::Seen;
use crate::live::stats::Stats;
use crate::live::stats::Sums;
use crate::live::table::Open;
use crate::live::table::Table;
use crate::live::totals::Sample;
use crate::live::totals::Totals;
use crate::live::witness::State;
use crate::live::witness::Verdict;
use crate::live::witness::Witness;
use tokometer_observe::measure::Detach;
use tokometer_observe::measure::Labels;
use tokometer_observe::measure::Live;
use tokometer_observe::measure::Message;
use tokometer_observe::measure::Opening;
use tokometer_observe::measure::Phase;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_observe::measure::UncountedText;
use tokometer_observe::measure::Unread;
use tokometer_observe::measure::Watches;

/// Tracks every request in flight and keeps recently finished ones.
pub struct InFlight {
    table: Arc<Table>,
    recent: Recent,
    totals: Arc<Totals>,
    history: History,
    settings: ArcSwap<Settings>,
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("settings", &self.settings.load()).finish_non_exhaustive()
    }
}

impl InFlight {
    /// Starts tracking for listeners with these names. `epoch` must be earlier than every reported time.
    ///
    /// # Errors
    /// When the thread that keeps finished requests cannot be started.
    pub fn start(settings: Settings, pairs: &[String], epoch: Instant) -> std::io::Result<Arc<InFlight>> {
        let table = Arc::new(Table::new(&settings, pairs, epoch));
        let recent = Recent::start(&settings)?;
        let totals = Arc::new(Totals::default());
        let history = History::new(epoch, totals.sample());
        Ok(Arc::new(InFlight { table, recent, totals, history, settings: ArcSwap::from_pointee(settings) }))
    }

    /// Applies new wedge bounds and a new stall threshold. Other settings need a restart.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// A sink that watches every opened request and forwards everything to `next`.
    pub fn before(self: &Arc<Self>, next: Arc<dyn Sink>) -> Arc<dyn Sink> {
        Arc::new(Watching { in_flight: Arc::clone(self), next })
    }

    /// Names of the listeners.
    pub fn pairs(&self) -> impl Iterator<Item = &str> {
        self.table.pairs.iter().map(|pair| &*pair.name)
    }

    /// Engine state of each listener at `now`.
    pub fn verdicts(&self, now: Instant) -> Vec<Verdict> {
        self.judge(self.table.look(), self.table.nanos(now))
    }

    /// Metrics of each listener at `now`.
    pub fn stats(&self, now: Instant) -> Vec<Stats> {
        self.add_up(|| self.table.look(), self.table.nanos(now))
    }

    /// At most `most` requests in flight, oldest first.
    pub fn open(&self, now: Instant, most: usize) -> Vec<Open> {
        self.oldest(self.table.look().collect(), self.table.nanos(now), most)
    }

    /// Metrics of each listener and at most `most` requests, from a single scan, so that both are consistent.
    pub(super) fn survey(&self, now: Instant, most: usize) -> (Vec<Stats>, Vec<Open>) {
        let (all, now): (Vec<Seen>, u64) = (self.table.look().collect(), self.table.nanos(now));
        (self.add_up(|| all.iter().copied(), now), self.oldest(all, now, most))
    }

    fn judge(&self, all: impl Iterator<Item = Seen>, now: u64) -> Vec<Verdict> {
        let bounds = self.settings.load().bounds;
        let mut witnesses = vec![Witness::default(); self.table.pairs.len()];
        for seen in all {
            if let Some(witness) = witnesses.get_mut(usize::from(seen.pair)) {
                witness.take(&seen, now, &bounds);
            }
        }
        // Read after the slots: a request that has left its slot meanwhile has updated its listener before.
        let pairs = witnesses.iter().zip(&self.table.pairs);
        pairs.map(|(one, pair)| one.judge(pair.silent_since(), now, &bounds)).collect()
    }

    fn add_up<I: Iterator<Item = Seen>>(&self, look: impl Fn() -> I, now: u64) -> Vec<Stats> {
        let stall = self.settings.load().stall;
        let mut all = vec![Sums::default(); self.table.pairs.len()];
        for seen in look() {
            if let Some(sums) = all.get_mut(usize::from(seen.pair)) {
                sums.take(&seen, now, stall);
            }
        }
        let stats = |(sums, verdict): (Sums, Verdict)| Stats { phases: sums.phases, stalled: sums.stalled, verdict };
        all.into_iter().zip(self.judge(look(), now)).map(stats).collect()
    }

    fn oldest(&self, mut all: Vec<Seen>, now: u64, most: usize) -> Vec<Open> {
        all.sort_unstable_by_key(|seen| seen.started);
        all.iter().take(most).map(|seen| self.table.open(seen, now)).collect()
    }

    /// Requests that were not watched because the table was full.
    pub fn untracked(&self) -> u64 {
        self.table.untracked()
    }

    /// The latest and the slowest finished requests.
    pub fn kept(&self, now: Instant) -> Kept {
        self.recent.kept(now)
    }

    /// The store of finished requests, for its own metrics.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Stores a sample of the totals, from which rates and distributions are computed. Call once per second, never on a
    /// data path thread.
    pub fn tick(&self, now: Instant) {
        self.history.note(now, self.totals.sample());
    }

    pub(super) fn totals(&self) -> Sample {
        self.totals.sample()
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    fn watch(&self, opening: &Opening) -> Watches {
        Seat::take(&self.table, self.recent.queue(), opening).map_or_else(Watches::default, Watches::of)
    }
}

impl Collect for InFlight {
    fn collect(&self, points: &mut Points<'_>) {
        for (pair, stats) in self.stats(Instant::now()).into_iter().enumerate() {
            for (word, phase) in ["waiting_first_token", "streaming"].into_iter().zip(stats.phases) {
                let word = [(Key::Phase, word.into())];
                let number = u32::try_from(phase.exchanges).unwrap_or(u32::MAX);
                // Without requests there is no age.
                let times = [
                    (Id::InFlightMeanAge, phase.ages.checked_div(number)),
                    (Id::InFlightOldest, (number > 0).then_some(phase.oldest)),
                    (Id::InFlightWaited, (number > 0).then_some(phase.waited)),
                ];
                for (id, time) in times {
                    points.put_at(pair, id, &word, time);
                }
            }
            let verdict = stats.verdict;
            points.put_at(pair, Id::InFlightStalled, &[], stats.stalled);
            points.put_at(pair, Id::InFlightHeldUp, &[], verdict.held_up);
            points.put_at(pair, Id::EngineSilence, &[], verdict.silent);
            points.put_at(pair, Id::EngineSilenceBound, &[], verdict.rule.map(|_| verdict.bound));
            points.put_at(pair, Id::EngineWedged, &[], verdict.state == State::Wedged);
        }
        let (recent, bytes) = self.recent.held();
        points.put(Id::InFlightUntracked, &[], self.untracked());
        points.put(Id::RecentExchanges, &[], recent);
        points.put(Id::RecentMemory, &[], bytes);
        points.put(Id::RecentDropped, &[], self.recent.dropped());
    }
}

/// Sink that watches requests and forwards every call.
struct Watching {
    in_flight: Arc<InFlight>,
    next: Arc<dyn Sink>,
}

impl Sink for Watching {
    fn in_flight(&self, pair: usize, phase: Phase, delta: i64) {
        self.next.in_flight(pair, phase, delta);
    }

    fn live(&self, labels: &Labels) -> Option<Arc<dyn Live>> {
        Some(self.in_flight.totals.before(self.next.live(labels)))
    }

    fn opened(&self, opening: &Opening) -> Watches {
        self.in_flight.watch(opening).and(self.next.opened(opening))
    }

    fn record(&self, record: &Record) {
        self.in_flight.totals.ended(record);
        self.next.record(record);
    }

    fn record_with_text(&self, record: &Record, text: &mut Option<UncountedText>) {
        self.in_flight.totals.ended(record);
        self.next.record_with_text(record, text);
    }

    fn detached(&self, pair: usize, why: Detach) {
        self.next.detached(pair, why);
    }

    fn unread(&self, pair: usize, of: Message, why: Unread) {
        self.next.unread(pair, of, why);
    }
}
