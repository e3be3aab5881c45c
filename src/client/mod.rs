//! A plain HTTP/1.1 client for commands: one request after another, with every byte and its arrival time recorded.
//!
//! The client uses no code of the data path, so that it can check the relay independently.

mod caller;
mod connection;
mod health;
mod recording;
mod target;

pub(crate) use recording::{Event, header_of};

pub use caller::Caller;
pub use connection::Failure;
pub use health::{HealthCheck, Url};
pub use recording::Recording;
pub use target::Target;

use http::{HeaderName, HeaderValue};

/// A parser of headers in command lines, `NAME: VALUE`. The error message contains this example.
pub(crate) fn header_like(
    example: &'static str,
) -> impl Fn(&str) -> Result<(HeaderName, HeaderValue), String> + Clone + Send + Sync {
    move |text| {
        let header = text.split_once(':').and_then(|(name, value)| {
            Some((HeaderName::try_from(name.trim()).ok()?, HeaderValue::try_from(value.trim()).ok()?))
        });
        header.ok_or_else(|| format!("write NAME: VALUE, such as {example}"))
    }
}

#[cfg(test)]
pub(crate) use recording::tests::recorded;
