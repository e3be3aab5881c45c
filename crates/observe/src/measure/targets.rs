//! What a request said of how fast its answer should be, and whose request it is.

use std::time::Duration;

/// Targets of one request. They are judged, and change nothing else: neither labels nor the traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Longest wait for the first token: the header `x-slo-ttft-ms` (llm-d inference scheduler, latencyslo/plugin.go).
    pub first_token: Option<Duration>,
    /// Longest time per output token: the header `x-slo-tpot-ms` (the same).
    pub per_token: Option<Duration>,
    /// Whose request it is: what a header or the claim that the settings name says, at most 128 bytes. It is as the client
    /// wrote it, and becomes a label by the rules for tenants alone.
    pub tenant: Option<Box<str>>,
}

impl Targets {
    /// These, unless nothing was said.
    pub fn said(self) -> Option<Box<Targets>> {
        (self != Targets::default()).then(|| Box::new(self))
    }

    /// A time out of a header's value: milliseconds, a number above 0, with or without a fraction.
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
    fn a_time_is_a_number_of_milliseconds_above_zero() {
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
    fn nothing_said_takes_no_room() {
        assert_eq!(Targets::default().said(), None);
        let tenant = Targets { tenant: Some("a".into()), ..Targets::default() };
        assert_eq!(tenant.clone().said(), Some(Box::new(tenant)));
    }
}
