//! What a person may set about a verification.

use std::fmt;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::client::Target;

/// The API that the canaries ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// OpenAI chat completions.
    #[default]
    Chat,
    /// OpenAI completions, for models without a chat template.
    Completions,
}

impl Api {
    /// Every API with its name.
    pub const NAMES: &[(&str, Api)] = &[("chat", Api::Chat), ("completions", Api::Completions)];
}

impl FromStr for Api {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Api, UnknownName> {
        named(Api::NAMES, text)
    }
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// Both ways lead to the server.
    Reach,
    /// The relay adds no time that matters.
    Latency,
    /// Answers are the same, byte for byte where they can be.
    Bytes,
    /// The engine tells the tokens of a stream whose client did not ask for them.
    Usage,
    /// The engine tells how long a request waited.
    Queue,
    /// The admin server counted what was sent.
    Counts,
    /// The server can be reached by the relay alone.
    Bypass,
}

impl CheckName {
    /// Every check with its name.
    pub const NAMES: &[(&str, CheckName)] = &[
        ("reach", CheckName::Reach),
        ("latency", CheckName::Latency),
        ("bytes", CheckName::Bytes),
        ("usage", CheckName::Usage),
        ("queue", CheckName::Queue),
        ("counts", CheckName::Counts),
        ("bypass", CheckName::Bypass),
    ];
}

impl fmt::Display for CheckName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(CheckName::NAMES.iter().find(|(_, name)| name == self).map_or("", |(text, _)| text))
    }
}

impl FromStr for CheckName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<CheckName, UnknownName> {
        named(CheckName::NAMES, text)
    }
}

/// A name that nothing has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write one of {known}")]
pub struct UnknownName {
    known: String,
}

fn named<T: Copy>(names: &[(&str, T)], text: &str) -> Result<T, UnknownName> {
    let known = || names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| UnknownName { known: known() })
}

/// A verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where clients connect.
    pub relay: Target,
    /// Where the server is.
    pub upstream: Target,
    /// Where the relay's admin server is.
    pub admin: Target,
    /// A person named the admin server: that it does not answer is wrong then, and else only unknown.
    pub admin_is_named: bool,
    /// The model to ask; `None` for the first that `/v1/models` lists.
    pub model: Option<String>,
    /// The API to ask.
    pub api: Api,
    /// Canaries on each of the two ways.
    pub requests: u32,
    /// Most tokens of each answer.
    pub max_tokens: u32,
    /// Further request headers, such as `Authorization`.
    pub headers: Vec<(String, String)>,
    /// Longest that one answer may take.
    pub timeout: Duration,
    /// Most time that the relay may add to the median time to the first byte, to the first token and between tokens.
    pub most_added: Duration,
    /// Checks that may fail.
    pub accept: Vec<CheckName>,
    /// Addresses of this host at which the server is looked for; `None` for those that it has beside loopback.
    pub own_addresses: Option<Vec<IpAddr>>,
}

impl Settings {
    /// The defaults, for these two addresses.
    pub fn of(relay: Target, upstream: Target) -> Settings {
        Settings {
            relay,
            upstream,
            admin: Target::from(SocketAddr::from(([127, 0, 0, 1], 9464))),
            admin_is_named: false,
            model: None,
            api: Api::Chat,
            requests: 20,
            max_tokens: 32,
            headers: Vec::new(),
            timeout: Duration::from_secs(60),
            most_added: Duration::from_millis(5),
            accept: Vec::new(),
            own_addresses: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_from_what_they_are_written_as() {
        for (text, name) in CheckName::NAMES {
            assert_eq!((text.parse(), name.to_string().as_str()), (Ok(*name), *text));
        }
        assert_eq!("completions".parse(), Ok(Api::Completions));
        assert_eq!("x".parse::<Api>().unwrap_err().to_string(), "write one of chat, completions");
    }
}
