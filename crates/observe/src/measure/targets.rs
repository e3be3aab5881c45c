//! Latency targets and tenant of a request.

use std::time::Duration;

/// Targets of one request. They are evaluated, and affect neither labels nor traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Maximum time to first token: header `x-slo-ttft-ms` (llm-d inference scheduler, latencyslo/plugin.go).
    pub first_token: Option<Duration>,
    /// Maximum time per output token: header `x-slo-tpot-ms` (same source).
    pub per_token: Option<Duration>,
    /// Tenant from the configured header or claim, at most 128 bytes. It is as the client sent it, and only becomes a
    /// label by the rules for tenants.
    pub tenant: Option<Box<str>>,
}

impl Targets {
    /// Returns the targets, or `None` if none is set.
    pub fn said(self) -> Option<Box<Targets>> {
        (self != Targets::default()).then(|| Box::new(self))
    }

    /// Parses a header value: milliseconds, a number above 0, with or without a fraction.
    pub fn milliseconds(value: &[u8]) -> Option<Duration> {
        let text = std::str::from_utf8(value).ok()?.trim();
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number: f64 = text.parse().ok().filter(|number| plain && *number > 0.0)?;
        Duration::try_from_secs_f64(number / 1e3).ok().filter(|time| !time.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_accepts_only_positive_decimal_numbers() {
        let table = [
            ("200", Some(Duration::from_millis(200))),
            (" 12.5 ", Some(Duration::from_micros(12_500))),
            ("0", None),
            ("-1", None),
            ("1e3", None),
            ("inf", None),
            ("nan", None),
            ("", None),
            ("5s", None),
            ("99999999999999999999999999999999", None),
        ];
        for (text, expected) in table {
            assert_eq!(Targets::milliseconds(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(Targets::milliseconds(b"\xff"), None);
    }

    #[test]
    fn targets_without_values_are_none() {
        assert_eq!(Targets::default().said(), None);
        let tenant = Targets { tenant: Some("a".into()), ..Targets::default() };
        assert_eq!(tenant.clone().said(), Some(Box::new(tenant)));
    }
}
