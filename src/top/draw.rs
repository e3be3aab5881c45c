//! Draws a snapshot on a canvas of any size.

use crate::top::canvas::Canvas;
use crate::top::canvas::Style;
use crate::top::distribution;
use crate::top::glyphs::Glyphs;
use crate::top::numbers;
use crate::top::objectives;
use crate::top::streams;
use crate::top::timeline;
use crate::top::view::View;
use tokometer_telemetry::live::snapshot::Distribution;
use tokometer_telemetry::live::snapshot::Pair;
use tokometer_telemetry::live::snapshot::Snapshot;

/// The contents of a screen.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The latest snapshot, if any.
    pub snapshot: Option<&'a Snapshot>,
    /// The admin server's address.
    pub admin: &'a str,
    /// Why there is no newer snapshot.
    pub trouble: Option<&'a str>,
    /// The user's choices.
    pub view: View,
    /// The characters to draw with.
    pub glyphs: Glyphs,
}

/// Minimum number of rows for streams, including the column titles, if other rows are shown.
const LEAST_STREAMS: usize = 4;

/// Width of the row names.
const NAME: usize = 10;

/// A row of the summary.
enum Row<'a> {
    Parts(&'static str, Vec<(String, Style)>),
    /// The timeline of a slow request, below its description.
    Line(&'a tokometer_telemetry::live::snapshot::Slow),
}

/// Draws a frame.
pub fn draw(frame: &Frame<'_>, width: usize, height: usize) -> Canvas {
    let mut canvas = Canvas::new(width, height);
    if width == 0 || height == 0 {
        return canvas;
    }
    head(&mut canvas, frame);
    let Some(snapshot) = frame.snapshot else {
        foot(&mut canvas, frame);
        return canvas;
    };
    let rows = rows(frame, snapshot, width, height);
    let fixed = height.saturating_sub(2);
    let room = fixed.saturating_sub(LEAST_STREAMS.min(fixed / 2));
    let mut y = 1;
    for row in rows.iter().take(room) {
        match row {
            Row::Parts(name, parts) => {
                canvas.text(0, y, name, Style::Faint);
                canvas.parts(NAME, y, parts);
            }
            Row::Line(slow) => {
                let end = numbers::time(slow.duration_ms);
                let cells = width.saturating_sub(NAME + end.len() + 1);
                let mut x = NAME;
                for (character, style) in timeline::line(slow, cells, &frame.glyphs) {
                    x = canvas.text(x, y, &character.to_string(), style);
                }
                canvas.text(x + 1, y, &end, Style::Faint);
            }
        }
        y += 1;
    }
    let left = (height - 1).saturating_sub(y);
    if left > LEAST_STREAMS {
        canvas.fill(y, frame.glyphs.rule, Style::Faint);
        y += 1;
    }
    streams::draw(&mut canvas, y, (height - 1).saturating_sub(y), snapshot, &frame.view, &frame.glyphs);
    foot(&mut canvas, frame);
    canvas
}

/// Number of streams shown at this size.
pub(super) fn page(frame: &Frame<'_>, width: usize, height: usize) -> usize {
    let Some(snapshot) = frame.snapshot else { return 0 };
    let fixed = height.saturating_sub(2);
    let room = fixed.saturating_sub(LEAST_STREAMS.min(fixed / 2));
    let used = rows(frame, snapshot, width, height).len().min(room);
    let left = fixed.saturating_sub(used);
    left.saturating_sub(if left > LEAST_STREAMS { 2 } else { 1 })
}

fn head(canvas: &mut Canvas, frame: &Frame<'_>) {
    canvas.fill(0, ' ', Style::Reverse);
    let bar = |text: String| (text, Style::Reverse);
    let mut parts = vec![bar("tokometer top".to_owned())];
    if frame.view.paused {
        parts.push(bar("PAUSED".to_owned()));
    }
    if let Some(snapshot) = frame.snapshot {
        if snapshot.draining {
            parts.push(bar("DRAINING".to_owned()));
        }
        parts.push(bar(format!("{} UTC", numbers::clock(snapshot.made_unix_ms))));
        parts.push(bar(frame.admin.to_owned()));
        parts.push(bar(format!("up {}", numbers::time(snapshot.uptime_seconds * 1e3))));
        parts.push(bar(numbers::name(&snapshot.version, 20)));
    } else {
        parts.push(bar(frame.admin.to_owned()));
    }
    canvas.parts(0, 0, &parts);
}

fn foot(canvas: &mut Canvas, frame: &Frame<'_>) {
    let y = canvas.height() - 1;
    if y == 0 {
        return;
    }
    if let Some(trouble) = frame.trouble {
        canvas.fill(y, ' ', Style::Plain);
        canvas.text(0, y, trouble, Style::Bad);
        return;
    }
    if frame.snapshot.is_none() {
        canvas.text(0, y, "Waiting for the first snapshot.", Style::Faint);
        return;
    }
    let keys = ["q quit", "p pause", "s sort", "up/down scroll", "left/right slowest"];
    canvas.parts(0, y, &keys.map(|key| (key.to_owned(), Style::Faint)));
}

/// The summary rows, most important first; taller terminals show more.
fn rows<'a>(frame: &Frame<'_>, snapshot: &'a Snapshot, width: usize, height: usize) -> Vec<Row<'a>> {
    let tall = height >= 34;
    let mut rows = vec![in_flight(snapshot)];
    // A wedged engine is shown even on small screens.
    let wedged = snapshot.pairs.iter().any(|pair| pair.state == "wedged");
    let mut engines = engines(snapshot, if tall { 8 } else { 2 });
    if wedged {
        rows.append(&mut engines);
    }
    rows.push(throughput(snapshot, width, &frame.glyphs));
    let worst = objectives::worst_first(snapshot);
    if !worst.is_empty() && !tall {
        rows.push(Row::Parts(
            "SLO",
            worst.iter().map(|one| (objectives::short(one), objectives::style(one))).collect(),
        ));
    }
    rows.push(spread("TTFT", &snapshot.ttft_seconds, 1e3, numbers::time, width, &frame.glyphs));
    rows.push(spread("decode", &snapshot.decode_tokens_per_second, 1.0, numbers::rate, width, &frame.glyphs));
    rows.append(&mut engines);
    if tall {
        for (at, objective) in worst.iter().take(10).enumerate() {
            let mut parts = vec![(format!("{:<28}", objectives::short(objective)), objectives::style(objective))];
            parts.extend(objectives::details(objective).into_iter().map(|text| (text, Style::Plain)));
            rows.push(Row::Parts(if at == 0 { "SLO" } else { "" }, parts));
        }
    }
    let place = frame.view.slow.min(snapshot.slowest.len().saturating_sub(1));
    if let Some(slow) = snapshot.slowest.get(place) {
        rows.push(Row::Parts("", timeline::words(snapshot, slow, place + 1)));
        rows.push(Row::Line(slow));
    }
    rows
}

fn in_flight(snapshot: &Snapshot) -> Row<'static> {
    let now = &snapshot.in_flight;
    let told = |count: u64, what: &str| (format!("{} {what}", numbers::count(count)), Style::Plain);
    let odd = |count: u64, what: &str| match count {
        0 => (String::new(), Style::Plain),
        count => (format!("{} {what}", numbers::count(count)), Style::Warn),
    };
    let time = |seconds: Option<f64>, what: &str| match seconds {
        None => (String::new(), Style::Plain),
        Some(seconds) => (format!("{what} {}", numbers::time(seconds * 1e3)), Style::Plain),
    };
    Row::Parts(
        "in flight",
        vec![
            (numbers::count(now.exchanges), Style::Strong),
            told(now.waiting, "waiting"),
            told(now.streaming, "streaming"),
            odd(now.stalled, "stalled"),
            odd(now.held_up, "blocked"),
            time(now.longest_wait_seconds, "longest wait"),
            time(now.oldest_seconds, "oldest"),
        ],
    )
}

fn throughput(snapshot: &Snapshot, width: usize, glyphs: &Glyphs) -> Row<'static> {
    let rates = &snapshot.rates;
    let per_second: Vec<f64> =
        rates.history.iter().map(|second| second.tokens as f64 / second.seconds.max(0.001)).collect();
    // As many of the latest seconds as fit.
    let cells = width.saturating_sub(50).clamp(8, 60);
    let latest = per_second.get(per_second.len().saturating_sub(cells)..).unwrap_or_default();
    let highest = latest.iter().copied().fold(0.0, f64::max);
    let heights = latest.iter().map(|rate| glyphs.height(*rate, highest).unwrap_or(' ')).collect();
    let mut failed: Vec<(&String, &f64)> = rates.failed_per_second.iter().collect();
    failed.sort_by(|one, other| other.1.total_cmp(one.1));
    let failed = failed
        .iter()
        .map(|(name, rate)| (format!("{} {}/s", numbers::name(name, 32), numbers::rate(**rate)), Style::Bad));
    let mut parts = vec![
        (numbers::rate(rates.tokens_per_second), Style::Strong),
        (heights, Style::Accent),
        (format!("req/s {}", numbers::rate(rates.requests_per_second)), Style::Plain),
    ];
    parts.extend(failed);
    Row::Parts("tok/s", parts)
}

/// The distribution over the requests that ended in the last minute.
fn spread(
    name: &'static str,
    distribution: &Distribution,
    scale: f64,
    shown: fn(f64) -> String,
    width: usize,
    glyphs: &Glyphs,
) -> Row<'static> {
    let at = |name: &str, value: Option<f64>| {
        let value = value.map_or_else(|| numbers::UNKNOWN.to_owned(), |value| shown(value * scale));
        format!("{name} {value}")
    };
    // For a rate, the slow end is the low one.
    let far = if name == "decode" { at("p10", distribution.p10) } else { at("p99", distribution.p99) };
    let counted = match (distribution.count, distribution.at_least) {
        (0, _) => "none ended in the last minute".to_owned(),
        (count, 0) => format!("n {}", numbers::count(count)),
        (count, bounds) => format!("n {}, {} at least", numbers::count(count), numbers::count(bounds)),
    };
    Row::Parts(
        name,
        vec![
            (at("p50", distribution.p50), Style::Strong),
            (at("p90", distribution.p90), Style::Plain),
            (far, Style::Plain),
            (distribution::heights(distribution, width.saturating_sub(56).clamp(6, 40), glyphs), Style::Accent),
            (counted, Style::Faint),
        ],
    )
}

/// Engine rows, wedged engines first.
fn engines(snapshot: &Snapshot, most: usize) -> Vec<Row<'static>> {
    let mut pairs: Vec<&Pair> = snapshot.pairs.iter().collect();
    pairs.sort_by_key(|pair| pair.state != "wedged");
    let more = pairs.len().saturating_sub(most);
    let several = pairs.len() > 1;
    let mut rows: Vec<Row<'static>> =
        pairs.into_iter().take(most).map(|pair| Row::Parts("engine", engine(pair, several))).collect();
    if let (Some(Row::Parts(_, parts)), 1..) = (rows.last_mut(), more) {
        parts.push((format!("and {more} more"), Style::Faint));
    }
    rows
}

fn engine(pair: &Pair, several: bool) -> Vec<(String, Style)> {
    let (state, style) = match pair.state.as_str() {
        "wedged" => ("WEDGED".to_owned(), Style::Bad),
        "working" => ("working".to_owned(), Style::Good),
        other => (numbers::name(other, 12), Style::Plain),
    };
    let silent = match (pair.silent_seconds, pair.bound_seconds) {
        (Some(silent), Some(bound)) if pair.state == "wedged" => {
            format!("silent for {}, {} allowed", numbers::time(silent * 1e3), numbers::time(bound * 1e3))
        }
        _ => String::new(),
    };
    let named = if several { numbers::name(&pair.name, 16) } else { String::new() };
    let kind = pair.engine.as_deref().map_or_else(|| "unrecognised".to_owned(), |engine| numbers::name(engine, 16));
    let mut parts = vec![(state, style), (named, Style::Strong), (kind, Style::Plain), (silent, Style::Bad)];
    let Some(own) = &pair.own else {
        parts.push(("its own metrics are not read".to_owned(), Style::Faint));
        return parts;
    };
    let figure = |what: &str, value: Option<String>| match value {
        Some(value) => (format!("{what} {value}"), Style::Plain),
        None => (String::new(), Style::Plain),
    };
    let whole = |value: Option<f64>| value.map(|value| numbers::count(value.max(0.0).round() as u64));
    parts.extend([
        figure("running", whole(own.running)),
        figure("queued", whole(own.waiting)),
        figure("KV", own.kv_usage.map(numbers::percent)),
        figure("cache", own.cache_ratio.map(numbers::percent)),
        figure("queue time", own.queue_seconds.map(|seconds| numbers::time(seconds * 1e3))),
        figure("preempted", whole(own.preemptions.filter(|count| *count > 0.0))),
    ]);
    parts
}
