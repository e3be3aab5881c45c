//! The target of a request.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::{fmt, io};

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::Full;

/// A plain HTTP address, with an optional path prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    authority: Authority,
    /// Without a trailing slash; usually empty.
    path: String,
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Target {
        let authority = address.to_string().parse().expect("an address with a port is an authority");
        Target { authority, path: String::new() }
    }
}

/// In the form in which a user writes it.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let bad = || {
            format!(
                "invalid target {text:?}: use http://HOST:PORT, for example http://127.0.0.1:8000 (TLS is not supported)"
            )
        };
        let uri: Uri = text.parse().map_err(|_| bad())?;
        // User info before an `@` would end up in log files.
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(bad)?;
        if uri.scheme_str() != Some("http") || uri.query().is_some() {
            return Err(bad());
        }
        Ok(Target { authority: authority.clone(), path: uri.path().trim_end_matches('/').to_owned() })
    }
}

impl Target {
    /// The port.
    pub fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(80)
    }

    /// Host and port, as in the Host header.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The host, without brackets.
    fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    /// Resolves the host to all of its addresses.
    ///
    /// # Errors
    /// If the name does not resolve.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = (self.host(), self.port()).to_socket_addrs()?.collect();
        if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
    }

    /// A request to this target, with these headers after `Host`. `path` is a valid path, optionally with a query.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Bytes,
    ) -> Request<Full<Bytes>> {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.path));
        let request = request.header(header::HOST, self.authority());
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        request.body(Full::new(body)).expect("the path and the authority were parsed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_has_host_port_and_optional_path() {
        let read = |text: &str| text.parse::<Target>().unwrap();
        let target = read("http://127.0.0.1:8000");
        assert_eq!((target.host(), target.port(), target.path.as_str()), ("127.0.0.1", 8000, ""));
        let target = read("http://[::1]:81/engine/");
        assert_eq!((target.host(), target.port(), target.path.as_str()), ("::1", 81, "/engine"));
        assert_eq!(target.authority(), "[::1]:81");
        assert_eq!(read("http://vllm").port(), 80);
        assert_eq!(Target::from(SocketAddr::from(([0; 8], 1))), read("http://[::]:1"));
    }

    #[test]
    fn invalid_target_error_contains_an_example() {
        for text in ["", "127.0.0.1:8000", "https://host:1", "http://", "http://me:secret@host:1", "http://a/?b"] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains("http://127.0.0.1:8000"), "{text:?}: {error}");
        }
    }
}
