//! Writes the values of a request record as JSON, for `tokometer replay --json`, the access log and `/requests`.

use serde_json::Value;

use tokometer_observe::measure::Record;
use tokometer_telemetry::fields::values;

/// A name and its value; an absent value is null.
pub(super) type Member = (&'static str, Value);

/// All values of a request.
pub(super) fn members(record: &Record) -> impl Iterator<Item = Member> {
    values(record).map(|(name, value)| (name, value.json()))
}

/// A JSON object with the members in this order.
pub(super) fn object(members: impl IntoIterator<Item = Member>) -> String {
    let members: Vec<String> = members.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    escaped(&format!("{{{}}}", members.join(",")))
}

/// Escapes characters that JSON leaves unescaped but terminals or other programs interpret: DEL, the control
/// characters U+0080 to U+009F (U+009B begins an escape sequence, U+0085 is a line break) and the line breaks U+2028
/// and U+2029.
pub(super) fn escaped(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => line.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => line.push(c),
        }
    }
    line
}

/// Text for a terminal: control characters and line breaks are escaped.
pub(crate) fn printable(text: &str) -> String {
    let is_safe = |c: &char| !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}');
    text.chars().map(|c| if is_safe(&c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}
