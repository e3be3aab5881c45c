//! Compact number formats.

/// Placeholder for an unknown value.
pub(super) const UNKNOWN: &str = "-";

/// A time in milliseconds: `7 ms`, `1.25 s`, `42 s`, `3m05s`, `2h03m`.
pub(super) fn time(ms: f64) -> String {
    let seconds = ms / 1e3;
    let whole = seconds as u64;
    match () {
        () if ms < 9.95 => format!("{ms:.1} ms"),
        () if ms < 999.5 => format!("{ms:.0} ms"),
        () if seconds < 9.995 => format!("{seconds:.2} s"),
        () if seconds < 99.95 => format!("{seconds:.1} s"),
        () if whole < 3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        () if whole < 86_400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        () => format!("{}d{:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

/// A value formatted by `text`, or the placeholder.
pub(super) fn or_unknown(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

/// A count: `1,204`.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate: `0.25`, `3.1`, `48`, `1,204`.
pub(super) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        small if small < 0.995 => format!("{small:.2}"),
        small if small < 9.95 => format!("{small:.1}"),
        whole => count(whole.round() as u64),
    }
}

/// A share: `63 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The time of day in UTC: `12:03:04`.
pub(super) fn clock(unix_ms: u64) -> String {
    let second = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// An external name, limited to `cells` cells. Characters that may not be one cell wide in every terminal become `?`.
pub(super) fn name(text: &str, cells: usize) -> String {
    let shown: Vec<char> = text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    if shown.len() <= cells {
        return shown.into_iter().collect();
    }
    // Keeps the end, because model names usually differ at the end.
    let kept = shown.len() - cells.saturating_sub(1);
    std::iter::once('~').chain(shown.into_iter().skip(kept)).take(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_three_digits() {
        let expected = [
            (0.0, "0.0 ms"),
            (9.94, "9.9 ms"),
            (9.96, "10 ms"),
            (999.4, "999 ms"),
            (999.6, "1.00 s"),
            (9_994.0, "9.99 s"),
            (42_000.0, "42.0 s"),
            (185_000.0, "3m05s"),
            (7_380_000.0, "2h03m"),
            (180_000_000.0, "2d02h"),
        ];
        for (ms, text) in expected {
            assert_eq!(time(ms), text);
        }
        assert_eq!((or_unknown(None, time), or_unknown(Some(1.0), rate)), ("-".into(), "1.0".into()));
    }

    #[test]
    fn counts_and_rates_are_short() {
        assert_eq!([0, 999, 1_204, 12_345_678].map(count), ["0", "999", "1,204", "12,345,678"]);
        assert_eq!([0.0, 0.254, 3.12, 9.96, 48.4, 1203.6].map(rate), ["0", "0.25", "3.1", "10", "48", "1,204"]);
        assert_eq!((percent(0.634), clock(86_400_000 + 43_384_000)), ("63 %".into(), "12:03:04".into()));
    }

    #[test]
    fn external_names_cannot_move_the_cursor() {
        assert_eq!(name("a\x1b[2Jb\u{4f60}", 20), "a?[2Jb?");
        assert_eq!(name("meta/llama-3.1-8b", 8), "~-3.1-8b");
        assert_eq!((name("abc", 1), name("abc", 0), name("abc", 3)), ("~".into(), String::new(), "abc".into()));
    }
}
