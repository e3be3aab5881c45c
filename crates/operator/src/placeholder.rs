//! Placeholders in braces, in the expressions of dashboards and rules.
//!
//! A placeholder is the name of a definition, or text that the caller expands, such as a metric's identifier in the
//! catalog. A brace after a name (`up{job="x"}`) begins a PromQL selector. Quoted text is not changed.

use std::collections::BTreeMap;

use tokometer_metrics::table::{Metric, TABLE};

/// Replacement texts by placeholder name.
pub(crate) type Definitions = BTreeMap<String, String>;

/// Maximum nesting depth of definitions: deeper nesting is a cycle.
const MAX_DEPTH: usize = 8;

/// Replaces the placeholders in `text`, and those in their definitions. `definitions` is searched in order; `other`
/// expands placeholders without a definition.
///
/// # Errors
/// The invalid placeholder, and why it is invalid.
pub(crate) fn expand(
    text: &str,
    definitions: &[&Definitions],
    other: fn(&str) -> Result<String, String>,
) -> Result<String, String> {
    expand_at(text, definitions, other, 0)
}

fn expand_at(
    text: &str,
    definitions: &[&Definitions],
    other: fn(&str) -> Result<String, String>,
    depth: usize,
) -> Result<String, String> {
    if depth > MAX_DEPTH {
        return Err(format!("`{text}` is defined by itself"));
    }
    let (mut out, mut rest) = (String::with_capacity(4 * text.len()), text);
    while let Some(at) = rest.find(['{', '"']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let is_selector = out.ends_with(|c: char| c.is_ascii_alphanumeric() || "_:".contains(c));
        rest = if from.starts_with('"') {
            let (quoted, after) = from.split_at(closed(from, '"')?);
            out.push_str(quoted);
            after
        } else if is_selector {
            out.push('{');
            from.split_at(1).1
        } else {
            let (placeholder, after) = from.split_at(closed(from, '}')?);
            let inside = placeholder.trim_matches(['{', '}']).trim();
            out.push_str(&match definitions.iter().find_map(|all| all.get(inside)) {
                Some(definition) => expand_at(definition, definitions, other, depth + 1)?,
                None => other(inside).map_err(|why| format!("{placeholder}: {why}"))?,
            });
            after
        };
    }
    out.push_str(rest);
    Ok(out)
}

/// Length of the text up to and including the closing mark. Marks within quotes do not count.
fn closed(text: &str, mark: char) -> Result<usize, String> {
    let mut quoted = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if c == mark && !quoted => return Ok(at + 1),
            '"' => quoted = !quoted,
            _ => {}
        }
    }
    Err(format!("`{text}` has no closing {mark}"))
}

/// The metric with this identifier in the catalog.
///
/// # Errors
/// If no metric has this identifier.
pub(crate) fn metric(id: &str) -> Result<&'static Metric, String> {
    let metric = TABLE.iter().find(|metric| format!("{:?}", metric.id) == id);
    metric.ok_or_else(|| format!("`{id}` is not the identifier of a metric"))
}
