//! A health check of a server, with the rules of the kubelet's probes `httpGet` and `tcpSocket`.
//!
//! Sources: Kubernetes 1.36, pkg/probe/http (`DoHTTPProbe`, `RedirectChecker`, `NewRequestForHTTPGetAction`) and
//! pkg/probe/tcp; Go 1.26, net/http (`Client.do`).

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::Full;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use socket2::{SockAddr, Socket, Type};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokometer_engine::scrape::Wire;
use tokometer_proxy::listen::unverified_tls;
use tokometer_settings::duration;

use crate::client::connection::{Connection, Failure, connect};
use crate::client::header_like;
use crate::client::recording::Recording;

/// Maximum number of bytes of the body that are read (`maxRespBodyLength`). A longer body is no failure.
const MAX_BODY_BYTES: usize = 10 * 1024;

/// Maximum number of requests, the first one included.
const MAX_REQUESTS: usize = 10;

/// Characters that a URL must not contain.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`');

/// Headers that Go's client does not send from a probe's `httpHeaders`, because it sets them itself.
const RESERVED: [HeaderName; 5] =
    [header::HOST, header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::TRAILER];

/// The URLs that can be checked.
const FORMS: &str = "write http://HOST:PORT/PATH, https://HOST:PORT/PATH or tcp://HOST:PORT";

/// What to check. The scheme is `http`, `https` or `tcp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    authority: Authority,
    /// Path and query, without a fragment.
    target: PathAndQuery,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let bad = || format!("invalid URL `{text}`; {FORMS}");
        let parsed = utf8_percent_encode(text, ENCODED).to_string().parse().map(Uri::into_parts);
        let parts = parsed.ok().and_then(|parts| Some((parts.scheme?, parts.authority?, parts.path_and_query?)));
        let (scheme, authority, target) = parts.ok_or_else(bad)?;
        let has_port = authority.port_u16().is_some();
        // Without a user, and without a port that is not a number.
        let is_plain = has_port && !authority.as_str().contains('@') || authority.as_str() == authority.host();
        let scheme = scheme.as_str().to_ascii_lowercase();
        let is_valid = match scheme.as_str() {
            "http" | "https" => true,
            "tcp" => has_port && text.ends_with(authority.as_str()),
            _ => false,
        };
        // Starts with a slash even if the URL has no path.
        let target = target.to_string().parse().ok().filter(|_| is_plain && is_valid);
        Ok(Url { scheme, authority, target: target.ok_or_else(bad)? })
    }
}

impl Url {
    fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.scheme == "https" { 443 } else { 80 })
    }

    /// The host, without brackets.
    fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    /// The target of a redirect.
    fn join(&self, location: &str) -> Result<Url, String> {
        let Url { scheme, authority, target } = self;
        let folder = target.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        let url: Url = match location.as_bytes() {
            _ if location.split(['/', '?', '#']).next().is_some_and(|start| start.contains(':')) => location.parse(),
            [b'/', b'/', ..] => format!("{scheme}:{location}").parse(),
            [b'/', ..] => format!("{scheme}://{authority}{location}").parse(),
            [b'?', ..] => format!("{scheme}://{authority}{}{location}", target.path()).parse(),
            _ => format!("{scheme}://{authority}{folder}/{location}").parse(),
        }?;
        if url.scheme == "tcp" { Err(format!("invalid URL `{location}`; {FORMS}")) } else { Ok(url) }
    }
}

/// A health check: the arguments of `probe`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer probe http://127.0.0.1:8000/health --timeout 5s
  tokometer probe tcp://127.0.0.1:8000
  tokometer probe http://127.0.0.1:8000/health --socket /run/vllm.sock

The rules are those of the kubelet's httpGet and tcpSocket probes: every status from 200 to 399 is a success, \
redirects to the same host are followed, and certificates are not verified.

Exit codes: 0 the server is healthy, 1 it is not, 2 wrong usage.")]
pub struct HealthCheck {
    /// http://HOST:PORT/PATH, https://HOST:PORT/PATH or tcp://HOST:PORT
    #[arg(value_name = "URL")]
    pub url: Url,
    /// Maximum time until the response is complete, such as 5s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::positive)]
    pub timeout: Duration,
    /// Additional request header; can be repeated. `Host`, `User-Agent` and `Accept` replace the default ones
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header_like("X-Probe: 1"))]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Connect to this Unix socket instead of the URL's host and port
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl HealthCheck {
    /// Checks the server once; returns the status of its response, or `None` for `tcp`.
    ///
    /// # Errors
    /// Why the server is not healthy, as the end of a line in the pod's events.
    pub fn run(&self) -> Result<Option<u16>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| of_failure(Failure::Io(error)))?;
        let expired = |_| Err(of_failure(Failure::Timeout(self.timeout)));
        runtime.block_on(async { tokio::time::timeout(self.timeout, self.check()).await.unwrap_or_else(expired) })
    }

    async fn check(&self) -> Result<Option<u16>, String> {
        if self.url.scheme == "tcp" {
            return self.connect(&self.url).await.map(|_| None);
        }
        let mut url = self.url.clone();
        let mut host = self.header(&header::HOST);
        for _ in 0..MAX_REQUESTS {
            let response = self.get(&url, host).await?;
            let next = location(&response).map(|location| url.join(&location)).transpose();
            let next = next.map_err(|error| format!("redirected to an unusable address: {error}"))?;
            // A redirect that is not followed is a success (`probe.Warning`). The kubelet does not request other hosts.
            let Some(next) = next.filter(|next| next.host() == self.url.host()) else {
                let status = response.status();
                let is_healthy = (200..400).contains(&status);
                return is_healthy
                    .then_some(Some(status))
                    .ok_or_else(|| format!("HTTP probe failed with statuscode: {status}"));
            };
            // Only a redirect to the same address keeps the Host header of the probe.
            host = host.filter(|_| next.authority == url.authority);
            url = next;
        }
        Err(format!("stopped after {MAX_REQUESTS} redirects"))
    }

    /// The value of an additional header.
    fn header(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    fn request(&self, url: &Url, host: Option<&HeaderValue>) -> Request<Full<Bytes>> {
        const AGENT: &str = concat!("kube-probe/", env!("CARGO_PKG_VERSION"), " (tokometer)");
        let mut request = Request::get(url.target.as_str());
        request = match host.filter(|host| !host.is_empty()) {
            Some(host) => request.header(header::HOST, host),
            None => request.header(header::HOST, url.authority.as_str()),
        };
        for (name, default) in [(header::USER_AGENT, AGENT), (header::ACCEPT, "*/*")] {
            if self.header(&name).is_none() {
                request = request.header(name, default);
            }
        }
        for (name, value) in self.headers.iter().filter(|(name, _)| !RESERVED.contains(name)) {
            // An empty value removes these two.
            if !value.is_empty() || ![header::USER_AGENT, header::ACCEPT].contains(name) {
                request = request.header(name, value);
            }
        }
        let request = request.header(header::CONNECTION, "close");
        request.body(Full::default()).expect("all parts were parsed")
    }

    /// Sends a request, and reads as much of the response as the kubelet does.
    async fn get(&self, url: &Url, host: Option<&HeaderValue>) -> Result<Recording, String> {
        let mut stream = self.connect(url).await?;
        if url.scheme == "https" {
            let name = ServerName::try_from(url.host().to_owned());
            let name = name.map_err(|_| format!("invalid URL `{}`; {FORMS}", url.authority))?;
            let session = TlsConnector::from(unverified_tls()).connect(name, stream).await;
            stream = Box::new(session.map_err(|error| of_failure(Failure::Io(error)))?);
        }
        let mut connection = Connection::new(stream, Instant::now()).await.map_err(of_failure)?;
        connection.send(self.request(url, host), Some(MAX_BODY_BYTES)).await.map_err(of_failure)
    }

    /// Connects to the first address that accepts.
    async fn connect(&self, url: &Url) -> Result<Box<dyn Wire>, String> {
        let failed = |name: String, error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => of_failure(Failure::Timeout(self.timeout)),
            _ => format!("cannot connect to {name}: {error}"),
        };
        if let Some(path) = &self.socket {
            let socket = connect_to_socket(path, self.timeout);
            return Ok(Box::new(socket.map_err(|error| failed(path.display().to_string(), error))?));
        }
        let (host, port) = (url.host(), url.port());
        let found = (host, port).to_socket_addrs().map_err(|error| format!("cannot resolve {host}: {error}"))?;
        let stream = connect(&found.collect::<Vec<SocketAddr>>(), self.timeout).await;
        Ok(Box::new(stream.map_err(|error| failed(format!("{}:{port}", url.authority.host()), error))?))
    }
}

/// Connects to a Unix socket. A full backlog blocks for the send timeout (unix(7)).
fn connect_to_socket(path: &Path, limit: Duration) -> io::Result<tokio::net::UnixStream> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(address.domain(), Type::STREAM, None)?;
    socket.set_write_timeout(Some(limit))?;
    socket.connect(&address)?;
    socket.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(socket.into())
}

/// The target of a redirect, if the response is one.
fn location(response: &Recording) -> Option<String> {
    let is_redirect = matches!(response.status(), 301 | 302 | 303 | 307 | 308);
    let value = response.header(header::LOCATION).filter(|location| is_redirect && !location.is_empty())?;
    Some(String::from_utf8_lossy(value).into_owned())
}

fn of_failure(failure: Failure) -> String {
    match failure {
        Failure::Timeout(limit) => format!("no complete response within {} s", limit.as_secs_f64()),
        Failure::Malformed | Failure::TooLong => "the response is not valid HTTP/1.1".to_owned(),
        Failure::Resolve(error) | Failure::Connect(error) | Failure::Io(error)
            if error.kind() != io::ErrorKind::UnexpectedEof =>
        {
            format!("the connection failed: {error}")
        }
        _ => "the connection was closed before the response was complete".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn urls_are_parsed_and_encoded() {
        for (text, port, target) in [
            ("http://127.0.0.1:8000/health", 8000, "/health"),
            ("HTTP://127.0.0.1", 80, "/"),
            ("https://[::1]/a?b=c#d", 443, "/a?b=c"),
            ("http://h?x", 80, "/?x"),
            ("http://h:1/a b/\u{e9}%20\"", 1, "/a%20b/%C3%A9%20%22"),
            ("tcp://127.0.0.1:9", 9, "/"),
        ] {
            assert_eq!((url(text).port(), url(text).target.as_str()), (port, target), "{text}");
        }
        for text in ["", "127.0.0.1:80", "ftp://h/", "http://", "http://a@b/", "tcp://h", "tcp://h:1/", "http://h:x/"] {
            assert_eq!(text.parse::<Url>(), Err(format!("invalid URL `{text}`; {FORMS}")));
        }
    }

    #[test]
    fn redirect_targets_are_resolved() {
        for (location, expected) in [
            ("/x?y", "http://h:1/x?y"),
            ("x", "http://h:1/a/x"),
            ("?z", "http://h:1/a/b?z"),
            ("//g:2/x", "http://g:2/x"),
            ("https://h:3", "https://h:3/"),
            ("/x?to=http://g/", "http://h:1/x?to=http://g/"),
        ] {
            assert_eq!(url("http://h:1/a/b?c").join(location), Ok(url(expected)), "{location}");
        }
        for location in ["mailto:a", "tcp://h:1", "//"] {
            assert!(url("http://h:1/").join(location).is_err(), "{location}");
        }
    }

    #[test]
    fn headers_are_those_of_the_kubelet() {
        let request = |headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            let check = HealthCheck { url: url("http://h:1/x"), socket: None, headers, timeout: Duration::ZERO };
            let request = check.request(&check.url, check.header(&header::HOST));
            assert_eq!((request.method().as_str(), request.uri()), ("GET", &Uri::from_static("/x")));
            let lines = request.headers().iter().map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()));
            lines.collect::<String>()
        };
        let agent = concat!("user-agent: kube-probe/", env!("CARGO_PKG_VERSION"), " (tokometer)\n");
        let own = format!("host: h:1\n{agent}accept: */*\nconnection: close\n");
        assert_eq!(request(&[]), own);
        assert_eq!(request(&[("Trailer", "x"), ("Content-Length", "3"), ("connection", "keep-alive")]), own);
        let headers = [("HOST", "name"), ("user-agent", "a"), ("Accept", ""), ("X", "1"), ("X", "2")];
        assert_eq!(request(&headers), "host: name\nuser-agent: a\nx: 1\nx: 2\nconnection: close\n");
    }
}
