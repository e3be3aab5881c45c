//! Token arrival times of one response in fixed memory: a list of points that becomes coarser for long responses.

use std::hint::black_box;
use std::time::Duration;

/// Maximum number of points. A response with more events has at least half of this number of points.
pub const POINTS: usize = 48;

/// Significant bits of a packed time; the higher bits are the shift.
const MANTISSA: u32 = 11;

/// Timeline of one response: times and counts only.
///
/// Each point covers the same number of token-bearing events (the last point may cover fewer). It stores the time since
/// the previous point, to take only 8 bytes. When the table is full, neighbours are merged, so that each point covers
/// twice as many events. End times (in microseconds) and token counts of points stay exact; the longest gap within a
/// point is accurate to 0.1 %.
#[derive(Clone, Debug)]
pub struct TimeLine {
    /// Time of the first event, microseconds since the start of the request.
    first: u64,
    /// Time of the last event, microseconds since the start of the request.
    last: u64,
    /// Events covered by a full point.
    every: u32,
    /// Events in the last point so far.
    open: u32,
    len: u8,
    points: [Packed; POINTS],
}

/// One point in compact form.
#[derive(Clone, Copy, Debug, Default)]
struct Packed {
    /// Microseconds since the previous point, at most 71 minutes.
    span: u32,
    tokens: u16,
    longest: u16,
}

/// One point of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Arrival of the point's last event, since the start of the request.
    pub at: Duration,
    /// Tokens in the point's events; an event with an unknown number counts as one.
    pub tokens: u64,
    /// The longest gap before one of the point's events. Zero for the first event of the response.
    pub longest_gap: Duration,
}

impl Default for TimeLine {
    fn default() -> TimeLine {
        TimeLine { first: 0, last: 0, every: 1, open: 0, len: 0, points: [Packed::default(); POINTS] }
    }
}

impl TimeLine {
    /// Adds a token-bearing event with `tokens` tokens that arrived at `at`, measured from the start of the request.
    pub fn push(&mut self, at: Duration, tokens: u64) {
        let at = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        if self.len == 0 {
            (self.first, self.last) = (at, at);
        }
        // Times of a connection do not go backwards. If one did, the gap would be 0.
        let gap = u32::try_from(at.saturating_sub(self.last)).unwrap_or(u32::MAX);
        self.last = self.last.max(at);
        let event = Packed { span: gap, tokens: u16::try_from(tokens).unwrap_or(u16::MAX), longest: pack(gap) };
        if self.open == self.every || self.len == 0 {
            if usize::from(self.len) == POINTS {
                self.coarsen();
            } else {
                self.open = 0;
                self.len += 1;
            }
        }
        let place = usize::from(self.len).saturating_sub(1);
        if let Some(point) = self.points.get_mut(place) {
            *point = if self.open == 0 { event } else { point.joined(event) };
            self.open += 1;
        }
    }

    /// Prefetches the memory that the next event needs.
    pub fn warm(&self) {
        let place = usize::from(self.len).saturating_sub(1);
        black_box((self.last, self.open, self.points.get(place).map(|point| point.span)));
    }

    /// Merges each pair of neighbours and starts the next point.
    fn coarsen(&mut self) {
        for place in 0..POINTS / 2 {
            if let Some(&[one, other]) = self.points.get(2 * place..2 * place + 2)
                && let Some(point) = self.points.get_mut(place)
            {
                *point = one.joined(other);
            }
        }
        self.every = self.every.saturating_mul(2);
        self.len = (POINTS / 2 + 1) as u8;
        self.open = 0;
    }

    /// Number of events per point; the last point may cover fewer.
    pub fn events_per_point(&self) -> u32 {
        self.every
    }

    /// The points, earliest first.
    pub fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let mut at = self.first;
        self.points.iter().take(usize::from(self.len)).map(move |point| {
            at += u64::from(point.span);
            Point {
                at: Duration::from_micros(at),
                tokens: u64::from(point.tokens),
                longest_gap: Duration::from_micros(u64::from(unpack(point.longest))),
            }
        })
    }
}

impl Packed {
    /// Merges this point with the next one.
    fn joined(self, next: Packed) -> Packed {
        Packed {
            span: self.span.saturating_add(next.span),
            tokens: self.tokens.saturating_add(next.tokens),
            // Packed times have the same order as the times.
            longest: self.longest.max(next.longest),
        }
    }
}

/// Packs a time into 16 bits: its leading bits and the shift.
fn pack(time: u32) -> u16 {
    let cut = (u32::BITS - time.leading_zeros()).saturating_sub(MANTISSA);
    ((cut << MANTISSA) | (time >> cut)) as u16
}

fn unpack(packed: u16) -> u32 {
    let packed = u32::from(packed);
    (packed & ((1 << MANTISSA) - 1)) << (packed >> MANTISSA)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(events: &[(u64, u64)]) -> TimeLine {
        let mut line = TimeLine::default();
        let mut at = Duration::ZERO;
        for (gap, tokens) in events {
            at += Duration::from_micros(*gap);
            line.push(at, *tokens);
        }
        line
    }

    #[test]
    fn short_response_keeps_every_event() {
        let line = line(&[(250_000, 1), (20_000, 3), (1_500_000, 2)]);
        let ms = Duration::from_millis;
        let near = |gap: Duration| Duration::from_micros(u64::from(unpack(pack(gap.as_micros() as u32))));
        let points: Vec<Point> = line.points().collect();
        assert_eq!(line.events_per_point(), 1);
        assert_eq!(
            points,
            [
                Point { at: ms(250), tokens: 1, longest_gap: Duration::ZERO },
                Point { at: ms(270), tokens: 3, longest_gap: near(ms(20)) },
                Point { at: ms(1770), tokens: 2, longest_gap: near(ms(1500)) },
            ]
        );
        assert_eq!(TimeLine::default().points().count(), 0);
    }

    #[test]
    fn long_response_is_coarsened_to_equal_points() {
        let line = line(&[(1000, 1); 1000]);
        assert_eq!(line.events_per_point(), 32);
        let points: Vec<Point> = line.points().collect();
        assert_eq!(points.len(), 32);
        assert!(points.iter().take(31).all(|point| point.tokens == 32), "{points:?}");
        assert_eq!(points.last().map(|point| (point.at, point.tokens)), Some((Duration::from_secs(1), 8)));
    }

    #[test]
    fn time_going_backwards_counts_as_no_gap() {
        let mut line = TimeLine::default();
        line.push(Duration::from_secs(2), 1);
        line.push(Duration::from_secs(1), 1);
        line.push(Duration::from_secs(3), 1);
        let at: Vec<u64> = line.points().map(|point| point.at.as_secs()).collect();
        assert_eq!(at, [2, 2, 3]);
    }

    #[test]
    fn timeline_size_stays_within_limit() {
        assert!(size_of::<TimeLine>() <= 416, "{}", size_of::<TimeLine>());
    }

    proptest! {
        #[test]
        fn packed_time_is_exact_to_a_thousandth_and_keeps_order(a: u32, b: u32) {
            let kept = unpack(pack(a));
            prop_assert!(kept <= a && a - kept <= a / 1024);
            prop_assert_eq!(pack(a).cmp(&pack(b)), unpack(pack(a)).cmp(&unpack(pack(b))));
        }

        #[test]
        fn points_match_full_event_list(
            events in proptest::collection::vec((0u64..5_000_000, 1u64..6), 1..700)
        ) {
            let line = line(&events);
            let every = line.events_per_point() as usize;
            let points: Vec<Point> = line.points().collect();
            prop_assert!(points.len() <= POINTS && points.len() >= events.len().min(POINTS / 2));
            // Reference model: all events, split into chunks of equal length.
            let mut at = 0;
            let mut first = true;
            for (point, piece) in points.iter().zip(events.chunks(every)) {
                at += piece.iter().map(|(gap, _)| gap).sum::<u64>();
                prop_assert_eq!(point.at, Duration::from_micros(at));
                prop_assert_eq!(point.tokens, piece.iter().map(|(_, tokens)| tokens).sum::<u64>());
                let gaps = piece.iter().skip(usize::from(std::mem::take(&mut first))).map(|(gap, _)| *gap);
                let longest = gaps.max().unwrap_or(0);
                let kept = point.longest_gap.as_micros() as u64;
                prop_assert!(kept <= longest && longest - kept <= longest / 1024, "{} {}", kept, longest);
            }
            prop_assert_eq!(points.len(), events.len().div_ceil(every));
        }
    }
}
