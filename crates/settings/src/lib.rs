//! Text forms of settings, for modules that derive serde and schemars on their settings.
//!
//! Durations and sizes have a unit: [`Duration`], [`Size`]. A field of another type declares its written form:
//! `#[serde(with = "tokometer_settings::written")]` and `#[schemars(with = "Duration")]`.

pub mod duration;
mod file;

pub use file::FileVersion;

use std::str::FromStr;
use std::{fmt, time};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration: `500ms`, `10s`, `2m`, `1h`, or `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value", into = "String")]
pub struct Duration(pub time::Duration);

/// A size: `512B`, `64KiB`, `8MiB`, `1GiB`, or `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value", into = "String")]
pub struct Size(pub u64);

const DURATIONS: [(&str, u128); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

const SIZES: [(&str, u128); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Duration {
    /// A duration of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Duration {
        Duration(time::Duration::from_millis(millis))
    }

    /// `None` for zero, which means no limit.
    pub fn unless_zero(self) -> Option<time::Duration> {
        (!self.0.is_zero()).then_some(self.0)
    }
}

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Duration, String> {
        let duration = if text == "0" { time::Duration::ZERO } else { duration::parse(text)? };
        let whole = duration.subsec_nanos().is_multiple_of(1_000_000);
        if whole { Ok(Duration(duration)) } else { Err(format!("`{text}` is not a whole number of milliseconds")) }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        if text == "0" {
            return Ok(Size(0));
        }
        let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
        let unit = SIZES.iter().find(|(name, _)| *name == unit).and_then(|(_, bytes)| u64::try_from(*bytes).ok());
        let bytes = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        bytes.map(Size).ok_or_else(|| format!("invalid size `{text}`; write a number and a unit: 64KiB, 8MiB or 1GiB"))
    }
}

/// Writes the amount in the largest unit that needs no fraction.
fn whole(f: &mut fmt::Formatter<'_>, amount: u128, units: &[(&str, u128)], zero: &str) -> fmt::Result {
    match units.iter().find(|(_, unit)| amount > 0 && amount.is_multiple_of(*unit)) {
        Some((name, unit)) => write!(f, "{}{name}", amount / unit),
        None => f.write_str(zero),
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        whole(f, self.0.as_millis(), &DURATIONS, "0s")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        whole(f, self.0.into(), &SIZES, "0B")
    }
}

macro_rules! text_form {
    ($type:ident, $unit:literal, $pattern:literal) => {
        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }

        impl TryFrom<serde_json::Value> for $type {
            type Error = String;

            fn try_from(value: serde_json::Value) -> Result<$type, String> {
                value.as_str().map_or_else(|| value.to_string().parse(), str::parse)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $unit.into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "x-unit": $unit, "pattern": $pattern })
            }
        }
    };
}

text_form!(Duration, "duration", r"^(0|[0-9]+(\.[0-9]{1,3})?(ms|s|m|h))$");
text_form!(Size, "size", "^(0|[0-9]+(B|KiB|MiB|GiB))$");

/// A type that is written in another form in settings.
pub trait Written: Sized {
    /// The written form.
    type Form: Serialize + serde::de::DeserializeOwned;

    /// Converts this value to its form.
    fn form(&self) -> Self::Form;

    /// Converts a form to the value.
    fn of_form(form: Self::Form) -> Self;
}

macro_rules! written {
    ($($type:ty as $form:ty: $to:expr, $from:expr;)*) => {
        $(impl Written for $type {
            type Form = $form;

            fn form(&self) -> $form {
                $to(*self)
            }

            fn of_form(form: $form) -> $type {
                $from(form)
            }
        })*
    };
}

// `None` (no limit) is written as 0.
written! {
    time::Duration as Duration: Duration, |form: Duration| form.0;
    Option<time::Duration> as Duration: |value: Option<_>| Duration(value.unwrap_or_default()), Duration::unless_zero;
    Option<usize> as u64: |value: Option<usize>| value.unwrap_or(0) as u64, |form| usize::try_from(form).ok().filter(|size| *size > 0);
    Option<u64> as u64: Option::unwrap_or_default, |form| Some(form).filter(|form| *form > 0);
}

/// The conversions for `#[serde(with = "tokometer_settings::written")]`.
pub mod written {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::Written;

    /// Serializes the form of the value.
    ///
    /// # Errors
    ///
    /// The serializer's errors.
    pub fn serialize<T: Written, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        value.form().serialize(serializer)
    }

    /// Deserializes the form and converts it.
    ///
    /// # Errors
    ///
    /// The errors of deserializing the form.
    pub fn deserialize<'de, T: Written, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        T::Form::deserialize(deserializer).map(T::of_form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_shown_with_their_unit() {
        for (text, shown, millis) in [
            ("500ms", "500ms", 500),
            ("90s", "90s", 90_000),
            ("120s", "2m", 120_000),
            ("1.5s", "1500ms", 1500),
            ("0", "0s", 0),
        ] {
            let duration: Duration = text.parse().unwrap();
            assert_eq!((duration.to_string().as_str(), duration), (shown, Duration::from_millis(millis)), "{text}");
        }
        for (text, shown, bytes) in
            [("8MiB", "8MiB", 8 << 20), ("2048KiB", "2MiB", 2 << 20), ("512B", "512B", 512), ("0", "0B", 0)]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.to_string().as_str(), size), (shown, Size(bytes)), "{text}");
        }
    }

    #[test]
    fn limit_that_is_off_is_written_as_zero() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Limits {
            #[serde(with = "crate::written")]
            time: Option<time::Duration>,
            #[serde(with = "crate::written")]
            size: Option<usize>,
            #[serde(with = "crate::written")]
            rate: Option<u64>,
        }
        let off = Limits { time: None, size: None, rate: None };
        let on = Limits { time: Some(time::Duration::from_secs(90)), size: Some(3), rate: Some(7) };
        for (limits, json) in [
            (off, serde_json::json!({"time": "0s", "size": 0, "rate": 0})),
            (on, serde_json::json!({"time": "90s", "size": 3, "rate": 7})),
        ] {
            assert_eq!(serde_json::to_value(&limits).unwrap(), json);
            assert_eq!(serde_json::from_value::<Limits>(json).unwrap(), limits);
        }
    }

    #[test]
    fn numbers_without_a_unit_are_invalid() {
        for text in ["", "10", "8 MiB", "MiB", "8mib", "1.5MiB", "99999999999GiB"] {
            assert!(text.parse::<Size>().unwrap_err().contains("8MiB"), "{text}");
        }
        assert!("10".parse::<Duration>().unwrap_err().contains("10s"));
        assert!("0.5ms".parse::<Duration>().unwrap_err().contains("whole number of milliseconds"));
    }
}
