//! The table of streams in flight, with a bar per stream.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Row, Table, Widget};

use crate::top::chart::{ACCENT, FAINT, GOOD, Glyphs, WARN};
use crate::top::view::View;
use crate::top::{chart, numbers};
use tokometer_telemetry::live::snapshot::{Snapshot, Stream};

/// A column other than the last one, which is the bar.
struct Column {
    title: &'static str,
    /// Minimum width of the table at which the column is shown; at least ten cells are left for bars.
    from: u16,
    width: u16,
    /// Right-aligned, for numbers.
    right: bool,
    text: ColumnText,
}

type ColumnText = fn(&Snapshot, &Stream, usize) -> String;

const fn column(title: &'static str, from: u16, width: u16, right: bool, text: ColumnText) -> Column {
    Column { title, from, width, right, text }
}

const COLUMNS: [Column; 8] = [
    column("model", 72, 16, false, model),
    column("route", 110, 18, false, |_, stream, width| numbers::name(&stream.route, width)),
    column("doing", 0, 10, false, |_, stream, width| numbers::name(&stream.doing, width)),
    column("age", 0, 7, true, |_, stream, _| numbers::time(stream.age_ms as f64)),
    column("waited", 88, 7, true, |_, stream, _| time(stream.waited_ms)),
    column("TTFT", 72, 7, true, |_, stream, _| time(stream.ttft_ms)),
    column("tokens", 0, 7, true, |_, stream, _| numbers::count(stream.tokens)),
    column("tok/s", 46, 6, true, |_, stream, _| numbers::or_unknown(stream.tokens_per_second, numbers::rate)),
];

impl Column {
    fn cell(&self, text: String) -> Cell<'static> {
        let text = Text::raw(text);
        Cell::from(if self.right { text.right_aligned() } else { text })
    }
}

fn time(ms: Option<u64>) -> String {
    numbers::or_unknown(ms.map(|ms| ms as f64), numbers::time)
}

fn model(snapshot: &Snapshot, stream: &Stream, width: usize) -> String {
    let named = stream.model.and_then(|place| snapshot.models.get(place));
    named.map_or_else(|| numbers::UNKNOWN.to_owned(), |name| numbers::name(name, width))
}

/// Renders the table in this area; its first row contains the column titles.
pub(super) fn render(snapshot: &Snapshot, view: View, glyphs: &Glyphs, area: Rect, buffer: &mut Buffer) {
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| area.width >= column.from).collect();
    let columns_width: u16 = columns.iter().map(|column| column.width + 1).sum();
    let bar_width = usize::from(area.width.saturating_sub(columns_width));
    let streams = view.sort.order(&snapshot.in_flight.streams);
    let shown = usize::from(area.height.saturating_sub(1));
    let offset = view.offset.min(streams.len().saturating_sub(shown));
    let visible = streams.get(offset..).unwrap_or_default();
    let visible = visible.get(..shown).unwrap_or(visible);
    let title = title(snapshot, view.sort.as_str(), offset, visible.len());
    // A title that does not fit is omitted.
    let title = if title.len() <= bar_width { title } else { String::new() };
    let titles = columns.iter().map(|column| column.cell(column.title.to_owned())).chain([title.into()]);
    let scale = Scale::of(snapshot);
    let rows = visible.iter().map(|stream| {
        let cells = columns.iter().map(|column| {
            let style = match column.title {
                "doing" => style(stream),
                "tok/s" => stream.tokens_per_second.map_or(Style::new(), |rate| chart::band(rate, &snapshot.reading).1),
                _ => Style::new(),
            };
            column.cell((column.text)(snapshot, stream, column.width.into())).style(style)
        });
        Row::new(cells.chain([Cell::from(bar(stream, bar_width, &scale, glyphs))]))
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width)).chain([Constraint::Fill(1)]);
    Table::new(rows, widths).header(Row::new(titles).style(FAINT)).render(area, buffer);
    if streams.is_empty()
        && let Some(row) = area.rows().nth(1)
    {
        Line::styled("No requests in flight.", FAINT).render(row, buffer);
    }
}

/// The title: which streams are shown, and in which order.
fn title(snapshot: &Snapshot, sort: &str, offset: usize, shown: usize) -> String {
    match (snapshot.in_flight.streams.len(), snapshot.in_flight.left_out) {
        (0, _) => String::new(),
        (all, 0) if shown >= all => format!("by {sort}"),
        (all, left_out) => {
            let all = numbers::count(all as u64 + left_out);
            format!("{}-{} of {all}, by {sort}", offset + 1, offset + shown)
        }
    }
}

fn style(stream: &Stream) -> Style {
    match stream.doing.as_ref() {
        "blocked" => WARN,
        "decode" => GOOD,
        _ => Style::new(),
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
fn bar(stream: &Stream, cells: usize, scale: &Scale, glyphs: &Glyphs) -> Span<'static> {
    if stream.tokens > 0 {
        let max = stream.max_tokens.filter(|max| *max > 0).unwrap_or(scale.tokens);
        let style = if stream.doing == "blocked" { WARN } else { ACCENT };
        return Span::styled(glyphs.bar(stream.tokens as f64 / max as f64, cells), style);
    }
    let share = stream.waited_ms.unwrap_or(0) as f64 / scale.wait as f64;
    let length = ((share * cells as f64).round() as usize).min(cells);
    Span::styled(glyphs.waiting.to_string().repeat(length), FAINT)
}
