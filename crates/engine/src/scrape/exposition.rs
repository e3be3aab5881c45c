//! Parses a page of metrics line by line in fixed memory: the Prometheus text format 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>) and OpenMetrics 1.0.0
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).
//!
//! Only samples are parsed. Comments, including types, are skipped: the table of names implies the types, and the names
//! in type comments vary (in vLLM, only the Python front end includes `_total`). Text after a value (a timestamp, an
//! exemplar) is ignored. Quoted names, which occur only if the client requests UTF-8, are not parsed as samples.

/// Maximum length of a line in bytes. The longest lines of real pages have a few hundred bytes; longer lines than this
/// are skipped and counted.
pub const LINE_BYTES: usize = 8 * 1024;

/// The value of one series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The name as on the page, including suffixes such as `_total` and `_sum`.
    pub name: &'a [u8],
    /// The labels of the series.
    pub labels: Labels<'a>,
    /// The value; may be infinite or NaN.
    pub value: f64,
}

/// The labels of a sample, in the order of the page: an iterator over names and values. Values are not unescaped: `\"`,
/// `\\` and `\n` are two bytes each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Labels<'a>(&'a [u8]);

impl<'a> Labels<'a> {
    /// The value of a label; `None` when the sample has no such label.
    pub fn get(mut self, name: &[u8]) -> Option<&'a [u8]> {
        self.find(|(own, _)| *own == name).map(|(_, value)| value)
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (label, rest) = label(self.0)?;
        self.0 = rest;
        Some(label)
    }
}

/// Numbers of lines of a page, without empty lines and comments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Samples.
    pub samples: u64,
    /// Lines that are not samples.
    pub malformed: u64,
    /// Lines longer than [`LINE_BYTES`].
    pub too_long: u64,
}

/// Parses a page that arrives in arbitrary pieces.
#[derive(Debug, Default)]
pub struct Parser {
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    /// The current line is too long, so it is skipped.
    skipping: bool,
    lines: Lines,
}

impl Parser {
    /// Parses the next piece and calls `each` for the samples that it completes.
    pub fn feed(&mut self, mut piece: &[u8], each: &mut impl FnMut(&Sample<'_>)) {
        while let Some(end) = memchr::memchr(b'\n', piece) {
            let (head, tail) = piece.split_at(end);
            self.end_line(head, each);
            piece = tail.get(1..).unwrap_or_default();
        }
        if self.skipping || self.line.len() + piece.len() > LINE_BYTES {
            self.skipping = true;
            self.line.clear();
        } else {
            self.line.extend_from_slice(piece);
        }
    }

    /// Ends the page, which may lack a final newline.
    pub fn finish(mut self, each: &mut impl FnMut(&Sample<'_>)) -> Lines {
        self.end_line(b"", each);
        self.lines
    }

    fn end_line(&mut self, head: &[u8], each: &mut impl FnMut(&Sample<'_>)) {
        if self.skipping || self.line.len() + head.len() > LINE_BYTES {
            self.lines.too_long += 1;
        } else if self.line.is_empty() {
            // Most lines arrive whole and are parsed in place.
            read(head, &mut self.lines, each);
        } else {
            self.line.extend_from_slice(head);
            read(&self.line, &mut self.lines, each);
        }
        self.line.clear();
        self.skipping = false;
    }
}

fn read(line: &[u8], lines: &mut Lines, each: &mut impl FnMut(&Sample<'_>)) {
    let line = line.trim_ascii();
    if line.is_empty() || line.starts_with(b"#") {
        return;
    }
    match sample(line) {
        Some(sample) => {
            lines.samples += 1;
            each(&sample);
        }
        None => lines.malformed += 1,
    }
}

fn sample(line: &[u8]) -> Option<Sample<'_>> {
    let (name, rest) = name(line, b":")?;
    let rest = rest.trim_ascii_start();
    let (labels, rest) = match rest.strip_prefix(b"{") {
        Some(rest) => label_set(rest)?,
        // Without labels, whitespace separates name and value.
        None if rest.len() + name.len() == line.len() => return None,
        None => (Labels::default(), rest),
    };
    let rest = rest.trim_ascii_start();
    let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
    let value = std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// Parses a leading name. `more`: allowed bytes other than letters, digits and `_`.
fn name<'a>(text: &'a [u8], more: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || more.contains(byte);
    let end = text.iter().position(|byte| !in_name(byte)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    name.first().filter(|first| !first.is_ascii_digit()).map(|_| (name, rest))
}

/// Validates the labels up to the closing brace; returns the labels and the remaining text.
fn label_set(text: &[u8]) -> Option<(Labels<'_>, &[u8])> {
    let mut rest = text;
    loop {
        let next = rest.trim_ascii_start();
        if let Some(after) = next.strip_prefix(b"}") {
            let length = text.len() - next.len();
            return Some((Labels(text.get(..length)?), after));
        }
        (_, rest) = label(next)?;
    }
}

/// Parses a leading `name="value"` with an optional comma after it.
#[allow(clippy::type_complexity, reason = "a label and the remaining text")]
fn label(text: &[u8]) -> Option<((&[u8], &[u8]), &[u8])> {
    let (name, rest) = name(text.trim_ascii_start(), b"")?;
    let rest = rest.trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start().strip_prefix(b"\"")?;
    let mut end = 0;
    loop {
        match rest.get(end)? {
            b'"' => break,
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    let (value, rest) = rest.split_at(end);
    let rest = rest.get(1..)?.trim_ascii_start();
    match rest.strip_prefix(b",") {
        Some(rest) => Some(((name, value), rest)),
        None if rest.is_empty() || rest.starts_with(b"}") => Some(((name, value), rest)),
        None => None,
    }
}
