//! The label sets that have series: looked up by the data path without a lock, created and removed by other threads.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::export::Settings;
use crate::export::labels::names::{Names, OTHER, millis};
use crate::export::series::handles::Handles;
use crate::export::series::live::{Gaps, LiveCounts};
use tokometer_decode::Route;
use tokometer_metrics::Value;
use tokometer_metrics::table::Key;
use tokometer_observe::measure::{Candidates, Inbox, Labels};

/// Maximum number of streams whose new labels wait to be resolved to label sets. Further streams are counted by
/// listener and route only.
const FRESH: usize = 4096;

/// Number of slots for the latest waiting streams; the hash of the labels selects the slot.
const RECENT: usize = 16;

/// The attributes of a label set, in the order of the table.
pub(crate) type Known = Vec<(Key, Value)>;

/// The series for requests with given labels, and whether the labels were folded into `other`.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) handles: Arc<Handles>,
    pub(crate) folded_model: bool,
    pub(crate) folded_set: bool,
}

/// All label sets.
#[derive(Debug)]
pub(crate) struct LabelSets {
    began: Instant,
    pub(crate) most: usize,
    pub(crate) native: bool,
    /// Label sets by the labels as received, without folded ones. The size is bounded, because clients choose the
    /// labels.
    pub(crate) by_labels: ArcSwap<HashMap<Arc<Labels>, Arc<Handles>>>,
    /// Streams that started with labels missing from `by_labels`.
    fresh: Inbox<(Labels, Arc<LiveCounts>)>,
    /// The latest entries of `fresh`, so that further streams with the same labels share their counts (1.5 KiB each).
    recent: [ArcSwapOption<(Labels, Arc<LiveCounts>)>; RECENT],
    /// True if the last label set with a proven model was folded. New label sets will then be folded too, and need no
    /// separate counts.
    pub(crate) folding: AtomicBool,
    /// Counts shared by all streams that have no separate counts, by listener and route. Created only by the data path.
    overflow: Box<[OnceLock<Arc<LiveCounts>>]>,
    table: Mutex<Table>,
}

/// State shared by the threads outside the data path.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) names: Names,
    /// Label sets by their attributes.
    pub(crate) by_known: HashMap<Known, Arc<Handles>>,
    candidates: Candidates<Known>,
    /// Counts of streams that started before their label set was resolved, and the label set.
    pub(crate) apart: Vec<(Arc<LiveCounts>, Arc<Handles>)>,
    pub(crate) spare: Gaps,
}

impl LabelSets {
    pub(crate) fn new(settings: &Settings) -> LabelSets {
        let native = settings.gathers_native();
        LabelSets {
            began: Instant::now(),
            most: settings.max_label_sets,
            native,
            by_labels: ArcSwap::default(),
            fresh: Inbox::new(FRESH),
            recent: Default::default(),
            folding: AtomicBool::new(false),
            overflow: (0..settings.listeners.len() * Route::all().len()).map(|_| OnceLock::new()).collect(),
            table: Mutex::new(Table {
                names: Names::new(settings.max_models, settings.label_idle),
                by_known: HashMap::new(),
                candidates: Candidates::new(settings.max_label_sets, settings.label_idle),
                apart: Vec::new(),
                spare: Gaps::new(native),
            }),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Locks the table. Never called by the data path.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The live counts for a stream with these labels. Called at the first token of the stream, which proves that the
    /// model exists.
    pub(crate) fn live(&self, labels: &Labels) -> Arc<LiveCounts> {
        if let Some(known) = self.by_labels.load().get(labels) {
            return known.counts.for_stream();
        }
        let make = || Arc::new(LiveCounts::new(self.native)).for_stream();
        if !self.folding.load(Ordering::Relaxed) {
            let recent = self.recent(labels);
            if let Some(known) = recent.load().as_ref().filter(|known| known.0 == *labels) {
                return Arc::clone(&known.1);
            }
            let counts = make();
            if self.fresh.push(|| (labels.clone(), Arc::clone(&counts))).is_some() {
                recent.store(Some(Arc::new((labels.clone(), Arc::clone(&counts)))));
                return counts;
            }
        }
        let place = self.overflow.get(labels.listener * Route::all().len() + labels.route as usize);
        place.map_or_else(make, |place| Arc::clone(place.get_or_init(make)))
    }

    fn recent(&self, labels: &Labels) -> &ArcSwapOption<(Labels, Arc<LiveCounts>)> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(labels);
        &self.recent[hash as usize % RECENT]
    }

    /// Takes the streams whose labels are not resolved yet. Later streams get separate counts.
    pub(crate) fn take_fresh(&self) -> impl Iterator<Item = (Labels, Arc<LiveCounts>)> + '_ {
        // Cleared first, so that no later stream shares counts that have already been taken and might never be drained.
        self.recent.iter().for_each(|recent| recent.store(None));
        self.fresh.drain()
    }

    /// The shared counts of streams without separate counts, each with its labels.
    pub(crate) fn overflowed(&self) -> impl Iterator<Item = (Labels, &Arc<LiveCounts>)> {
        let places = self.overflow.iter().zip(Route::all().cycle()).enumerate();
        places.filter_map(|(at, (place, route))| {
            let (listener, model) = (at / Route::all().len(), Some(Box::from(OTHER)));
            let labels = Labels { listener, route, streaming: Some(true), ..Labels::default() };
            Some((Labels { request_model: model.clone(), response_model: model, ..labels }, place.get()?))
        })
    }

    /// Adds the label set of these labels to the data path's map.
    pub(crate) fn remember(&self, labels: &Arc<Labels>, handles: &Arc<Handles>) {
        let known = self.by_labels.load();
        // The map needs its own limit: clients can send names that differ only in white space, which are separate keys
        // but share one label set.
        let full = known.len() >= self.most.saturating_mul(2);
        let mut next = if full { HashMap::new() } else { HashMap::clone(&known) };
        next.insert(Arc::clone(labels), Arc::clone(handles));
        self.by_labels.store(Arc::new(next));
    }

    /// Removes these label sets from the data path's map.
    pub(crate) fn forget(&self, gone: &[Arc<Handles>]) {
        let known = self.by_labels.load();
        let mut kept = HashMap::clone(&known);
        kept.retain(|_, handles| !gone.iter().any(|gone| Arc::ptr_eq(gone, handles)));
        self.by_labels.store(Arc::new(kept));
    }
}

impl Table {
    /// Adds live counts to the series of their label sets.
    pub(crate) fn drain(&mut self, now: Duration) {
        let Table { by_known, apart, spare, .. } = self;
        by_known.values().for_each(|handles| handles.drain(&handles.counts, spare, now));
        apart.retain_mut(|(counts, handles)| {
            // Checked before draining: counts that an open stream adds after the drain must be drained by the next
            // call.
            let open = Arc::get_mut(counts).is_none();
            handles.drain(counts, spare, now);
            open
        });
    }

    /// Marks label sets of open streams as used.
    pub(crate) fn touch_open(&mut self, now: Duration) {
        let open = self.by_known.values().filter(|handles| Arc::strong_count(&handles.counts) > 1);
        open.chain(self.apart.iter().map(|(_, handles)| handles)).for_each(|handles| handles.keep_open(now));
    }

    /// Removes and returns the label set that this one may replace, if any.
    pub(crate) fn make_room(&mut self, by: &Known, now: Duration) -> Option<(Known, Arc<Handles>)> {
        let table = self.by_known.iter().map(|(known, handles)| (known, handles.usage()));
        let (gone, _) = self.candidates.replace(by, table, millis(now))?;
        self.by_known.remove_entry(&gone)
    }
}
