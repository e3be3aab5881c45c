//! The table of streams in flight, with a bar per stream.

use crate::top::canvas::Canvas;
use crate::top::canvas::Style;
use crate::top::glyphs::Glyphs;
use crate::top::numbers;
use crate::top::view::View;
use tokometer_telemetry::live::snapshot::Snapshot;
use tokometer_telemetry::live::snapshot::Stream;

/// A column other than the last one, which is the bar.
struct Column {
    title: &'static str,
    width: usize,
    /// Right-aligned, for numbers.
    right: bool,
    text: fn(&Snapshot, &Stream, usize) -> String,
}

const fn column(
    title: &'static str,
    width: usize,
    right: bool,
    text: fn(&Snapshot, &Stream, usize) -> String,
) -> Column {
    Column { title, width, right, text }
}

const MODEL: Column = column("model", 16, false, model);
const ROUTE: Column = column("route", 18, false, |_, stream, width| numbers::name(&stream.route, width));
const DOING: Column = column("doing", 10, false, |_, stream, width| numbers::name(&stream.doing, width));
const AGE: Column = column("age", 7, true, |_, stream, _| numbers::time(stream.age_ms as f64));
const WAITED: Column =
    column("waited", 7, true, |_, stream, _| numbers::time_or_unknown(stream.waited_ms.map(|ms| ms as f64)));
const TTFT: Column =
    column("TTFT", 7, true, |_, stream, _| numbers::time_or_unknown(stream.ttft_ms.map(|ms| ms as f64)));
const TOKENS: Column = column("tokens", 7, true, |_, stream, _| numbers::count(stream.tokens));
const RATE: Column = column("tok/s", 6, true, |_, stream, _| numbers::rate_or_unknown(stream.tokens_per_second));

fn model(snapshot: &Snapshot, stream: &Stream, width: usize) -> String {
    let named = stream.model.and_then(|place| snapshot.models.get(place));
    named.map_or_else(|| numbers::UNKNOWN.to_owned(), |name| numbers::name(name, width))
}

/// The columns that fit this width, with at least ten cells left for bars.
fn columns(width: usize) -> Vec<Column> {
    match width {
        110.. => vec![MODEL, ROUTE, DOING, AGE, WAITED, TTFT, TOKENS, RATE],
        88.. => vec![MODEL, DOING, AGE, WAITED, TTFT, TOKENS, RATE],
        72.. => vec![MODEL, DOING, AGE, TTFT, TOKENS, RATE],
        46.. => vec![DOING, AGE, TOKENS, RATE],
        _ => vec![DOING, AGE, TOKENS],
    }
}

/// Draws `rows` rows from `y` down; the first one contains the column titles.
pub(super) fn draw(canvas: &mut Canvas, y: usize, rows: usize, snapshot: &Snapshot, view: &View, glyphs: &Glyphs) {
    let columns = columns(canvas.width());
    let mut x = 0;
    for column in &columns {
        x = cell(canvas, x, y, column, column.title, Style::Faint);
    }
    let streams = view.sort.order(&snapshot.in_flight.streams);
    let rows = rows.saturating_sub(1);
    let offset = view.offset.min(streams.len().saturating_sub(rows));
    let shown = streams.iter().skip(offset).take(rows);
    let upto = offset + shown.len();
    let out = snapshot.in_flight.left_out;
    let title = match (streams.len(), out) {
        (0, _) => String::new(),
        (all, 0) if rows >= all => format!("by {}", view.sort.as_str()),
        (all, out) => {
            format!("{}-{upto} of {}, by {}", offset + 1, numbers::count(all as u64 + out), view.sort.as_str())
        }
    };
    // A title that does not fit is omitted.
    if x + title.len() <= canvas.width() {
        canvas.text(x, y, &title, Style::Faint);
    }
    let scale = Scale::of(snapshot);
    for (row, stream) in shown.enumerate() {
        let y = y + 1 + row;
        let mut x = 0;
        for column in &columns {
            let text = (column.text)(snapshot, stream, column.width);
            let style = if column.title == "doing" { style(stream) } else { Style::Plain };
            x = cell(canvas, x, y, column, &text, style);
        }
        bar(canvas, x, y, stream, &scale, glyphs);
    }
    if streams.is_empty() && rows > 0 {
        canvas.text(0, y + 1, "No requests in flight.", Style::Faint);
    }
}

fn cell(canvas: &mut Canvas, x: usize, y: usize, column: &Column, text: &str, style: Style) -> usize {
    let width = column.width;
    let text = if column.right { format!("{text:>width$}") } else { format!("{text:<width$}") };
    canvas.text(x, y, &text, style);
    x + width + 1
}

fn style(stream: &Stream) -> Style {
    match stream.doing.as_ref() {
        "held_up" => Style::Warn,
        "decode" => Style::Good,
        _ => Style::Plain,
    }
}

/// The values of a full bar.
struct Scale {
    /// Tokens, for streams whose request sets no limit.
    tokens: u64,
    /// Milliseconds of wait for a first token.
    wait: u64,
}

impl Scale {
    fn of(snapshot: &Snapshot) -> Scale {
        let streams = &snapshot.in_flight.streams;
        let tokens = streams.iter().map(|stream| stream.tokens).max().unwrap_or(0).max(1);
        let waits = streams.iter().filter(|stream| stream.tokens == 0).filter_map(|stream| stream.waited_ms);
        Scale { tokens, wait: waits.max().unwrap_or(0).max(1000) }
    }
}

/// Tokens relative to the request's maximum; before the first token, the wait relative to the longest current wait.
fn bar(canvas: &mut Canvas, x: usize, y: usize, stream: &Stream, scale: &Scale, glyphs: &Glyphs) {
    let cells = canvas.width().saturating_sub(x);
    if stream.tokens > 0 {
        let most = stream.max_tokens.filter(|most| *most > 0).unwrap_or(scale.tokens);
        let style = if stream.doing == "held_up" { Style::Warn } else { Style::Accent };
        canvas.text(x, y, &glyphs.bar(stream.tokens as f64 / most as f64, cells), style);
    } else if let Some(waited) = stream.waited_ms {
        let share = waited as f64 / scale.wait as f64;
        let length = ((share * cells as f64).round() as usize).min(cells);
        let text: String = std::iter::repeat_n(glyphs.waiting, length).collect();
        canvas.text(x, y, &text, Style::Faint);
    }
}
