//! The summary of a snapshot: the upper rows of the screen, and a single line for logs and pipes.

use std::cmp::Reverse;

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::top::chart::{ACCENT, BAD, FAINT, GOOD, Glyphs, STRONG, WARN, join};
use crate::top::{chart, numbers, timeline};
use tokometer_telemetry::live::snapshot::{Distribution, Listener, Objective, Snapshot};

/// Width of the row names.
const NAME: usize = 10;

/// The parts of a row, most important first; empty ones are not shown.
type Parts = Vec<Span<'static>>;

/// The summary rows, most important first; taller terminals show more. `slow` selects one of the slowest requests.
pub(super) fn rows(snapshot: &Snapshot, slow: usize, glyphs: &Glyphs, width: u16, height: u16) -> Vec<Line<'static>> {
    let row = |name: &str, parts: Parts| {
        let mut line = join(parts, width.saturating_sub(NAME as u16));
        line.spans.insert(0, Span::styled(format!("{name:<NAME$}"), FAINT));
        line
    };
    let (tall, cells) = (height >= 34, usize::from(width));
    let mut rows = vec![row("in flight", in_flight(snapshot))];
    let engines = engines(snapshot, if tall { 8 } else { 2 }).into_iter().map(|engine| row("engine", engine));
    // An engine that serves no client is shown even on small screens.
    let (first, last) =
        if snapshot.listeners.iter().any(is_down) { (Some(engines), None) } else { (None, Some(engines)) };
    rows.extend(first.into_iter().flatten());
    rows.push(row("tok/s", throughput(snapshot, cells, glyphs)));
    let worst = worst_first(snapshot);
    if !worst.is_empty() && !tall {
        rows.push(row("SLO", worst.iter().map(|one| Span::styled(short(one), severity(one).1)).collect()));
    }
    let (ttft, decode) = (&snapshot.ttft_seconds, &snapshot.decode_tokens_per_second);
    rows.push(row("TTFT", distribution(ttft, |s| numbers::time(s * 1e3), ("p99", ttft.p99), cells, glyphs)));
    // For a rate, the slow end is the low one.
    let mut parts = distribution(decode, numbers::rate, ("p10", decode.p10), cells, glyphs);
    parts.extend(decode.p50.map(|median| {
        let (name, style) = chart::band(median, &snapshot.reading);
        Span::styled(name, style)
    }));
    rows.push(row("decode", parts));
    rows.extend(last.into_iter().flatten());
    if tall {
        for (at, objective) in worst.iter().take(10).enumerate() {
            let mut parts = vec![Span::styled(format!("{:<28}", short(objective)), severity(objective).1)];
            parts.extend(details(objective).into_iter().map(Span::raw));
            rows.push(row(if at == 0 { "SLO" } else { "" }, parts));
        }
    }
    let place = slow.min(snapshot.slowest.len().saturating_sub(1));
    if let Some(slow) = snapshot.slowest.get(place) {
        rows.push(row("", timeline::words(snapshot, slow, place + 1)));
        let end = numbers::time(slow.duration_ms);
        let mut line = timeline::line(slow, cells.saturating_sub(NAME + end.len() + 1), glyphs);
        line.spans.insert(0, Span::raw(" ".repeat(NAME)));
        line.push_span(Span::styled(format!(" {end}"), FAINT));
        rows.push(line);
    }
    rows
}

fn in_flight(snapshot: &Snapshot) -> Parts {
    let now = &snapshot.in_flight;
    let count = |count: u64, what: &str| Span::raw(format!("{} {what}", numbers::count(count)));
    let odd = |number: u64, what: &str| if number == 0 { Span::default() } else { count(number, what).style(WARN) };
    let time = |seconds: Option<f64>, what: &str| named(what, seconds.map(|seconds| numbers::time(seconds * 1e3)));
    vec![
        Span::styled(numbers::count(now.requests), STRONG),
        count(now.waiting, "waiting"),
        count(now.streaming, "streaming"),
        if now.unstreamed == 0 { Span::default() } else { count(now.unstreamed, "not streamed") },
        odd(now.stalled, "stalled"),
        odd(now.blocked, "blocked"),
        time(now.longest_wait_seconds, "longest wait"),
        time(now.oldest_seconds, "oldest"),
    ]
}

/// A value with its name, or nothing if it is unknown.
fn named(name: &str, value: Option<String>) -> Span<'static> {
    value.map_or_else(Span::default, |value| Span::raw(format!("{name} {value}")))
}

fn throughput(snapshot: &Snapshot, width: usize, glyphs: &Glyphs) -> Parts {
    let rates = &snapshot.rates;
    let per_second: Vec<f64> =
        rates.history.iter().map(|second| second.tokens as f64 / second.seconds.max(0.001)).collect();
    // As many of the latest seconds as fit.
    let cells = width.saturating_sub(50).clamp(8, 60);
    let latest = per_second.get(per_second.len().saturating_sub(cells)..).unwrap_or_default();
    let mut failed: Vec<(&String, &f64)> = rates.failed_per_second.iter().collect();
    failed.sort_by(|one, other| other.1.total_cmp(one.1));
    let mut parts = vec![
        Span::styled(numbers::rate(rates.tokens_per_second), STRONG),
        Span::styled(glyphs.chart(latest), ACCENT),
        Span::raw(format!("req/s {}", numbers::rate(rates.requests_per_second))),
    ];
    parts.extend(
        failed
            .into_iter()
            .map(|(name, rate)| Span::styled(format!("{} {}/s", numbers::name(name, 32), numbers::rate(*rate)), BAD)),
    );
    parts
}

/// The distribution over the requests that ended in the last minute. `slow` is the quantile at the slow end.
fn distribution(
    distribution: &Distribution,
    text: fn(f64) -> String,
    slow: (&str, Option<f64>),
    width: usize,
    glyphs: &Glyphs,
) -> Parts {
    let quantile =
        |(name, value): (&str, Option<f64>)| Span::raw(format!("{name} {}", numbers::or_unknown(value, text)));
    let count = match (distribution.count, distribution.at_least) {
        (0, _) => "none ended in the last minute".to_owned(),
        (count, 0) => format!("n {}", numbers::count(count)),
        (count, bounds) => format!("n {}, {} at least", numbers::count(count), numbers::count(bounds)),
    };
    vec![
        quantile(("p50", distribution.p50)).style(STRONG),
        quantile(("p90", distribution.p90)),
        quantile(slow),
        Span::styled(chart::histogram(distribution, width.saturating_sub(56).clamp(6, 40), glyphs), ACCENT),
        Span::styled(count, FAINT),
    ]
}

fn is_down(listener: &Listener) -> bool {
    ["wedged", "unreachable"].contains(&listener.state.as_str())
}

/// At most `max` engines, those that serve no client first.
fn engines(snapshot: &Snapshot, max: usize) -> Vec<Parts> {
    let mut listeners: Vec<&Listener> = snapshot.listeners.iter().collect();
    listeners.sort_by_key(|listener| !is_down(listener));
    let more = listeners.len().saturating_sub(max);
    let several = listeners.len() > 1;
    let mut rows: Vec<Parts> = listeners.into_iter().take(max).map(|listener| engine(listener, several)).collect();
    if let (Some(parts), 1..) = (rows.last_mut(), more) {
        parts.push(Span::styled(format!("and {more} more"), FAINT));
    }
    rows
}

fn engine(listener: &Listener, several: bool) -> Parts {
    let state = match listener.state.as_str() {
        down @ ("wedged" | "unreachable") => Span::styled(down.to_uppercase(), BAD),
        "working" => Span::styled("working", GOOD),
        other => Span::raw(numbers::name(other, 12)),
    };
    let silent = match (listener.silent_seconds, listener.bound_seconds) {
        (Some(silent), Some(bound)) if listener.state == "wedged" => {
            format!("silent for {}, {} allowed", numbers::time(silent * 1e3), numbers::time(bound * 1e3))
        }
        _ if listener.listening == "address_in_use" => "bypassed: the listen address is in use".to_owned(),
        _ => String::new(),
    };
    let name = if several { numbers::name(&listener.name, 16) } else { String::new() };
    let kind = listener.engine.as_deref().map_or_else(|| "unrecognised".to_owned(), |engine| numbers::name(engine, 16));
    let mut parts = vec![state, Span::styled(name, STRONG), Span::raw(kind), Span::styled(silent, BAD)];
    let Some(own) = &listener.own else {
        parts.push(Span::styled("its own metrics are not read", FAINT));
        return parts;
    };
    let whole = |value: Option<f64>| value.map(|value| numbers::count(value.max(0.0).round() as u64));
    parts.extend([
        named("running", whole(own.running)),
        named("queued", whole(own.waiting)),
        named("KV", own.kv_usage.map(numbers::percent)),
        named("cache", own.cache_ratio.map(numbers::percent)),
        named("queue time", own.queue_seconds.map(|seconds| numbers::time(seconds * 1e3))),
        named("preempted", whole(own.preemptions.filter(|count| *count > 0.0))),
    ]);
    parts
}

/// Severity of an objective's state, its style, and its name if it needs attention.
fn severity(objective: &Objective) -> (u8, Style, Option<&'static str>) {
    match objective.state.as_str() {
        "burning" => (3, BAD, Some("BURNING")),
        "over" => (2, WARN, Some("OVER")),
        "ok" => (1, GOOD, None),
        _ => (0, FAINT, None),
    }
}

/// Objectives by severity, worst first; ties keep the order of the configuration.
fn worst_first(snapshot: &Snapshot) -> Vec<&Objective> {
    let mut sorted: Vec<&Objective> = snapshot.objectives.iter().collect();
    sorted.sort_by_key(|objective| Reverse(severity(objective).0));
    sorted
}

/// A short form: `ttft BURNING 14.4x`.
fn short(objective: &Objective) -> String {
    let name = numbers::name(&objective.name, 24);
    let burn = objective.recent.burn_rate.map(|rate| format!(" {}x", numbers::rate(rate))).unwrap_or_default();
    match severity(objective).2 {
        Some(state) => format!("{name} {state}{burn}"),
        None => format!("{name} {}", numbers::name(&objective.state, 12)),
    }
}

/// Details: target, requests evaluated in the last five minutes, and the main reasons of bad ones.
fn details(objective: &Objective) -> Vec<String> {
    let recent = &objective.recent;
    // Four decimal places: the highest target is 99.9999 %.
    let target = format!("target {} %", (objective.target * 1e6).round() / 1e4);
    let evaluated = format!("good {}  bad {}", numbers::count(recent.good), numbers::count(recent.bad));
    let mut reasons: Vec<(&String, &u64)> = recent.reasons.iter().collect();
    reasons.sort_by_key(|(_, count)| Reverse(**count));
    let reasons =
        reasons.iter().take(2).map(|(name, count)| format!("{} {}", numbers::name(name, 24), numbers::count(**count)));
    [target, evaluated].into_iter().chain(reasons).collect()
}

/// The snapshot as one line, without a line break.
pub(super) fn line(snapshot: &Snapshot) -> String {
    let now = &snapshot.in_flight;
    let ttft = |seconds| numbers::or_unknown(seconds, |seconds| numbers::time(seconds * 1e3));
    let mut parts = vec![
        format!("{} UTC", numbers::clock(snapshot.made_unix_ms)),
        format!("in flight {} ({} waiting)", numbers::count(now.requests), numbers::count(now.waiting)),
        format!("tok/s {}", numbers::rate(snapshot.rates.tokens_per_second)),
        format!("req/s {}", numbers::rate(snapshot.rates.requests_per_second)),
        format!("TTFT p50 {} p99 {}", ttft(snapshot.ttft_seconds.p50), ttft(snapshot.ttft_seconds.p99)),
        format!("decode p50 {}", numbers::or_unknown(snapshot.decode_tokens_per_second.p50, numbers::rate)),
    ];
    let failed: f64 = snapshot.rates.failed_per_second.values().sum();
    if failed > 0.0 {
        parts.push(format!("failed/s {}", numbers::rate(failed)));
    }
    let down = snapshot.listeners.iter().filter(|listener| is_down(listener));
    parts.extend(down.map(|down| format!("{} {}", down.state.to_uppercase(), numbers::name(&down.name, 24))));
    let broken = worst_first(snapshot).into_iter().filter(|one| severity(one).2.is_some());
    parts.extend(broken.map(short));
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use tokometer_telemetry::live::snapshot::Recent;

    use super::*;

    fn objective(name: &str, state: &str, burn: Option<f64>) -> Objective {
        let reasons = [("too_slow".to_owned(), 30), ("no_token".to_owned(), 1)].into();
        Objective {
            name: name.to_owned(),
            kind: name.to_owned(),
            target: 0.99,
            recent: Recent { window_seconds: 300.0, good: 120, bad: 31, reasons, burn_rate: burn },
            state: state.to_owned(),
            ..Objective::default()
        }
    }

    #[test]
    fn worst_objective_is_first_with_its_state() {
        let objectives = vec![
            objective("stall", "idle", None),
            objective("availability", "ok", Some(0.1)),
            objective("ttft", "burning", Some(14.41)),
        ];
        let snapshot = Snapshot { objectives, ..Snapshot::default() };
        let shown: Vec<String> = worst_first(&snapshot).iter().map(|objective| short(objective)).collect();
        assert_eq!(shown, ["ttft BURNING 14x", "availability ok", "stall idle"]);
        let details = details(&snapshot.objectives[2]);
        assert_eq!(details, ["target 99 %", "good 120  bad 31", "too_slow 30", "no_token 1"]);
    }

    #[test]
    fn line_shows_main_values_and_problems() {
        let mut snapshot = Snapshot { made_unix_ms: 43_384_000, ..Snapshot::default() };
        assert_eq!(
            line(&snapshot),
            "12:03:04 UTC  in flight 0 (0 waiting)  tok/s 0  req/s 0  TTFT p50 - p99 -  decode p50 -"
        );
        snapshot.rates.failed_per_second = [("truncated".to_owned(), 0.2), ("http_5xx".to_owned(), 0.1)].into();
        snapshot.listeners =
            vec![Listener { name: "vllm".to_owned(), state: "wedged".to_owned(), ..Listener::default() }];
        snapshot.objectives = vec![objective("stall", "ok", Some(0.0)), objective("ttft", "over", Some(1.5))];
        snapshot.ttft_seconds.p50 = Some(0.21);
        let shown = line(&snapshot);
        assert!(
            shown.ends_with("TTFT p50 210 ms p99 -  decode p50 -  failed/s 0.30  WEDGED vllm  ttft OVER 1.5x"),
            "{shown}"
        );
    }
}
