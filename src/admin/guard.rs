//! Access checks: against DNS rebinding, cross-site requests, and drains requested over the network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{fmt, io};

use hyper::{Method, Request, StatusCode, Version, header};
use tokio::net::UnixStream;

/// Suffixes of names in clusters and private networks, which cannot be registered in public DNS.
const PRIVATE_SUFFIXES: [&str; 4] = [".svc", ".cluster.local", ".internal", ".localhost"];

/// The checks of one server.
#[derive(Debug)]
pub(super) struct Guard {
    /// Host name of this machine or pod, in lowercase.
    own_name: String,
    /// In lowercase.
    allowed_hosts: Vec<String>,
    remote_drain: bool,
}

/// The client of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Client {
    /// A client of the admin port. Its address does not show where the client is: it may be that of a forwarder.
    Network(SocketAddr),
    /// A process that uses the Unix socket.
    Process {
        /// 0 if it is in another namespace.
        id: i32,
        user: u32,
        /// It runs as the same user as tokometer, or as root.
        is_trusted: bool,
    },
}

impl Client {
    /// The process at the other end of this connection.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Client> {
        let peer = stream.peer_cred()?;
        let is_trusted = peer.uid() == rustix::process::geteuid().as_raw() || peer.uid() == 0;
        Ok(Client::Process { id: peer.pid().unwrap_or_default(), user: peer.uid(), is_trusted })
    }

    /// True for a process that may change state. It is evicted last.
    pub(super) fn is_trusted(self) -> bool {
        matches!(self, Client::Process { is_trusted: true, .. })
    }

    /// The address by which responses are limited; unspecified for all processes.
    pub(super) fn address(self) -> IpAddr {
        match self {
            Client::Network(address) => address.ip().to_canonical(),
            Client::Process { .. } => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Network(address) => address.fmt(f),
            Client::Process { id, user, .. } => write!(f, "process {id} of user {user}"),
        }
    }
}

/// Why a request is rejected: status and message.
pub(super) type Refused = (StatusCode, String);

impl Guard {
    pub(super) fn new(allowed_hosts: &[String], remote_drain: bool) -> Guard {
        let own_name = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        let allowed_hosts = allowed_hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Guard { own_name, allowed_hosts, remote_drain }
    }

    /// Ok if the request's host name is allowed and the request is not cross-site.
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), Refused> {
        let headers = request.headers();
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (request.uri().authority(), hosts.next(), hosts.next()) {
            (_, _, Some(_)) => {
                return Err((StatusCode::BAD_REQUEST, "the request has more than one Host header".into()));
            }
            (Some(authority), _, _) => Some(authority.as_str()),
            (None, Some(host), _) => Some(host.to_str().unwrap_or("?")),
            (None, None, _) => None,
        };
        match host {
            Some(host) if !self.allows(host) => {
                let shown: String = host.chars().take(100).collect();
                let why = format!(
                    "the host name `{shown}` is not allowed (protection against DNS rebinding): use an IP address or localhost, or add the name to `admin.allowed_hosts`"
                );
                return Err((StatusCode::FORBIDDEN, why));
            }
            // HTTP/1.0 requests without a Host header are allowed: browsers, which need protection, always send one.
            None if request.version() == Version::HTTP_11 => {
                return Err((StatusCode::BAD_REQUEST, "the request has no Host header".into()));
            }
            _ => {}
        }
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let foreign = |why: &str| Err((StatusCode::FORBIDDEN, format!("cross-site requests are rejected: {why}")));
        if let Some(origin) = text("origin")
            && !host.is_some_and(|host| is_same_origin(origin, host))
        {
            return foreign("the Origin header differs from the Host header");
        }
        // A cross-site link to a page is allowed: the other site cannot read the response.
        let is_link = request.method() == Method::GET
            && text("sec-fetch-mode") == Some("navigate")
            && text("sec-fetch-dest") == Some("document");
        if text("sec-fetch-site") == Some("cross-site") && !is_link {
            return foreign("Sec-Fetch-Site is cross-site");
        }
        Ok(())
    }

    /// Ok if the client may change the program's state.
    pub(super) fn check_change(&self, client: Client) -> Result<(), Refused> {
        let fix = match client {
            Client::Process { is_trusted: true, .. } => return Ok(()),
            Client::Network(_) if self.remote_drain => return Ok(()),
            Client::Process { .. } => "run it as the same user as tokometer, or as root",
            Client::Network(_) => {
                "run `tokometer drain` in this pod or on this machine, which uses a Unix socket, or set `admin.remote_drain: true`"
            }
        };
        Err((StatusCode::FORBIDDEN, format!("POST is not accepted from {client}: {fix}")))
    }

    /// True for a `Host` value that cannot be a public DNS name, or that the settings allow.
    fn allows(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let name = match host.strip_prefix('[') {
            Some(rest) => {
                return rest.split_once(']').is_some_and(|(ip, port)| ip.parse::<Ipv6Addr>().is_ok() && is_port(port));
            }
            None => match host.split_once(':') {
                Some((name, port)) if is_port(&host[name.len()..]) && !port.contains(':') => name,
                Some(_) => return false,
                None => host.as_str(),
            },
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() {
            return false;
        }
        let is_allowed = |allowed: &String| match allowed.strip_prefix('.') {
            Some(domain) => name == domain || name.ends_with(allowed.as_str()),
            None => allowed == "*" || allowed == name,
        };
        !name.contains('.')
            || name.parse::<Ipv4Addr>().is_ok()
            || name == self.own_name
            || PRIVATE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
            || self.allowed_hosts.iter().any(is_allowed)
    }
}

/// True if the text after a host name is empty or `:` and a port.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

/// True if both values refer to the same host and port. `null`, the origin of a sandboxed page, matches nothing.
fn is_same_origin(origin: &str, host: &str) -> bool {
    let (authority, port) = match origin.split_once("://") {
        Some(("http", authority)) => (authority, ":80"),
        Some(("https", authority)) => (authority, ":443"),
        _ => return false,
    };
    let without_port = |host: &str| {
        let host = host.to_ascii_lowercase();
        host.strip_suffix(port).map(str::to_owned).unwrap_or(host)
    };
    without_port(authority) == without_port(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed_hosts: &[&str]) -> Guard {
        let allowed_hosts = allowed_hosts.iter().map(|host| (*host).to_owned()).collect();
        Guard { own_name: "node-1.example.com".to_owned(), allowed_hosts, remote_drain: false }
    }

    #[test]
    fn public_dns_host_names_are_rejected() {
        let table = [
            ("127.0.0.1:9464", true),
            ("10.0.0.7", true),
            ("[::1]:9464", true),
            ("[fd00::7]", true),
            ("localhost:9464", true),
            ("vllm-0", true),
            ("Node-1.Example.com:9464", true),
            ("tokometer.llm.svc:9464", true),
            ("tokometer.llm.svc.cluster.local.", true),
            ("ip-10-0-0-7.ec2.internal:9464", true),
            ("a.localhost", true),
            ("evil.example", false),
            ("evil.example:9464", false),
            ("svc.evil.example", false),
            ("x.svc.evil.example", false),
            ("node-1.example.com.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("127.0.0.1:evil.example", false),
            ("[::1].evil.example", false),
            ("[evil.example]", false),
            ("tokometer.corp.example", false),
            ("", false),
            (".", false),
            (":9464", false),
        ];
        for (host, allowed) in table {
            assert_eq!(guard(&[]).allows(host), allowed, "{host}");
        }
    }

    #[test]
    fn allowed_hosts_add_names_and_domains() {
        let guard = guard(&["tokometer.corp.example", ".svc.corp.example"]);
        for (host, allowed) in [
            ("tokometer.corp.example:9464", true),
            ("a.tokometer.corp.example", false),
            ("a.llm.svc.corp.example", true),
            ("evil-svc.corp.example", false),
        ] {
            assert_eq!(guard.allows(host), allowed, "{host}");
        }
        assert!(self::guard(&["*"]).allows("evil.example"));
    }

    #[test]
    fn origin_must_match_the_host() {
        let table = [
            ("http://127.0.0.1:9464", "127.0.0.1:9464", true),
            ("http://localhost", "localhost:80", true),
            ("https://a.internal", "a.internal:443", true),
            ("http://127.0.0.1:8000", "127.0.0.1:9464", false),
            ("http://evil.example", "127.0.0.1", false),
            ("null", "null", false),
            ("", "", false),
        ];
        for (origin, host, same) in table {
            assert_eq!(is_same_origin(origin, host), same, "{origin} {host}");
        }
    }

    #[test]
    fn post_is_allowed_only_to_trusted_processes() {
        // A forwarder in the pod has the first four addresses.
        for address in ["127.0.0.1:40000", "[::1]:40000", "[::ffff:127.0.0.1]:40000", "10.0.0.7:40000", "127.0.0.6:1"] {
            let client = Client::Network(address.parse().unwrap());
            assert!(guard(&[]).check_change(client).is_err() && !client.is_trusted(), "{address}");
            assert!(Guard { remote_drain: true, ..guard(&[]) }.check_change(client).is_ok());
        }
        for is_trusted in [false, true] {
            let client = Client::Process { id: 1, user: 1000, is_trusted };
            assert_eq!(guard(&[]).check_change(client).is_ok(), is_trusted);
            assert_eq!(Guard { remote_drain: true, ..guard(&[]) }.check_change(client).is_ok(), is_trusted);
        }
    }
}
