//! Faults that can be injected.

use std::str::FromStr;
use std::time::Duration;

use crate::names::UnknownName;

/// A response that is not HTTP.
pub(crate) const GARBAGE: &[u8] = b"\x16\x03\x01\x00\xff this is no HTTP\n\x00\n";

/// A fault of one request. Written as `NAME` or `NAME:ARG`, see [`Fault::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// An error response with this status instead of a stream.
    Status(u16),
    /// After this many token events: an error event, `[DONE]` and a clean end, as vLLM's chat sends when its engine
    /// dies.
    ErrorEvent(u32),
    /// After this many token events: the connection closes without the terminating chunk.
    Cut(u32),
    /// After this many token events: the connection is reset.
    Reset(u32),
    /// A pause of this length in mid-stream.
    Stall(Duration),
    /// A pause of this length between the headers and the first token. `None`: until the client disconnects.
    Hang(Option<Duration>),
    /// The stream ends cleanly but without `[DONE]`.
    NoDone,
    /// 200, an event stream, and a clean end without an event, as llama-cpp-python sends for a prompt that is too long.
    Empty,
    /// The headers are delayed by this much.
    SlowHeaders(Duration),
    /// After this many token events: one event that is not valid JSON; the stream continues.
    BadJson(u32),
    /// A response that is not HTTP, then the connection closes.
    Garbage,
}

/// Default number of token events before a mid-stream fault.
const AFTER: u32 = 3;

impl Fault {
    /// Every name with its argument, for help texts.
    pub const NAMES: &[&str] = &[
        "status:CODE",
        "error-event[:EVENTS]",
        "cut[:EVENTS]",
        "reset[:EVENTS]",
        "stall[:SECONDS]",
        "hang[:SECONDS]",
        "no-done",
        "empty",
        "slow-headers[:SECONDS]",
        "bad-json[:EVENTS]",
        "garbage",
    ];

    /// Number of token events before the fault, for mid-stream faults.
    pub(crate) fn after(self) -> Option<u32> {
        match self {
            Fault::ErrorEvent(after) | Fault::Cut(after) | Fault::Reset(after) | Fault::BadJson(after) => Some(after),
            Fault::Stall(_) => Some(AFTER),
            _ => None,
        }
    }
}

impl FromStr for Fault {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Fault, UnknownName> {
        let (name, argument) = text.split_once(':').map_or((text, None), |(name, argument)| (name, Some(argument)));
        let events = || argument.map_or(Some(AFTER), |argument| argument.parse().ok());
        let time = |default| match argument {
            None => Some(Duration::from_secs(default)),
            Some(argument) => Duration::try_from_secs_f64(argument.parse().ok()?).ok(),
        };
        let fault = match (name, argument) {
            ("status", Some(code)) => code.parse().ok().filter(|code| (400..=599).contains(code)).map(Fault::Status),
            ("error-event", _) => events().map(Fault::ErrorEvent),
            ("cut", _) => events().map(Fault::Cut),
            ("reset", _) => events().map(Fault::Reset),
            ("stall", _) => time(5).map(Fault::Stall),
            ("hang", None) => Some(Fault::Hang(None)),
            ("hang", Some(_)) => time(0).map(|time| Fault::Hang(Some(time))),
            ("no-done", None) => Some(Fault::NoDone),
            ("empty", None) => Some(Fault::Empty),
            ("slow-headers", _) => time(2).map(Fault::SlowHeaders),
            ("bad-json", _) => events().map(Fault::BadJson),
            ("garbage", None) => Some(Fault::Garbage),
            _ => None,
        };
        fault.ok_or_else(|| UnknownName::new("fault", text, Fault::NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_parsed_with_its_argument() {
        let (short, two) = (Duration::from_millis(1500), Duration::from_secs(2));
        let expected = [
            ("status:503", Fault::Status(503)),
            ("error-event:7", Fault::ErrorEvent(7)),
            ("cut", Fault::Cut(AFTER)),
            ("reset:7", Fault::Reset(7)),
            ("stall:1.5", Fault::Stall(short)),
            ("hang", Fault::Hang(None)),
            ("hang:1.5", Fault::Hang(Some(short))),
            ("no-done", Fault::NoDone),
            ("empty", Fault::Empty),
            ("slow-headers", Fault::SlowHeaders(two)),
            ("bad-json:7", Fault::BadJson(7)),
            ("garbage", Fault::Garbage),
        ];
        for (text, fault) in expected {
            assert_eq!(text.parse(), Ok(fault));
        }
        for name in Fault::NAMES {
            let name = name.split(['[', ':']).next().unwrap();
            assert!(expected.iter().any(|(text, _)| text.starts_with(name)), "{name}");
        }
    }

    #[test]
    fn unknown_fault_error_lists_the_valid_names() {
        for text in ["", "explode", "status", "status:200", "stall:-1", "stall:x", "cut:-1", "empty:1"] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains("slow-headers[:SECONDS]"), "{text:?}: {error}");
        }
    }
}
