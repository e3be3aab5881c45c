//! The target of a request.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::{fmt, io};

/// A plain HTTP address, with an optional path prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A name or an IP address, without brackets.
    host: String,
    port: u16,
    authority: String,
    path: String,
}

/// An unsupported target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid target {0:?}: use http://HOST:PORT, for example http://127.0.0.1:8000 (TLS is not supported)")]
pub struct BadTarget(String);

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Target {
        let host = address.ip().to_string();
        Target { host, port: address.port(), authority: address.to_string(), path: String::new() }
    }
}

/// In the form in which a user writes it.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Target, BadTarget> {
        let bad = || BadTarget(text.to_owned());
        let uri: http::Uri = text.parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        // User info before an `@` would end up in log files.
        if uri.scheme_str() != Some("http") || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(bad());
        }
        Ok(Target {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.as_str().to_owned(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Target {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Host and port, as in the Host header.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The path prefix, without a trailing slash; usually empty.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Resolves the host to all of its addresses.
    ///
    /// # Errors
    /// If the name does not resolve.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_has_host_port_and_optional_path() {
        let read = |text: &str| text.parse::<Target>().unwrap();
        let target = read("http://127.0.0.1:8000");
        assert_eq!((target.host.as_str(), target.port, target.path.as_str()), ("127.0.0.1", 8000, ""));
        let target = read("http://[::1]:81/engine/");
        assert_eq!((target.host.as_str(), target.port, target.path.as_str()), ("::1", 81, "/engine"));
        assert_eq!(target.authority, "[::1]:81");
        assert_eq!(read("http://vllm").port, 80);
    }

    #[test]
    fn invalid_target_error_contains_an_example() {
        for text in ["", "127.0.0.1:8000", "https://host:1", "http://", "http://me:secret@host:1", "http://a/?b"] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("http://127.0.0.1:8000"), "{text:?}: {error}");
        }
    }
}
