//! User-written durations: `500ms`, `10s`, `2m`, `1h`.

use std::time::Duration;

/// Parses a number with at most three decimals and a unit (`1.5s`).
///
/// # Errors
///
/// A message that shows the valid form.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid duration `{text}`; write a number and a unit: 500ms, 10s, 2m or 1h");
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let digits = |text: &str, most: usize| text.len() <= most && text.bytes().all(|b| b.is_ascii_digit());
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || decimals.is_empty() || !digits(whole, 9) || !digits(decimals, 3) {
        return Err(wrong());
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// Parses a duration above zero.
///
/// # Errors
///
/// A message that shows the valid form.
pub fn positive(text: &str) -> Result<Duration, String> {
    let duration = parse(text)?;
    if duration.is_zero() { Err("must be above zero; write a duration such as 10s".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_by_their_unit() {
        let table = [("500ms", 500), ("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000), ("1.5s", 1_500), ("0s", 0)];
        for (text, milliseconds) in table {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_parses_or_fails_without_panic(text in "\\PC{0,20}|[0-9.]{0,12}(ms|s|m|h)") {
            drop(parse(&text));
        }
    }

    #[test]
    fn invalid_durations_show_the_valid_form() {
        for text in ["", "10", "s", "-1s", "1e3s", "10 s", "10d", "1.s", ".5s", "inf s", "1.2345s", "9999999999s", "ms"]
        {
            assert!(parse(text).unwrap_err().contains("10s"), "{text}");
        }
    }
}
