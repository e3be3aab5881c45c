//! The screen as a widget of any size.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use crate::top::chart::{BAD, FAINT, Glyphs, join};
use crate::top::view::View;
use crate::top::{numbers, streams, summary};
use tokometer_telemetry::live::snapshot::Snapshot;

/// Minimum number of rows for streams, including the column titles, if other rows are shown.
const MIN_STREAM_ROWS: u16 = 4;

/// The contents of a screen.
#[derive(Clone, Copy, Debug)]
pub struct Screen<'a> {
    /// The latest snapshot, if any.
    pub snapshot: Option<&'a Snapshot>,
    /// The admin server's address.
    pub admin: &'a str,
    /// Why there is no newer snapshot.
    pub error: Option<&'a str>,
    /// The user's choices.
    pub view: View,
    /// The characters to draw with.
    pub glyphs: Glyphs,
    /// Use colours.
    pub colour: bool,
}

/// Vertical division of the space between header and footer.
struct Sections {
    summary: Vec<Line<'static>>,
    rule: bool,
    /// Rows of the table, including the column titles.
    streams: u16,
}

impl Screen<'_> {
    fn sections(&self, snapshot: &Snapshot, area: Rect) -> Sections {
        let body = area.height.saturating_sub(2);
        let room = body.saturating_sub(MIN_STREAM_ROWS.min(body / 2));
        let mut summary = summary::rows(snapshot, self.view.slow, &self.glyphs, area.width, area.height);
        summary.truncate(room.into());
        let left = body - u16::try_from(summary.len()).unwrap_or(body);
        let rule = left > MIN_STREAM_ROWS;
        Sections { summary, rule, streams: left - u16::from(rule) }
    }

    /// Number of streams shown at this size.
    pub(super) fn streams_shown(&self, area: Rect) -> usize {
        let rows = self.snapshot.map_or(0, |snapshot| self.sections(snapshot, area).streams);
        usize::from(rows.saturating_sub(1))
    }

    fn header(&self, width: u16) -> Line<'static> {
        let mut parts = vec!["tokometer top".to_owned()];
        parts.extend(self.view.paused.then(|| "PAUSED".to_owned()));
        if let Some(snapshot) = self.snapshot {
            parts.extend(snapshot.draining.then(|| "DRAINING".to_owned()));
            parts.push(format!("{} UTC", numbers::clock(snapshot.made_unix_ms)));
        }
        parts.push(self.admin.to_owned());
        if let Some(snapshot) = self.snapshot {
            parts.push(format!("up {}", numbers::time(snapshot.uptime_seconds * 1e3)));
            parts.push(numbers::name(&snapshot.version, 20));
        }
        join(parts.into_iter().map(Span::raw), width)
    }

    fn footer(&self, width: u16) -> Line<'_> {
        match (self.error, self.snapshot) {
            (Some(error), _) => Line::styled(error, BAD),
            (None, None) => Line::styled("Waiting for the first snapshot.", FAINT),
            (None, Some(_)) => {
                let keys = ["q quit", "p pause", "s sort", "up/down scroll", "left/right slowest"];
                join(keys.into_iter().map(|key| Span::styled(key, FAINT)), width)
            }
        }
    }

    /// The screen as text without escape codes, without the footer and the empty rows above it.
    pub fn text(&self, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        self.render(area, &mut buffer);
        let rows = buffer.content.chunks(width.max(1).into());
        let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned());
        let rows: Vec<String> = rows.take(height.saturating_sub(1).into()).collect();
        rows.join("\n").trim_end().to_owned()
    }
}

impl Widget for &Screen<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let mut rows = area.rows();
        let Some(top) = rows.next() else { return };
        self.header(area.width).render(top, buffer);
        buffer.set_style(top, Modifier::REVERSED);
        if let Some(bottom) = rows.next_back() {
            self.footer(area.width).render(bottom, buffer);
        }
        if let Some(snapshot) = self.snapshot {
            let sections = self.sections(snapshot, area);
            for (line, row) in sections.summary.iter().zip(rows.by_ref().take(sections.summary.len())) {
                line.render(row, buffer);
            }
            if sections.rule
                && let Some(row) = rows.next()
            {
                Line::styled(self.glyphs.rule.to_string().repeat(row.width.into()), FAINT).render(row, buffer);
            }
            if let Some(first) = rows.next() {
                streams::render(snapshot, self.view, &self.glyphs, Rect { height: sections.streams, ..first }, buffer);
            }
        }
        if !self.colour {
            buffer.content.iter_mut().for_each(|cell| _ = cell.set_fg(Color::Reset));
        }
    }
}
