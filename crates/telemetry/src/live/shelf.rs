//! Store of finished requests: the latest and the slowest, in bounded memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::live::recent::Finished;
use crate::live::recent::Kept;
use crate::live::settings::Settings;

/// Duration by which a request counts as slow.
type Measure = fn(&Finished) -> Option<Duration>;

/// Interval between expiry scans. A scan reads every kept request, so it does not run for each request.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// The slowest by one measure, slowest first.
#[derive(Debug)]
struct Slowest {
    measure: Measure,
    most: usize,
    age: Duration,
    all: Vec<Arc<Finished>>,
    bytes: usize,
    /// Time of the last expiry scan.
    looked: Option<Instant>,
}

impl Slowest {
    fn new(settings: &Settings, measure: Measure) -> Slowest {
        let all = Vec::with_capacity(settings.slowest.min(64) + 1);
        Slowest { measure, most: settings.slowest, age: settings.slowest_age, all, bytes: 0, looked: None }
    }

    /// Keeps the request if it is slow enough, and drops expired ones.
    fn add(&mut self, finished: &Arc<Finished>, now: Instant) {
        if self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= BETWEEN_LOOKS) {
            self.looked = Some(now);
            self.all.retain(|kept| now.saturating_duration_since(kept.ended()) <= self.age);
            self.bytes = self.all.iter().map(|finished| finished.bytes()).sum();
        }
        let Some(slow) = (self.measure)(finished) else { return };
        let place = self.all.partition_point(|kept| (self.measure)(kept) >= Some(slow));
        if place < self.most {
            self.all.insert(place, Arc::clone(finished));
            self.bytes += finished.bytes();
            if self.all.len() > self.most {
                self.take_fastest();
            }
        }
    }

    fn take_fastest(&mut self) -> bool {
        let gone = self.all.pop();
        self.bytes -= gone.as_ref().map_or(0, |gone| gone.bytes());
        gone.is_some()
    }
}

/// The store.
#[derive(Debug)]
pub(super) struct Shelf {
    latest: VecDeque<Arc<Finished>>,
    latest_bytes: usize,
    slowest: [Slowest; 2],
    most_bytes: usize,
}

impl Shelf {
    pub(super) fn new(settings: &Settings) -> Shelf {
        Shelf {
            latest: VecDeque::new(),
            latest_bytes: 0,
            slowest: [
                Slowest::new(settings, Finished::time_to_first_token),
                Slowest::new(settings, |finished| finished.record.longest_gap),
            ],
            most_bytes: settings.recent_bytes,
        }
    }

    pub(super) fn add(&mut self, finished: Arc<Finished>, now: Instant) {
        self.slowest.iter_mut().for_each(|slowest| slowest.add(&finished, now));
        self.latest_bytes += finished.bytes();
        self.latest.push_back(finished);
        while self.bytes() > self.most_bytes {
            match self.latest.pop_front() {
                Some(gone) => self.latest_bytes -= gone.bytes(),
                // The slow requests are evicted last, fastest first.
                None if self.slowest.iter_mut().any(Slowest::take_fastest) => {}
                None => break,
            }
        }
    }

    /// A request that is both among the latest and the slowest counts for each.
    fn bytes(&self) -> usize {
        self.latest_bytes + self.slowest.iter().map(|slowest| slowest.bytes).sum::<usize>()
    }

    /// Number of latest requests, and bytes used by all.
    pub(super) fn held(&self) -> (u64, u64) {
        (self.latest.len() as u64, self.bytes() as u64)
    }

    /// The requests kept at `now`.
    pub(super) fn kept(&self, now: Instant) -> Kept {
        let slowest = |slowest: &Slowest| {
            let young = |kept: &&Arc<Finished>| now.saturating_duration_since(kept.ended()) <= slowest.age;
            slowest.all.iter().filter(young).cloned().collect()
        };
        let [first_token, gap] = &self.slowest;
        Kept {
            latest: self.latest.iter().cloned().collect(),
            slowest_first_token: slowest(first_token),
            longest_gap: slowest(gap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::record;
    use tokometer_observe::measure::Record;

    fn settings(recent_bytes: usize, slowest: usize) -> Settings {
        Settings { recent_bytes, slowest, slowest_age: Duration::from_secs(100), ..Settings::default() }
    }

    /// A request that began `at` seconds after `began`; `first` and `gap` in milliseconds.
    fn finished(began: Instant, at: u64, first: u64, gap: u64) -> Arc<Finished> {
        let record = Record {
            first_token: Some(Duration::from_millis(first)),
            longest_gap: Some(Duration::from_millis(gap)),
            ..record(began + Duration::from_secs(at))
        };
        Arc::new(Finished::new(&record, Some(Box::default())))
    }

    fn firsts(all: &[Arc<Finished>]) -> Vec<u64> {
        all.iter().filter_map(|kept| Some(kept.record.first_token?.as_millis() as u64)).collect()
    }

    #[test]
    fn oldest_are_evicted_first_and_slowest_stay_by_each_measure() {
        let began = Instant::now();
        let one = finished(began, 0, 1, 1).bytes();
        println!("{one} bytes each");
        // Room for two of the slowest by each measure, and for three of the latest.
        let mut shelf = Shelf::new(&settings(one * 7, 2));
        for (at, (first, gap)) in
            [(900, 1), (100, 800), (500, 2), (200, 700), (300, 3), (400, 4)].into_iter().enumerate()
        {
            let finished = finished(began, at as u64, first, gap);
            let now = finished.ended();
            shelf.add(finished, now);
            assert!(shelf.bytes() <= one * 7, "{}", shelf.bytes());
        }
        let kept = shelf.kept(began + Duration::from_secs(6));
        assert_eq!(firsts(&kept.latest), [200, 300, 400]);
        assert_eq!(firsts(&kept.slowest_first_token), [900, 500]);
        assert_eq!(firsts(&kept.longest_gap), [100, 200]);
    }

    #[test]
    fn slowest_requests_expire() {
        let began = Instant::now();
        let mut shelf = Shelf::new(&settings(1 << 20, 4));
        for (at, first) in [(0, 900), (90, 100)] {
            let finished = finished(began, at, first, 1);
            let now = finished.ended();
            shelf.add(finished, now);
        }
        let slowest = |shelf: &Shelf, at| firsts(&shelf.kept(began + Duration::from_secs(at)).slowest_first_token);
        assert_eq!(slowest(&shelf, 99), [900, 100]);
        assert_eq!(slowest(&shelf, 150), [100], "expires without newer requests");
        let newest = finished(began, 300, 50, 1);
        let now = newest.ended();
        shelf.add(newest, now);
        assert_eq!(slowest(&shelf, 301), [50]);
    }

    #[test]
    fn memory_never_exceeds_the_limit() {
        let began = Instant::now();
        for most in [1, 1000, 5000, 20_000] {
            let mut shelf = Shelf::new(&settings(most, 3));
            for at in 0..100 {
                let finished = finished(began, at, (at * 37) % 101, (at * 53) % 97);
                let now = finished.ended();
                shelf.add(finished, now);
                let held: usize = shelf.latest.iter().map(|kept| kept.bytes()).sum::<usize>()
                    + shelf.slowest.iter().flat_map(|slowest| &slowest.all).map(|kept| kept.bytes()).sum::<usize>();
                assert!(shelf.bytes() == held && held <= most, "{held} {}", shelf.bytes());
            }
        }
    }
}
