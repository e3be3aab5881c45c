//! What can go wrong on demand.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A fault that befalls one request. Written as `NAME` or `NAME:ARG`, see [`Fault::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// An error answer with this status instead of a stream.
    Status(u16),
    /// After so many token events an error event, `[DONE]` and a clean end: what vLLM's chat sends when its engine dies.
    ErrorEvent(u32),
    /// After so many token events the connection is closed without the terminating chunk.
    Cut(u32),
    /// After so many token events the connection is reset.
    Reset(u32),
    /// A silence of this length in mid-stream.
    Stall(Duration),
    /// A silence of this length between the headers and the first token; `None` until the client leaves.
    Hang(Option<Duration>),
    /// The stream ends cleanly but without `[DONE]`.
    NoDone,
    /// 200, an event stream, and a clean end without one event: what llama-cpp-python sends for a prompt too long.
    Empty,
    /// The headers come late by this much.
    SlowHeaders(Duration),
    /// After so many token events one event that is no JSON; the stream goes on.
    BadJson(u32),
    /// An answer that is no HTTP, then the end of the connection.
    Garbage,
}

/// Token events before a fault in mid-stream, if none are named.
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

    /// After how many token events it strikes, for the faults that strike in mid-stream.
    pub(crate) fn after(self) -> Option<u32> {
        match self {
            Fault::ErrorEvent(after) | Fault::Cut(after) | Fault::Reset(after) | Fault::BadJson(after) => Some(after),
            Fault::Stall(_) => Some(AFTER),
            _ => None,
        }
    }
}

/// A fault that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no fault is called {text:?}; there are: {}", Fault::NAMES.join(", "))]
pub struct UnknownFault {
    text: String,
}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Fault, UnknownFault> {
        let unknown = || UnknownFault { text: text.to_owned() };
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        let events = || argument.map_or(Ok(AFTER), |argument| argument.parse().map_err(|_| unknown()));
        let time = |default| match argument {
            None => Ok(default),
            Some(argument) => {
                let seconds = argument.parse().map_err(|_| unknown())?;
                Duration::try_from_secs_f64(seconds).map_err(|_| unknown())
            }
        };
        Ok(match name {
            "status" => match argument.and_then(|argument| argument.parse().ok()) {
                Some(status @ 400..=599) => Fault::Status(status),
                _ => return Err(unknown()),
            },
            "error-event" => Fault::ErrorEvent(events()?),
            "cut" => Fault::Cut(events()?),
            "reset" => Fault::Reset(events()?),
            "stall" => Fault::Stall(time(Duration::from_secs(5))?),
            "hang" if argument.is_none() => Fault::Hang(None),
            "hang" => Fault::Hang(Some(time(Duration::ZERO)?)),
            "no-done" if argument.is_none() => Fault::NoDone,
            "empty" if argument.is_none() => Fault::Empty,
            "slow-headers" => Fault::SlowHeaders(time(Duration::from_secs(2))?),
            "bad-json" => Fault::BadJson(events()?),
            "garbage" if argument.is_none() => Fault::Garbage,
            _ => return Err(unknown()),
        })
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
    fn every_fault_is_read_back_from_what_it_is_written_as() {
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
    fn an_unknown_fault_is_refused_with_the_names_there_are() {
        for text in ["", "explode", "status", "status:200", "stall:-1", "stall:x", "cut:-1", "empty:1"] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains("slow-headers[:SECONDS]"), "{text:?}: {error}");
        }
    }
}
