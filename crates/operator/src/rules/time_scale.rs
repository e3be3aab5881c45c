//! Time scaling of rules for trials.

use crate::rules::rule::Group;

/// Seconds per day, as written in expressions that compute the time of day.
const DAY: &str = "86400";

/// Milliseconds per PromQL duration unit.
const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("w", 604_800_000)];

/// Divides every window, wait and interval of these groups. Names, labels and texts keep the original values, so that
/// dashboards still find the series.
pub(super) fn accelerate(groups: &mut [Group], scale: u32) {
    if scale <= 1 {
        return;
    }
    for group in groups {
        group.interval = shorter(&group.interval, scale);
        for rule in &mut group.rules {
            rule.expr = expression(&rule.expr, scale);
            for wait in [&mut rule.pending, &mut rule.keep_firing_for].into_iter().flatten() {
                *wait = shorter(wait, scale);
            }
        }
    }
}

/// Divides the durations in brackets (`[1h]`, `[10m:30s]`) and after `offset`, and [`DAY`] in an expression. Quoted text is not changed.
fn expression(text: &str, scale: u32) -> String {
    let day = DAY.parse::<f64>().map(|seconds| format!("{}", seconds / f64::from(scale)));
    let day = day.unwrap_or_else(|_| DAY.to_owned());
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(['[', '"']) {
        let (before, from) = rest.split_at(at);
        out.push_str(&offsets(&before.replace(DAY, &day), scale));
        let close = if from.starts_with('[') { ']' } else { '"' };
        let end = from.get(1..).and_then(|inside| inside.find(close)).map_or(from.len(), |end| end + 2);
        let (inside, after) = from.split_at(end);
        if close == ']' {
            let range = inside.trim_matches(['[', ']']).split(':').map(|part| shorter(part, scale));
            out.push_str(&format!("[{}]", range.collect::<Vec<_>>().join(":")));
        } else {
            out.push_str(inside);
        }
        rest = after;
    }
    out.push_str(&offsets(&rest.replace(DAY, &day), scale));
    out
}

/// Divides the durations after `offset` in unquoted text.
fn offsets(text: &str, scale: u32) -> String {
    let mut parts = text.split(" offset ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
        let (duration, rest) = part.split_at(end);
        out.push_str(&format!(" offset {}{rest}", shorter(duration, scale)));
    }
    out
}

/// Divides a duration with one unit: in seconds if the result is whole, otherwise in milliseconds; at least 1 ms.
fn shorter(text: &str, scale: u32) -> String {
    let unit = UNITS.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?.parse::<u64>().ok()?, ms)));
    let Some((number, ms)) = unit else { return text.to_owned() };
    let ms = (number.saturating_mul(*ms) / u64::from(scale)).max(1);
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_divided_and_never_zero() {
        for (text, scale, expected) in [
            ("5m", 60, "5s"),
            ("1h", 60, "60s"),
            ("30s", 20, "1500ms"),
            ("30d", 60, "43200s"),
            ("500ms", 10, "50ms"),
            ("1ms", 60, "1ms"),
            ("5x", 60, "5x"),
        ] {
            assert_eq!(shorter(text, scale), expected, "{text} by {scale}");
        }
    }

    #[test]
    fn brackets_are_scaled_and_names_kept() {
        let text = r#"a{b=" offset 5m"} offset 60m or b offset 1h"#;
        assert_eq!(expression(text, 60), r#"a{b=" offset 5m"} offset 60s or b offset 60s"#);
        let text = r#"deriv(slo:sli_error:ratio_rate1h{a="[1h] 86400"}[10m:30s]) > 0 and time() % 86400 > rate(x[1d])"#;
        let expected =
            r#"deriv(slo:sli_error:ratio_rate1h{a="[1h] 86400"}[10s:500ms]) > 0 and time() % 1440 > rate(x[1440s])"#;
        assert_eq!(expression(text, 60), expected);
        assert_eq!(expression("a[1h", 60), "a[60s]");
    }
}
