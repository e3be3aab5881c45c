//! A sink that records its calls and checks their invariants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokometer_observe::measure::{Detach, Gap, Labels, Live, Message, Outcome, Phase, Record, Sink, Unread};

/// The calls of a sink.
#[derive(Debug, Default)]
pub struct Log(Arc<Mutex<Reported>>);

#[derive(Debug, Default)]
struct Reported {
    lines: Vec<String>,
    in_flight: HashMap<(usize, Phase), i64>,
    /// The last recorded connection, and the sequence numbers of its requests.
    recorded: (u64, Vec<u64>),
    /// Connection and sequence number of the newest request that was observed.
    newest: Option<(u64, u64)>,
    /// Requests may be concurrent (HTTP/2): it is then unknown which one a handle belongs to.
    shared: bool,
    live: Totals,
}

/// The calls to the current request's live handle. In HTTP/1, only the oldest request of a connection has a handle.
#[derive(Debug, Default)]
struct Totals {
    handed_out: bool,
    tokens: u64,
    reconciled: Option<u64>,
}

struct Handle(Arc<Mutex<Reported>>);

impl Log {
    /// `shared`: some of the connections may use HTTP/2.
    pub fn new(shared: bool) -> Log {
        Log(Arc::new(Mutex::new(Reported { shared, ..Reported::default() })))
    }

    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().expect("one thread")
    }

    /// All calls in order; no request may be in flight.
    pub fn lines(&self) -> Vec<String> {
        let reported = self.reported();
        assert!(reported.in_flight.values().all(|count| *count == 0), "still in flight: {:?}", reported.in_flight);
        reported.lines.clone()
    }
}

impl Sink for Log {
    fn in_flight(&self, listener: usize, phase: Phase, delta: i64) {
        let mut reported = self.reported();
        let count = reported.in_flight.entry((listener, phase)).or_default();
        *count += delta;
        assert!(*count >= 0, "more requests left {phase:?} than entered");
        reported.lines.push(format!("{phase:?} {delta}"));
    }

    fn live(&self, labels: &Labels) -> Option<Arc<dyn Live>> {
        let mut reported = self.reported();
        assert!(reported.shared || !reported.live.handed_out, "two handles for one request");
        reported.live.handed_out = true;
        reported.lines.push(format!("live {labels:?}"));
        Some(Arc::new(Handle(Arc::clone(&self.0))))
    }

    fn record(&self, record: &Arc<Record>) {
        let mut reported = self.reported();
        // A request above the limit of open requests is recorded immediately, while older requests are in flight.
        let is_unobserved =
            record.outcome == Outcome::Unobserved && record.tokens.chunks == 0 && record.tokens.output.is_none();
        let live = if is_unobserved { Totals::default() } else { std::mem::take(&mut reported.live) };
        if reported.recorded.0 != record.connection {
            reported.recorded = (record.connection, Vec::new());
        }
        assert!(!reported.recorded.1.contains(&record.sequence), "requests are recorded once");
        if !reported.shared {
            assert!(
                is_unobserved
                    || reported.newest.is_none_or(|newest| newest.0 != record.connection || newest.1 < record.sequence),
                "and in order"
            );
            reconciled(record, &live);
        }
        if !is_unobserved {
            reported.newest = Some((record.connection, record.sequence));
        }
        reported.recorded.1.push(record.sequence);
        consistent(record);
        reported.lines.push(format!("{record:?}"));
    }

    fn detached(&self, listener: usize, why: Detach) {
        let mut reported = self.reported();
        reported.live = Totals::default();
        reported.lines.push(format!("detached {listener} {why:?}"));
    }

    fn unread(&self, listener: usize, of: Message, why: Unread) {
        self.reported().lines.push(format!("unread {listener} {of:?} {why:?}"));
    }
}

impl Live for Handle {
    fn progress(&self, gaps: &[Gap], tokens: u64) {
        let mut reported = self.0.lock().expect("one thread");
        assert!(reported.shared || reported.live.reconciled.is_none(), "progress after the end");
        reported.live.tokens += tokens;
        reported.lines.push(format!("progress {gaps:?} {tokens}"));
    }

    fn stalled(&self) {
        self.0.lock().expect("one thread").lines.push("stalled".to_owned());
    }

    fn reconcile(&self, tokens: u64) {
        let mut reported = self.0.lock().expect("one thread");
        assert!(tokens > 0 && (reported.shared || reported.live.reconciled.is_none()));
        reported.live.reconciled = Some(tokens);
        reported.lines.push(format!("reconcile {tokens}"));
    }
}

/// Asserts that the live token count ends at the exact count, unless it was already higher.
fn reconciled(record: &Record, live: &Totals) {
    let more = live.reconciled.unwrap_or_default();
    match record.tokens.output.filter(|count| count.source.is_exact()) {
        Some(exact) => assert_eq!(live.tokens.max(exact.tokens) - live.tokens, more, "{record:?}"),
        None => assert_eq!(more, 0, "reconciled with a lower bound: {record:?}"),
    }
}

/// Asserts the invariants of a record.
fn consistent(record: &Record) {
    let order = |times: &[Option<Duration>]| times.iter().flatten().is_sorted();
    let (times, chunks) = (&record.times, record.tokens.chunks);
    let ended = Some(times.ended);
    assert!(order(&[times.headers, times.first_event, times.first_token, times.last_token, ended]), "{record:?}");
    assert!(order(&[times.first_token, times.first_visible, times.last_token, ended]), "{record:?}");
    assert!(order(&[times.requested, ended]), "{record:?}");
    assert!(record.blocked.total() <= times.ended, "{record:?}");
    assert_eq!(times.first_token.is_some(), chunks > 0, "{record:?}");
    assert!(chunks <= record.response.events && record.gaps.stalls.map_or(0, u64::from) <= chunks, "{record:?}");
    let rates = [record.rate.exact, record.rate.at_least, record.time_per_output_token()];
    assert!(rates.iter().flatten().all(|rate| rate.is_finite() && *rate > 0.0), "{record:?}");
    assert!(record.rate.exact.is_none() || record.rate.at_least.is_none(), "{record:?}");
    assert!(record.outcome != Outcome::Ok || record.response.status.is_some(), "{record:?}");
    assert!(record.response.finish_reasons.len() <= 8);
    let longest = |text: &Option<Box<str>>, most| text.as_ref().is_none_or(|text| (1..=most).contains(&text.len()));
    assert!(longest(&record.response.id, 128) && longest(&record.request.id, 128), "{record:?}");
    assert!(longest(&record.response.error_type, 48) && longest(&record.labels.response_model, 128), "{record:?}");
}
