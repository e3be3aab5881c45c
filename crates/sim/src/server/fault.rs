//! Faults that can be injected.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

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
    /// A pause of this length between the headers and the first token; `None` until the client disconnects.
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

/// An unknown fault name or a bad argument.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown fault {text:?}; expected one of: {}", Fault::NAMES.join(", "))]
pub struct UnknownFault {
    text: String,
}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Fault, UnknownFault> {
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
        fault.ok_or_else(|| UnknownFault { text: text.to_owned() })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Status(status) => write!(f, "status:{status}"),
            Fault::ErrorEvent(after) => write!(f, "error-event:{after}"),
            Fault::Cut(after) => write!(f, "cut:{after}"),
            Fault::Reset(after) => write!(f, "reset:{after}"),
            Fault::Stall(time) => write!(f, "stall:{}", time.as_secs_f64()),
            Fault::Hang(None) => f.write_str("hang"),
            Fault::Hang(Some(time)) => write!(f, "hang:{}", time.as_secs_f64()),
            Fault::NoDone => f.write_str("no-done"),
            Fault::Empty => f.write_str("empty"),
            Fault::SlowHeaders(time) => write!(f, "slow-headers:{}", time.as_secs_f64()),
            Fault::BadJson(after) => write!(f, "bad-json:{after}"),
            Fault::Garbage => f.write_str("garbage"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_parses_back_from_its_text() {
        for name in Fault::NAMES {
            let plain = name.split(['[', ':']).next().unwrap();
            let text = match *name {
                "status:CODE" => "status:503".to_owned(),
                _ if name.ends_with("EVENTS]") => format!("{plain}:7"),
                _ if name.ends_with("SECONDS]") => format!("{plain}:1.5"),
                _ => plain.to_owned(),
            };
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
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
