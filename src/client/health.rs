//! A health check of a server, with the rules of the kubelet's probes `httpGet` and `tcpSocket`.
//!
//! Sources: Kubernetes 1.36, pkg/probe/http (`DoHTTPProbe`, `RedirectChecker`, `NewRequestForHTTPGetAction`) and
//! pkg/probe/tcp; Go 1.26, net/http (`Client.do`).

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use http::uri::Authority;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use socket2::{SockAddr, Socket, Type};
use tokometer_proxy::listen::unverified_tls;

use crate::client::recording::{Recording, State, header_of};

/// Maximum number of bytes of the body that are read (`maxRespBodyLength`). A longer body is no failure.
const MAX_BODY_BYTES: usize = 10 * 1024;

/// Maximum size of the response headers in bytes (Go's `DefaultMaxHeaderBytes`).
const MAX_HEAD_BYTES: usize = 1024 * 1024;

/// Maximum number of requests, the first one included.
const MAX_REQUESTS: usize = 10;

/// Characters that a request target must not contain.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`');

/// Headers that Go's client does not send from a probe's `httpHeaders`, because it sets them itself.
const RESERVED: [&str; 5] = ["host", "connection", "content-length", "transfer-encoding", "trailer"];

/// A server is not healthy. The message completes a line in the pod's events.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    /// The host name does not resolve.
    #[error("cannot resolve {0}: {1}")]
    Resolve(String, #[source] io::Error),
    /// The connection could not be opened.
    #[error("cannot connect to {0}: {1}")]
    Connect(String, #[source] io::Error),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
    /// The TLS handshake cannot start.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The timeout expired.
    #[error("no complete response within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The connection was closed too early.
    #[error("the connection was closed before the response was complete")]
    Cut,
    /// The response is not HTTP/1.1, or has too long headers.
    #[error("the response is not valid HTTP/1.1")]
    Malformed,
    /// The status is not from 200 to 399.
    #[error("HTTP probe failed with statuscode: {0}")]
    Status(u16),
    /// A redirect has a target that cannot be requested.
    #[error("redirected to an unusable address: {0}")]
    Redirect(#[from] BadUrl),
    /// Too many redirects.
    #[error("stopped after {MAX_REQUESTS} redirects")]
    Redirects,
}

/// A URL that cannot be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid URL `{0}`; write http://HOST:PORT/PATH, https://HOST:PORT/PATH or tcp://HOST:PORT")]
pub struct BadUrl(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
    Tcp,
}

/// What to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: Scheme,
    authority: Authority,
    /// Path and query; empty for `tcp`.
    target: String,
}

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Url, BadUrl> {
        let bad = || BadUrl(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "tcp" => Scheme::Tcp,
            _ => return Err(bad()),
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let authority: Authority = authority.parse().map_err(|_| bad())?;
        let (is_tcp, has_port) = (scheme == Scheme::Tcp, authority.port_u16().is_some());
        // Without a user, and without a port that is not a number.
        let is_plain = has_port && !authority.as_str().contains('@') || authority.as_str() == authority.host();
        if !is_plain || is_tcp && (!has_port || !target.is_empty()) {
            return Err(bad());
        }
        let target = if is_tcp { String::new() } else { request_target(target) };
        Ok(Url { scheme, authority, target })
    }
}

/// A path with its query, as it is sent: without a fragment, and with invalid characters encoded.
fn request_target(text: &str) -> String {
    let text = text.split('#').next().unwrap_or_default();
    let slash = if text.starts_with('/') { "" } else { "/" };
    format!("{slash}{}", utf8_percent_encode(text, ENCODED))
}

impl Url {
    fn port(&self) -> u16 {
        let usual = if self.scheme == Scheme::Https { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(usual)
    }

    /// The host, without brackets.
    fn host(&self) -> &str {
        self.authority.host().trim_matches(['[', ']'])
    }

    /// The target of a redirect.
    fn join(&self, location: &str) -> Result<Url, BadUrl> {
        let at = |target: &str| Ok(Url { target: request_target(target), ..self.clone() });
        let path = self.target.split('?').next().unwrap_or_default();
        if location.split(['/', '?', '#']).next().is_some_and(|start| start.contains(':')) {
            let url = location.parse::<Url>()?;
            return if url.scheme == Scheme::Tcp { Err(BadUrl(location.to_owned())) } else { Ok(url) };
        }
        match location.as_bytes() {
            [b'/', b'/', ..] => {
                let scheme = if self.scheme == Scheme::Https { "https" } else { "http" };
                format!("{scheme}:{location}").parse()
            }
            [b'/', ..] => at(location),
            [b'?', ..] => at(&format!("{path}{location}")),
            _ => at(&format!("{}/{location}", path.rsplit_once('/').map_or("", |(folder, _)| folder))),
        }
    }
}

/// A health check.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// What to check.
    pub url: Url,
    /// A Unix socket to connect to, instead of the URL's host and port.
    pub socket: Option<PathBuf>,
    /// Names and values of additional headers.
    pub headers: Vec<(String, String)>,
    /// Maximum time until the response is complete, redirects included.
    pub timeout: Duration,
}

impl HealthCheck {
    /// Checks the server once; returns the status of its response, or `None` for `tcp`.
    ///
    /// # Errors
    /// Why the server is not healthy.
    pub fn run(&self) -> Result<Option<u16>, Unhealthy> {
        let deadline = Instant::now() + self.timeout;
        let mut url = self.url.clone();
        if url.scheme == Scheme::Tcp {
            return self.connect(&url, deadline).map(|_| None);
        }
        let mut host = self.header("host").map(str::to_owned);
        for _ in 0..MAX_REQUESTS {
            let response = self.get(&url, host.as_deref(), deadline)?;
            let status = response.status();
            let Some(location) = location(&response) else { return evaluated(status) };
            let next = url.join(&location)?;
            // The kubelet does not request other hosts.
            if next.host() != self.url.host() {
                return evaluated(status);
            }
            // Only a redirect to the same address keeps the Host header of the probe.
            host = host.filter(|_| next.authority == url.authority);
            url = next;
        }
        Err(Unhealthy::Redirects)
    }

    /// The value of an additional header.
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn request(&self, url: &Url, host: Option<&str>) -> String {
        let host = host.filter(|host| !host.is_empty()).unwrap_or(url.authority.as_str());
        let mut request = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n", url.target);
        let mut add = |name: &str, value: &str| request.push_str(&format!("{name}: {value}\r\n"));
        if self.header("user-agent").is_none() {
            add("User-Agent", concat!("kube-probe/", env!("CARGO_PKG_VERSION"), " (tokometer)"));
        }
        if self.header("accept").is_none() {
            add("Accept", "*/*");
        }
        for (name, value) in &self.headers {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            // An empty value removes these two.
            let is_removed = value.is_empty() && (is("accept") || is("user-agent"));
            if !is_removed && !RESERVED.into_iter().any(is) {
                add(name, value);
            }
        }
        add("Connection", "close");
        request + "\r\n"
    }

    fn get(&self, url: &Url, host: Option<&str>, deadline: Instant) -> Result<Recording, Unhealthy> {
        let request = self.request(url, host);
        let mut connection = self.connect(url, deadline)?;
        let result = if url.scheme == Scheme::Https {
            let name = ServerName::try_from(url.host().to_owned()).map_err(|_| BadUrl(url.authority.to_string()))?;
            let session = ClientConnection::new(unverified_tls(), name)?;
            round_trip(&mut StreamOwned::new(session, connection), &request)
        } else {
            round_trip(&mut connection, &request)
        };
        result.map_err(|error| self.of_io(error, Unhealthy::Io))
    }

    /// Connects to the first address that accepts.
    fn connect(&self, url: &Url, deadline: Instant) -> Result<Connection, Unhealthy> {
        let (name, addresses) = match &self.socket {
            Some(path) => {
                let name = path.display().to_string();
                (name.clone(), vec![SockAddr::unix(path).map_err(|error| Unhealthy::Connect(name, error))?])
            }
            None => {
                let found = (url.host(), url.port()).to_socket_addrs();
                let found = found.map_err(|error| Unhealthy::Resolve(url.host().to_owned(), error))?;
                (format!("{}:{}", url.authority.host(), url.port()), found.map(SockAddr::from).collect())
            }
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match open(&address, deadline) {
                Ok(socket) => return Ok(Connection { socket, deadline }),
                Err(error) => last = error,
            }
        }
        Err(self.of_io(last, |error| Unhealthy::Connect(name, error)))
    }

    /// The failure that an error of a socket means.
    fn of_io(&self, error: io::Error, other: impl FnOnce(io::Error) -> Unhealthy) -> Unhealthy {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Unhealthy::Timeout(self.timeout),
            io::ErrorKind::UnexpectedEof => Unhealthy::Cut,
            io::ErrorKind::InvalidData if error.get_ref().is_none() => Unhealthy::Malformed,
            _ => other(error),
        }
    }
}

/// Success for a status from 200 to 399. A redirect that is not followed is a success (`probe.Warning`).
fn evaluated(status: u16) -> Result<Option<u16>, Unhealthy> {
    if (200..400).contains(&status) { Ok(Some(status)) } else { Err(Unhealthy::Status(status)) }
}

/// The target of a redirect, if the response is one.
fn location(response: &Recording) -> Option<String> {
    let is_redirect = matches!(response.status(), 301 | 302 | 303 | 307 | 308);
    let mut headers = response.head().filter_map(header_of).filter(|_| is_redirect);
    let (_, value) = headers.find(|(name, _)| name.eq_ignore_ascii_case(b"location"))?;
    Some(String::from_utf8_lossy(value).into_owned()).filter(|location| !location.is_empty())
}

/// Opens a connection.
fn open(address: &SockAddr, deadline: Instant) -> io::Result<Socket> {
    let socket = Socket::new(address.domain(), Type::STREAM, None)?;
    let left = time_until(deadline)?;
    if address.is_unix() {
        // A full backlog blocks `connect` for the send timeout (unix(7)).
        socket.set_write_timeout(Some(left))?;
        socket.connect(address)?;
    } else {
        socket.connect_timeout(address, left)?;
    }
    Ok(socket)
}

fn time_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket whose calls end at a deadline.
struct Connection {
    socket: Socket,
    deadline: Instant,
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(time_until(self.deadline)?))?;
        self.socket.read(buffer)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(time_until(self.deadline)?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a request, and reads as much of the response as the kubelet does. An incomplete response is the error
/// `UnexpectedEof`, an invalid one `InvalidData`.
fn round_trip(stream: &mut (impl Read + Write), request: &str) -> io::Result<Recording> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut response = Recording::new();
    let mut buffer = [0; 8 * 1024];
    loop {
        let length = match stream.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if length == 0 {
            return if response.end() { Ok(response) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        let is_head_complete = |response: &Recording| response.status() != 0;
        match response.take(buffer.get(..length).unwrap_or_default(), Duration::ZERO) {
            State::Whole => return Ok(response),
            // Bytes after the announced length are ignored.
            State::Malformed if is_head_complete(&response) && !response.is_chunked() => return Ok(response),
            State::Malformed => return Err(io::ErrorKind::InvalidData.into()),
            State::More if response.body_bytes() > MAX_BODY_BYTES => return Ok(response),
            State::More if !is_head_complete(&response) && response.bytes().len() > MAX_HEAD_BYTES => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            State::More => {}
        }
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
            ("tcp://127.0.0.1:9", 9, ""),
        ] {
            assert_eq!((url(text).port(), url(text).target.as_str()), (port, target), "{text}");
        }
        for text in ["", "127.0.0.1:80", "ftp://h/", "http://", "http://a@b/", "tcp://h", "tcp://h:1/", "http://h:x/"] {
            assert_eq!(text.parse::<Url>(), Err(BadUrl(text.to_owned())));
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
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let check = HealthCheck { url: url("http://h:1/x"), socket: None, headers, timeout: Duration::ZERO };
            check.request(&check.url, check.header("host"))
        };
        let agent = concat!("User-Agent: kube-probe/", env!("CARGO_PKG_VERSION"), " (tokometer)\r\n");
        let own = format!("GET /x HTTP/1.1\r\nHost: h:1\r\n{agent}Accept: */*\r\nConnection: close\r\n\r\n");
        assert_eq!(request(&[]), own);
        assert_eq!(request(&[("Trailer", "x"), ("Content-Length", "3"), ("connection", "keep-alive")]), own);
        let headers = [("HOST", "name"), ("user-agent", "a"), ("Accept", ""), ("X", "1"), ("X", "2")];
        assert_eq!(
            request(&headers),
            "GET /x HTTP/1.1\r\nHost: name\r\nuser-agent: a\r\nX: 1\r\nX: 2\r\nConnection: close\r\n\r\n"
        );
    }
}
