//! The timeline of one slow request: its wait, and when its tokens arrived.

use ratatui::text::{Line, Span};

use crate::top::chart::{ACCENT, BAD, FAINT, GOOD, Glyphs, STRONG, WARN};
use crate::top::numbers;
use tokometer_telemetry::live::snapshot::{Slow, Snapshot};

/// Description of the request, most important part first.
pub(super) fn words(snapshot: &Snapshot, slow: &Slow, number: usize) -> Vec<Span<'static>> {
    let outcome = if slow.outcome == "ok" { GOOD } else { BAD };
    let model = slow.model.as_deref().map(|model| numbers::name(model, 20)).unwrap_or_default();
    let listener = match snapshot.listeners.len() {
        0 | 1 => String::new(),
        _ => {
            snapshot.listeners.get(slow.listener).map(|listener| numbers::name(&listener.name, 16)).unwrap_or_default()
        }
    };
    let tokens = slow.output_tokens.map(|tokens| format!("{} tokens", numbers::count(tokens))).unwrap_or_default();
    let gap = slow.longest_gap_ms.map(|gap| format!("longest gap {}", numbers::time(gap))).unwrap_or_default();
    let blocked = if slow.blocked_ms >= 1.0 {
        format!("client blocked {}", numbers::time(slow.blocked_ms))
    } else {
        String::new()
    };
    vec![
        Span::styled(format!("slowest {number}/{}", snapshot.slowest.len()), STRONG),
        Span::raw(format!("waited {}", numbers::time(slow.longest_wait_ms))),
        Span::styled(numbers::name(&slow.outcome, 32), outcome),
        Span::raw(format!("TTFT {}", numbers::or_unknown(slow.ttft_ms, numbers::time))),
        Span::raw(gap),
        Span::raw(tokens),
        Span::styled(model, FAINT),
        Span::styled(listener, FAINT),
        Span::styled(blocked, WARN),
        Span::styled(format!("{} ago", numbers::time(slow.ended_seconds_ago * 1e3)), FAINT),
    ]
}

/// Renders the timeline in `cells` characters: the queue time, the wait for the first token, then one bar per character
/// whose height shows its number of tokens.
pub(super) fn line(slow: &Slow, cells: usize, glyphs: &Glyphs) -> Line<'static> {
    if cells == 0 || slow.duration_ms <= 0.0 {
        return Line::default();
    }
    let cell = |ms: f64| ((ms / slow.duration_ms * cells as f64) as usize).min(cells - 1);
    let mut tokens = vec![0.0; cells];
    let mut from = slow.ttft_ms.unwrap_or(0.0);
    for (to, count, _) in &slow.points {
        share_out(&mut tokens, slow.duration_ms, from.min(*to), *to, *count as f64);
        from = *to;
    }
    let highest = tokens.iter().copied().fold(0.0, f64::max);
    let queue = slow.queue_ms.map_or(0, |ms| (ms / slow.duration_ms * cells as f64).round() as usize);
    // Without a token, the whole time is wait time.
    let wait = slow.ttft_ms.map_or(cells, cell);
    let each = |(at, tokens): (usize, &f64)| {
        let (glyph, style) = match glyphs.height(*tokens, highest) {
            Some(height) => (height, ACCENT),
            None if at < queue.min(wait) => (glyphs.queued, WARN),
            None if at < wait => (glyphs.waiting, FAINT),
            None => (glyphs.silent, FAINT),
        };
        Span::styled(glyph.to_string(), style)
    };
    tokens.iter().enumerate().map(each).collect()
}

/// Distributes the tokens of a point evenly over the time since the previous point.
fn share_out(cells: &mut [f64], duration: f64, from: f64, to: f64, tokens: f64) {
    let width = duration / cells.len() as f64;
    let last = cells.len().saturating_sub(1);
    let (first, end) = (((from / width) as usize).min(last), ((to / width) as usize).min(last));
    if first == end {
        if let Some(cell) = cells.get_mut(end) {
            *cell += tokens;
        }
        return;
    }
    for (number, cell) in cells.iter_mut().enumerate().take(end + 1).skip(first) {
        let (begins, ends) = (number as f64 * width, (number + 1) as f64 * width);
        *cell += tokens * (ends.min(to) - begins.max(from)).max(0.0) / (to - from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two seconds to the first token, half of them in the queue; then tokens, a gap, and tokens again.
    fn slow() -> Slow {
        Slow {
            model: Some("sim".to_owned()),
            outcome: "ok".to_owned(),
            ended_seconds_ago: 42.0,
            longest_wait_ms: 2000.0,
            queue_ms: Some(1000.0),
            ttft_ms: Some(2000.0),
            duration_ms: 10_000.0,
            longest_gap_ms: Some(3000.0),
            output_tokens: Some(40),
            points: vec![(2000.0, 1, 0.0), (2900.0, 10, 90.0), (5900.0, 1, 3000.0), (9900.0, 28, 150.0)],
            ..Slow::default()
        }
    }

    fn shown(slow: &Slow, cells: usize) -> String {
        line(slow, cells, &Glyphs::BLOCKS).to_string()
    }

    #[test]
    fn timeline_shows_queue_wait_and_tokens() {
        assert_eq!(shown(&slow(), 10), "▒░█▁▁▁▆▆▆▅");
        assert_eq!(shown(&slow(), 10).chars().count(), 10);
        assert_eq!(shown(&slow(), 0), "");
    }

    #[test]
    fn timeline_without_tokens_is_all_waiting() {
        let none = Slow { ttft_ms: None, queue_ms: None, points: Vec::new(), ..slow() };
        assert_eq!(shown(&none, 5), "░░░░░");
        let instant = Slow { duration_ms: 0.0, ..slow() };
        assert_eq!(shown(&instant, 5), "");
        // No points were recorded between the first token and the end.
        assert_eq!(shown(&Slow { points: Vec::new(), queue_ms: None, ..slow() }, 5), "░····");
    }

    #[test]
    fn description_is_ordered_by_importance() {
        let snapshot = Snapshot { slowest: vec![slow(), slow()], ..Snapshot::default() };
        let words = words(&snapshot, &slow(), 1);
        let shown: Vec<&str> = words.iter().map(|part| part.content.as_ref()).filter(|t| !t.is_empty()).collect();
        let expected = [
            "slowest 1/2",
            "waited 2.00 s",
            "ok",
            "TTFT 2.00 s",
            "longest gap 3.00 s",
            "40 tokens",
            "sim",
            "42.0 s ago",
        ];
        assert_eq!(shown, expected);
    }
}
