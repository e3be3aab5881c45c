//! Which names keep a place in a full table: those with the most traffic.
//!
//! Clients or servers choose the names, and each name costs series. A new name replaces the name with the least traffic
//! if it has several requests and at least twice that traffic, or if that name is idle. Each replacement by traffic
//! doubles the traffic that the next one needs, so that names used a few times cannot take each other's place for ever.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Idle time after which a name in a full table may be replaced by any other. Also the time after which a request
/// counts half in the traffic of a name.
pub const LABEL_IDLE: Duration = Duration::from_secs(600);

/// Minimum traffic of a name that replaces another: 16 requests within a few seconds.
const SEVERAL: f32 = 15.5;

/// Minimum traffic of a name with an open request.
const OPEN: f32 = 16.0;

/// Use of one name: the number of requests, where a request counts half after [`LABEL_IDLE`]. Times are in milliseconds
/// since any fixed time.
#[derive(Debug, Default)]
pub struct Usage {
    used: AtomicU64,
    /// The traffic at the time `used`, as the bits of an `f32`.
    traffic: AtomicU64,
}

impl Usage {
    /// A name that is not used yet.
    pub fn unused(now: u64) -> Usage {
        Usage::with(0.0, now)
    }

    /// A name that is used for the first time.
    pub fn first(now: u64) -> Usage {
        Usage::with(1.0, now)
    }

    fn with(traffic: f32, now: u64) -> Usage {
        Usage { used: AtomicU64::new(now), traffic: AtomicU64::new(traffic.to_bits().into()) }
    }

    /// Counts a request. A lost update by another thread is harmless.
    pub fn touch(&self, now: u64) {
        self.set(self.traffic(now) + 1.0, now);
    }

    /// Removes one request; false if none is left.
    fn lower(&self, now: u64) -> bool {
        let left = self.traffic(now) - 1.0;
        self.set(left, now);
        left > 0.0
    }

    /// Marks the name as used, without a request.
    pub fn keep(&self, now: u64) {
        self.set(self.traffic(now), now);
    }

    /// Marks the name as used by an open request.
    pub fn keep_open(&self, now: u64) {
        self.set(self.traffic(now).max(OPEN), now);
    }

    fn set(&self, traffic: f32, now: u64) {
        self.traffic.store(traffic.to_bits().into(), Relaxed);
        self.used.fetch_max(now, Relaxed);
    }

    /// The traffic at this time.
    pub fn traffic(&self, now: u64) -> f32 {
        let idle = self.unused_for(now) as f32 / LABEL_IDLE.as_millis() as f32;
        f32::from_bits(self.traffic.load(Relaxed) as u32) * (-idle).exp2()
    }

    /// Milliseconds since the last use.
    fn unused_for(&self, now: u64) -> u64 {
        now.saturating_sub(self.used.load(Relaxed))
    }
}

/// The names that wait for a place in a full table.
#[derive(Debug)]
pub struct Candidates<K> {
    most: usize,
    idle: Duration,
    waiting: HashMap<K, Usage>,
}

impl<K: Clone + Hash + Ord> Candidates<K> {
    /// The candidates for a table of at most `most` names. A name may be replaced by any other once it is unused for
    /// `idle`.
    pub fn new(most: usize, idle: Duration) -> Candidates<K> {
        Candidates { most, idle, waiting: HashMap::new() }
    }

    /// Counts a request of a name that is not in the full table. If the name may replace one of the table, returns that
    /// one and the usage of the new name.
    pub fn replace<'a>(
        &mut self,
        name: &K,
        table: impl Iterator<Item = (&'a K, &'a Usage)>,
        now: u64,
    ) -> Option<(K, Usage)>
    where
        K: 'a,
    {
        let least = table.min_by(|(a, one), (b, other)| {
            self.rank(one, now).total_cmp(&self.rank(other, now)).then_with(|| a.cmp(b))
        });
        let (gone, least) = least?;
        let traffic = self.count(name, now);
        let wins = traffic >= SEVERAL && traffic >= 2.0 * least.traffic(now);
        let replaces = wins || self.is_idle(least, now);
        replaces.then(|| (gone.clone(), self.waiting.remove(name).unwrap_or_else(|| Usage::first(now))))
    }

    fn is_idle(&self, usage: &Usage, now: u64) -> bool {
        u128::from(usage.unused_for(now)) >= self.idle.as_millis()
    }

    /// The order in which names are replaced: first the one that is idle for the longest time, then by traffic.
    fn rank(&self, usage: &Usage, now: u64) -> f32 {
        if self.is_idle(usage, now) { -(usage.unused_for(now) as f32) } else { usage.traffic(now) }
    }

    /// The traffic of a waiting name, including this request.
    fn count(&mut self, name: &K, now: u64) -> f32 {
        if let Some(known) = self.waiting.get(name) {
            known.touch(now);
            return known.traffic(now);
        }
        // Keeps every name whose share of the requests is above one in `most` (Misra and Gries, 1982).
        if self.waiting.len() >= self.most.max(1) {
            self.waiting.retain(|_, usage| usage.lower(now));
            return 1.0;
        }
        self.waiting.insert(name.clone(), Usage::first(now));
        1.0
    }
}

/// A table of at most a fixed number of names.
#[derive(Debug)]
pub struct Slots<K> {
    most: usize,
    used: HashMap<K, Usage>,
    candidates: Candidates<K>,
}

/// Result of looking up or adding a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Placed<K> {
    /// The name was already in the table.
    Known,
    /// The name was added.
    Added {
        /// The name that was removed to make room.
        replaces: Option<K>,
    },
    /// The name is new and was not added.
    Refused,
}

impl<K: Clone + Hash + Ord> Slots<K> {
    /// An empty table.
    pub fn new(most: usize) -> Slots<K> {
        Slots { most, used: HashMap::new(), candidates: Candidates::new(most, LABEL_IDLE) }
    }

    /// Changes the maximum number of names. Names in the table are kept.
    pub fn limit(&mut self, most: usize) {
        self.candidates.most = most;
        self.most = most;
    }

    /// Adds a name that is never removed.
    pub fn fix(&mut self, name: K) {
        self.used.insert(name, Usage::with(f32::INFINITY, u64::MAX));
    }

    /// Looks up a name for a request at `now`, or adds it if `admitted`.
    pub fn place(&mut self, name: &K, admitted: bool, now: u64) -> Placed<K> {
        if let Some(usage) = self.used.get(name) {
            usage.touch(now);
            return Placed::Known;
        }
        if !admitted {
            return Placed::Refused;
        }
        let (mut replaces, mut own) = (None, Usage::first(now));
        if self.used.len() >= self.most {
            let Some((gone, usage)) = self.candidates.replace(name, self.used.iter(), now) else {
                return Placed::Refused;
            };
            self.used.remove(&gone);
            (replaces, own) = (Some(gone), usage);
        }
        self.used.insert(name.clone(), own);
        Placed::Added { replaces }
    }

    /// Removes the names for which `is_gone` is true.
    pub fn remove(&mut self, is_gone: impl Fn(&K) -> bool) {
        self.used.retain(|name, _| !is_gone(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place for a name, at this many seconds.
    fn place(slots: &mut Slots<String>, name: &str, seconds: u64) -> bool {
        slots.place(&name.to_owned(), true, seconds * 1000) != Placed::Refused
    }

    fn full(most: usize) -> Slots<String> {
        let mut slots = Slots::new(most);
        (0..most).for_each(|at| assert!(place(&mut slots, &format!("junk-{at}"), 0)));
        slots
    }

    #[test]
    fn name_with_traffic_gets_a_place_in_a_table_full_of_junk_and_keeps_it() {
        for uses in [1, 3, 20] {
            let mut slots = full(64);
            for round in 1..uses {
                (0..64).for_each(|at| assert!(place(&mut slots, &format!("junk-{at}"), round)));
            }
            let refused = (0..100).filter(|at| !place(&mut slots, "real", 30 + at)).count();
            assert!(refused < (2 * uses as usize).max(16), "{refused} of 100, after {uses} uses");
            (0..1000).for_each(|at| _ = place(&mut slots, &format!("more-{at}"), 130));
            assert_eq!(slots.place(&"real".to_owned(), false, 131_000), Placed::Known);
            assert_eq!(slots.used.len(), 64);
        }
    }

    #[test]
    fn names_with_equally_little_traffic_do_not_replace_each_other() {
        let mut slots = full(64);
        // 500 requests per second for almost 10 minutes, by names that are used 15, 30 or 100 times each.
        for (uses, most) in [(15, 0), (30, 64), (100, 192)] {
            let mut added = 0;
            for at in 0..290_000_u64 {
                let placed = slots.place(&format!("junk-{uses}-{}", at / uses), true, 1000 + at * 2);
                added += usize::from(matches!(placed, Placed::Added { .. }));
                assert!(slots.used.len() <= 64 && slots.candidates.waiting.len() <= 64);
            }
            assert!(added <= most, "{added} in ten minutes, each used {uses} times");
            slots = full(64);
        }
    }

    #[test]
    fn idle_name_is_replaced_before_one_with_less_traffic() {
        let mut slots = Slots::new(2);
        (0..10).for_each(|_| assert!(place(&mut slots, "idle", 0)));
        assert!(place(&mut slots, "rare", 500));
        assert_eq!(slots.place(&"new".to_owned(), true, 650_000), Placed::Added { replaces: Some("idle".to_owned()) });
    }

    #[test]
    fn name_without_proof_takes_no_place_and_a_fixed_name_is_kept() {
        let mut slots = Slots::new(2);
        slots.fix("fixed".to_owned());
        assert_eq!(slots.place(&"made-up".to_owned(), false, 0), Placed::Refused);
        assert!(place(&mut slots, "a", 0));
        assert_eq!(slots.place(&"b".to_owned(), true, 700_000), Placed::Added { replaces: Some("a".to_owned()) });
        assert_eq!(slots.place(&"fixed".to_owned(), false, 800_000), Placed::Known);
        assert_eq!(slots.place(&"fixed".to_owned(), false, 0), Placed::Known);
    }

    #[test]
    fn regular_name_is_not_replaced_by_a_name_that_is_used_once() {
        let mut slots = Slots::new(1);
        (0..10).for_each(|at| assert!(place(&mut slots, "rare", at * 300)));
        assert!(!place(&mut slots, "junk", 2_990));
        assert!(place(&mut slots, "rare", 3_000));
        assert!(place(&mut slots, "other", 3_000 + LABEL_IDLE.as_secs()), "idle");
    }
}
