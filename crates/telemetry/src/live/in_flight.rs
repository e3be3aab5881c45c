//! The exchanges in flight, as a sink that watches them and as figures for whoever asks.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;

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

/// Knows every exchange in flight and the latest that ended.
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
    /// For listen -> upstream pairs of these names. `epoch`: a moment before everything that will be told.
    ///
    /// # Errors
    /// When the thread that keeps ended exchanges cannot be started.
    pub fn start(settings: Settings, pairs: &[String], epoch: Instant) -> std::io::Result<Arc<InFlight>> {
        let table = Arc::new(Table::new(&settings, pairs, epoch));
        let recent = Recent::start(&settings)?;
        let totals = Arc::new(Totals::default());
        let history = History::new(epoch, totals.sample());
        Ok(Arc::new(InFlight { table, recent, totals, history, settings: ArcSwap::from_pointee(settings) }))
    }

    /// Judges by these bounds, and counts stalls by this threshold, from now on. The rest needs a new start.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// A sink that lets everything pass on to `next` and watches what is opened.
    pub fn before(self: &Arc<Self>, next: Arc<dyn Sink>) -> Arc<dyn Sink> {
        Arc::new(Watching { in_flight: Arc::clone(self), next })
    }

    /// The names of the pairs.
    pub fn pairs(&self) -> impl Iterator<Item = &str> {
        self.table.pairs.iter().map(|pair| &*pair.name)
    }

    /// What the engine of each pair is found to be at `now`.
    pub fn verdicts(&self, now: Instant) -> Vec<Verdict> {
        self.judge(self.table.look(), self.table.nanos(now))
    }

    /// The figures of each pair at `now`.
    pub fn stats(&self, now: Instant) -> Vec<Stats> {
        self.add_up(|| self.table.look(), self.table.nanos(now))
    }

    /// At most `most` exchanges in flight, the oldest first.
    pub fn open(&self, now: Instant, most: usize) -> Vec<Open> {
        self.oldest(self.table.look().collect(), self.table.nanos(now), most)
    }

    /// The figures of each pair, and at most `most` exchanges, by one look: figures and list say the same.
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
        // Asked after the exchanges: one that has left meanwhile has told its pair before.
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

    /// Exchanges that were not watched because the table was full.
    pub fn untracked(&self) -> u64 {
        self.table.untracked()
    }

    /// The latest and the slowest exchanges that ended.
    pub fn kept(&self, now: Instant) -> Kept {
        self.recent.kept(now)
    }

    /// The same, for figures of it.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Keeps a sample of the sums. To be called once per second, on no thread of the data path: what is told of the last
    /// seconds is made of these.
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

/// Watches what passes.
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
