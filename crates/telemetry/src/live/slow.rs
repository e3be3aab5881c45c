//! The slowest recently finished requests and their token timelines.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::live::recent::Finished;
use crate::live::recent::Kept;
use crate::live::snapshot::MOST_SLOW;
use crate::live::snapshot::Slow;
use tokometer_observe::measure::Record;

/// Maximum age of a request in this list.
const LATELY: Duration = Duration::from_secs(300);

/// The slowest requests, slowest first.
pub(super) fn slowest(kept: &Kept, now: Instant) -> Vec<Slow> {
    let all = [&kept.latest, &kept.slowest_first_token, &kept.longest_gap];
    let young = |kept: &&Arc<Finished>| now.saturating_duration_since(kept.ended()) <= LATELY;
    let waited = |kept: &Arc<Finished>| Some((longest_wait(&kept.record)?, Arc::clone(kept)));
    let mut slow: Vec<(Duration, Arc<Finished>)> = all.into_iter().flatten().filter(young).filter_map(waited).collect();
    // A request may be in several lists. Its numbers break ties, so that the order is stable.
    let id = |kept: &Finished| (kept.record.connection, kept.record.sequence);
    slow.sort_by(|(a, one), (b, other)| b.cmp(a).then(id(one).cmp(&id(other))));
    slow.dedup_by(|(_, a), (_, b)| id(a) == id(b));
    slow.truncate(MOST_SLOW);
    slow.iter().map(|(wait, kept)| told(*wait, kept, now)).collect()
}

/// The longest time that a client waited for a token: for the first, for a later one, or for one that never arrived.
/// `None` for a non-streamed response, which may take long, and for an incomplete request.
fn longest_wait(record: &Record) -> Option<Duration> {
    let first = match record.first_token {
        Some(first) => record.since_requested(Some(first)),
        None if record.outcome.is_ok() || record.labels.streaming != Some(true) => None,
        None => record.since_requested(Some(record.ended)),
    };
    first.max(record.longest_gap)
}

fn told(wait: Duration, kept: &Finished, now: Instant) -> Slow {
    let (record, labels) = (&kept.record, &kept.record.labels);
    let since = |then: Option<Duration>| record.since_requested(then).map(milliseconds);
    let requested = record.requested.unwrap_or_default();
    let model = labels.response_model.as_deref().or(labels.request_model.as_deref());
    Slow {
        id: format!("{}-{}", record.connection, record.sequence),
        pair: labels.pair,
        route: Cow::Borrowed(labels.route.name()),
        model: model.map(str::to_owned),
        outcome: record.outcome.as_str().to_owned(),
        ended_seconds_ago: (now.saturating_duration_since(kept.ended()).as_secs_f64() * 10.0).round() / 10.0,
        longest_wait_ms: milliseconds(wait),
        queue_ms: record.queue.map(|queue| milliseconds(queue.value)),
        headers_ms: since(record.headers),
        ttft_ms: since(record.first_token),
        last_token_ms: since(record.last_token),
        duration_ms: milliseconds(record.ended.saturating_sub(requested)),
        longest_gap_ms: record.longest_gap.map(milliseconds),
        blocked_ms: milliseconds(record.delivery_blocked),
        input_tokens: record.input_tokens.map(|count| count.tokens),
        output_tokens: record.output_tokens.map(|count| count.tokens),
        output_source: record.output_tokens.map(|count| count.source.as_str().to_owned()),
        decode_tokens_per_second: record.decode_rate.or(record.decode_rate_at_least).map(tenths),
        events_per_point: kept.line.as_deref().map(|line| line.events_per_point()),
        points: kept.line.as_deref().map_or_else(Vec::new, |line| {
            let point = |point: tokometer_observe::measure::Point| {
                let at = milliseconds(point.at.saturating_sub(requested));
                (at, point.tokens, milliseconds(point.longest_gap))
            };
            line.points().map(point).collect()
        }),
    }
}

/// Rounded to the microsecond.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

fn tenths(rate: f64) -> f64 {
    (rate * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::record;
    use tokometer_observe::measure::Labels;
    use tokometer_observe::measure::Outcome;

    /// A request that began `at` seconds after `start`; `first` and `gap` in milliseconds.
    fn finished(start: Instant, connection: u64, at: u64, first: Option<u64>, gap: Option<u64>) -> Arc<Finished> {
        let record = record(start + Duration::from_secs(at));
        let labels = Labels { streaming: Some(true), ..(*record.labels).clone() };
        let outcome = if first.is_some() { Outcome::Ok } else { Outcome::ClientAbortBeforeFirstToken };
        let record = Record {
            connection,
            outcome,
            labels: Arc::new(labels),
            first_token: first.map(Duration::from_millis),
            longest_gap: gap.map(Duration::from_millis),
            ..record
        };
        Arc::new(Finished::new(&record, None))
    }

    #[test]
    fn slowest_come_first_by_any_wait_without_duplicates() {
        let start = Instant::now();
        let late = finished(start, 1, 0, Some(900), Some(10));
        let gap = finished(start, 2, 0, Some(10), Some(950));
        // The client gave up after one second, without any token.
        let never = finished(start, 3, 0, None, None);
        let quick = finished(start, 4, 0, Some(5), Some(5));
        let kept = Kept {
            latest: vec![quick, Arc::clone(&gap), never, Arc::clone(&late)],
            slowest_first_token: vec![Arc::clone(&late)],
            longest_gap: vec![gap],
        };
        let all = slowest(&kept, start + Duration::from_secs(2));
        let told: Vec<_> = all.iter().map(|slow| (slow.id.as_str(), slow.longest_wait_ms)).collect();
        assert_eq!(told, [("3-0", 1000.0), ("2-0", 950.0), ("1-0", 900.0), ("4-0", 5.0)]);
        assert_eq!((all[0].ttft_ms, all[0].ended_seconds_ago, all[0].points.len()), (None, 1.0, 0));
    }

    #[test]
    fn old_requests_are_left_out_and_the_list_is_bounded() {
        let start = Instant::now();
        let mut latest = vec![finished(start, 100, 0, Some(9000), None)];
        latest.extend((1..=9).map(|n| finished(start, n, 300, Some(n), None)));
        let kept = Kept { latest, ..Kept::default() };
        let all = slowest(&kept, start + Duration::from_secs(302));
        let told: Vec<&str> = all.iter().map(|slow| slow.id.as_str()).collect();
        assert_eq!(told, ["9-0", "8-0", "7-0", "6-0", "5-0"]);
    }
}
