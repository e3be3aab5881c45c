//! Parses listen, upstream and admin addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokometer_proxy::listen::Address;

const LISTEN_FORMS: &str = "write 0.0.0.0:8000, [::]:8000, localhost:8000, :8000 or unix:/path";
const UPSTREAM_FORMS: &str =
    "write 127.0.0.1:8001, [::1]:8001, host:8001, :8001, http://host:port, https://host:port, unix:/path or original";

/// Parses a listen address. `:8000` is every IPv4 address of this machine.
pub(crate) fn listen(text: &str) -> Result<Address, String> {
    if text == "original" {
        return Err(format!("`original` is an upstream, not a listen address; {LISTEN_FORMS}"));
    }
    if text.contains("://") {
        return Err(format!("`{text}` is a URL; {LISTEN_FORMS} (for TLS set `tls.certificate` and `tls.key`)"));
    }
    address(text, "0.0.0.0", LISTEN_FORMS)
}

/// Expands a bracketed list into single addresses: `[10.0.0.7,fd00::7]:8000` becomes `10.0.0.7:8000` and
/// `[fd00::7]:8000`. In Kubernetes, `[$(POD_IPS)]:8000` expands to such a list, with the address families of the pod.
/// Any other text is one address.
pub(crate) fn each(text: &str) -> Vec<String> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.rsplit_once("]:"));
    let Some((inside, port)) = inner else { return vec![text.to_owned()] };
    let one = |host: &str| match host.parse::<Ipv4Addr>() {
        Ok(host) => format!("{host}:{port}"),
        Err(_) => format!("[{host}]:{port}"),
    };
    inside.split(',').map(|host| one(host.trim())).collect()
}

/// Parses an upstream address; the flag is true if its scheme is https. `:8001` is this machine (127.0.0.1).
pub(crate) fn upstream(text: &str) -> Result<(Address, bool), String> {
    if text == "original" {
        return Ok((Address::OriginalDestination, false));
    }
    let (scheme, rest) = text.split_once("://").map_or((None, text), |(scheme, rest)| (Some(scheme), rest));
    let (rest, tls, default_port) = match scheme {
        None => (rest, false, None),
        Some("http") => (rest, false, Some(80)),
        Some("https") => (rest, true, Some(443)),
        Some(scheme) => return Err(format!("unknown scheme `{scheme}`; {UPSTREAM_FORMS}")),
    };
    let rest = if scheme.is_some() { rest.strip_suffix('/').unwrap_or(rest) } else { rest };
    if scheme.is_some() && rest.contains(['/', '?', '#']) {
        return Err(format!(
            "`{text}` has a path, but the request path is forwarded unmodified; write only scheme, host and port"
        ));
    }
    if scheme.is_some() && rest.contains('@') {
        return Err("user and password are not supported here: request headers are forwarded unmodified".to_owned());
    }
    if scheme.is_some() && (rest.is_empty() || rest.starts_with(':')) {
        return Err(format!("`{text}` has no host; {UPSTREAM_FORMS}"));
    }
    let with_port = match default_port {
        // The port follows the last colon, unless that colon belongs to a bracketed IPv6 address.
        Some(port) if !rest.rsplit(']').next().is_some_and(|tail| tail.contains(':')) => format!("{rest}:{port}"),
        _ => rest.to_owned(),
    };
    let address = address(&with_port, "127.0.0.1", UPSTREAM_FORMS)?;
    if matches!(address, Address::Tcp { port: 0, .. }) {
        return Err(format!("cannot connect to port 0; {UPSTREAM_FORMS}"));
    }
    Ok((address, tls))
}

/// Parses the admin address: an IP address (or `localhost`) and a port. `:9464` listens on all IPv4 and IPv6 addresses,
/// so that probes reach it in every pod.
pub(crate) fn admin(text: &str) -> Result<SocketAddr, String> {
    socket(text, "::", "the admin server", "write 0.0.0.0:9464, [::]:9464, localhost:9464 or :9464")
}

/// Parses an address for the OTLP receiver.
pub(crate) fn otlp(text: &str) -> Result<SocketAddr, String> {
    socket(text, "0.0.0.0", "the span receiver", "write 127.0.0.1:4317, [::1]:4317, localhost:4317 or 0.0.0.0:4317")
}

fn socket(text: &str, any_host: &str, who: &str, forms: &str) -> Result<SocketAddr, String> {
    match address(text, any_host, forms)? {
        Address::Tcp { host, port } => {
            let ip = match host.as_str() {
                "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
                host => host.parse().map_err(|_| format!("`{host}` is not an IP address; {forms}"))?,
            };
            Ok(SocketAddr::new(ip, port))
        }
        _ => Err(format!("{who} listens on TCP only; {forms}")),
    }
}

/// Splits `LISTEN=UPSTREAM`.
pub(crate) fn split_listener(text: &str) -> Result<(&str, &str), String> {
    text.split_once('=')
        .map(|(listen, upstream)| (listen.trim(), upstream.trim()))
        .filter(|(listen, upstream)| !listen.is_empty() && !upstream.is_empty())
        .ok_or_else(|| format!("invalid listener `{text}`; write LISTEN=UPSTREAM, such as 0.0.0.0:8000=127.0.0.1:8001"))
}

fn address(text: &str, any_host: &str, forms: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        // sockaddr_un holds 108 bytes, including the terminating zero (unix(7)).
        return match path.len() {
            0 => Err(format!("the path of the Unix socket is missing; {forms}")),
            108.. => Err(format!("the path of the Unix socket has {} bytes; at most 107 are allowed", path.len())),
            _ => Ok(Address::Unix(path.into())),
        };
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("`{text}` has no port; {forms}"))?;
    let port = port.parse::<u16>().map_err(|_| format!("invalid port `{port}` (0 to 65535); {forms}"))?;
    let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
        Some(Some(inner)) => {
            // A zone (`fe80::1%eth0`) is used by the resolver; only the address before it is validated.
            let ip = inner.split('%').next().unwrap_or_default();
            ip.parse::<Ipv6Addr>().map_err(|_| format!("`[{inner}]` is not an IPv6 address; {forms}"))?;
            inner
        }
        Some(None) => return Err(format!("`{text}` has an unclosed bracket; {forms}")),
        None if host.is_empty() => any_host,
        None if host.contains(':') => return Err(format!("IPv6 addresses need brackets; write [{host}]:{port}")),
        None if !is_host(host) => return Err(format!("`{host}` is neither an IP address nor a host name; {forms}")),
        None => host,
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

/// True for a host name (RFC 1123 section 2.1, plus the underscores of Docker and Kubernetes names) or an IPv4 address.
fn is_host(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    let all_numeric = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if all_numeric {
        return name.parse::<Ipv4Addr>().is_ok();
    }
    name.len() <= 253
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}

/// True if a connection to `upstream` reaches a listener on `listen` on this machine. Does not resolve names.
pub(crate) fn reaches(upstream: &Address, listen: &Address) -> bool {
    match (upstream, listen) {
        (Address::Unix(a), Address::Unix(b)) => a == b,
        (Address::Tcp { host, port }, Address::Tcp { host: on, port: at }) => {
            port == at
                && *port != 0
                && (is_same(host, on) || (is_this_machine(host) && (is_any(on) || one_loopback(host, on))))
        }
        _ => false,
    }
}

/// True if the two addresses cannot be bound at the same time.
pub(crate) fn collide(a: &Address, b: &Address) -> bool {
    match (a, b) {
        (Address::Tcp { host: x, port: p }, Address::Tcp { host: y, port: q }) => {
            p == q && *p != 0 && (is_same(x, y) || is_any(x) || is_any(y) || one_loopback(x, y))
        }
        _ => a == b,
    }
}

/// The IP address. `::ffff:127.0.0.1` is 127.0.0.1.
fn ip(host: &str) -> Option<IpAddr> {
    host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

fn is_any(host: &str) -> bool {
    ip(host).is_some_and(|ip| ip.is_unspecified())
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || ip(host).is_some_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

fn is_same(a: &str, b: &str) -> bool {
    a == b || ip(a).is_some_and(|a| ip(b) == Some(a))
}

/// True if both may be the same loopback address; does not resolve names. 127.0.0.2 and 127.0.0.1 are different
/// addresses (RFC 1122, section 3.2.1.3), on which two servers can use the same port; `localhost` may be either.
fn one_loopback(a: &str, b: &str) -> bool {
    let distinct = matches!((ip(a), ip(b)), (Some(IpAddr::V4(a)), Some(IpAddr::V4(b)))
        if a != b && !a.is_unspecified() && !b.is_unspecified());
    is_this_machine(a) && is_this_machine(b) && !distinct
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn listen_addresses_parse() {
        let table = [
            ("0.0.0.0:8000", tcp("0.0.0.0", 8000)),
            ("[::]:8000", tcp("::", 8000)),
            ("[fe80::1%eth0]:8000", tcp("fe80::1%eth0", 8000)),
            ("localhost:8000", tcp("localhost", 8000)),
            (":8000", tcp("0.0.0.0", 8000)),
            ("127.0.0.1:0", tcp("127.0.0.1", 0)),
            ("unix:/run/a.sock", Address::Unix(PathBuf::from("/run/a.sock"))),
        ];
        for (text, expected) in table {
            assert_eq!(listen(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn upstream_addresses_parse() {
        let table = [
            ("127.0.0.1:8001", tcp("127.0.0.1", 8001), false),
            ("[::1]:8001", tcp("::1", 8001), false),
            ("vllm_0.default.svc.cluster.local.:8001", tcp("vllm_0.default.svc.cluster.local.", 8001), false),
            (":8001", tcp("127.0.0.1", 8001), false),
            ("http://vllm", tcp("vllm", 80), false),
            ("http://vllm:8001/", tcp("vllm", 8001), false),
            ("https://vllm", tcp("vllm", 443), true),
            ("https://[::1]", tcp("::1", 443), true),
            ("https://[::1]:8443", tcp("::1", 8443), true),
            ("unix:/run/vllm.sock", Address::Unix(PathBuf::from("/run/vllm.sock")), false),
            ("original", Address::OriginalDestination, false),
        ];
        for (text, address, tls) in table {
            assert_eq!(upstream(text), Ok((address, tls)), "{text}");
        }
    }

    #[test]
    fn errors_of_invalid_addresses_show_the_valid_form() {
        let long = format!("unix:/{}", "x".repeat(107));
        let table = [
            ("8000", "has no port"),
            ("host", "has no port"),
            ("host:", "invalid port"),
            ("host:70000", "invalid port"),
            ("::1:8000", "[::1]:8000"),
            ("[::1:8000", "unclosed bracket"),
            ("[nonsense]:8000", "not an IPv6 address"),
            ("999.0.0.1:8000", "neither an IP address nor a host name"),
            ("a b:8000", "neither an IP address nor a host name"),
            ("unix:", "is missing"),
            (long.as_str(), "at most 107"),
        ];
        for (text, part) in table {
            for message in [listen(text).unwrap_err(), upstream(text).unwrap_err()] {
                assert!(message.contains(part), "{text}: {message}");
            }
        }
        let upstreams = [
            ("https://", "has no host"),
            ("http://:8001", "has no host"),
            ("http://a/v1", "has a path"),
            ("http://user:secret@a", "user and password"),
            ("tcp://a:1", "scheme `tcp`"),
            ("a:0", "port 0"),
        ];
        for (text, part) in upstreams {
            let message = upstream(text).unwrap_err();
            assert!(message.contains(part) && !message.contains("secret"), "{text}: {message}");
        }
        assert!(listen("original").unwrap_err().contains("an upstream"));
        assert!(listen("http://0.0.0.0:8000").unwrap_err().contains("is a URL"));
        assert_eq!(admin(":9464").unwrap().to_string(), "[::]:9464");
        assert!(admin("unix:/a").unwrap_err().contains("TCP only"));
        assert!(admin("name:1").unwrap_err().contains("not an IP address"));
    }

    #[test]
    fn wildcards_and_loopback_count_as_loops_and_collisions() {
        let reach = [
            ("127.0.0.1:8000", "0.0.0.0:8000", true),
            ("localhost:8000", "[::]:8000", true),
            ("127.0.0.1:8000", "127.0.0.1:8000", true),
            ("0.0.0.0:8000", "127.0.0.1:8000", true),
            ("localhost:8000", "127.0.0.2:8000", true),
            ("127.0.0.1:8000", "127.0.0.2:8000", false),
            ("[::ffff:127.0.0.1]:8000", "127.0.0.1:8000", true),
            ("[::ffff:127.0.0.1]:8000", "[::]:8000", true),
            ("10.0.0.1:8000", "[::ffff:10.0.0.1]:8000", true),
            ("[::ffff:0.0.0.0]:8000", "127.0.0.1:8000", true),
            ("10.0.0.1:8000", "0.0.0.0:8000", false),
            ("127.0.0.1:8001", "0.0.0.0:8000", false),
            ("unix:/a", "unix:/a", true),
            ("unix:/a", "unix:/b", false),
            ("original", "0.0.0.0:8000", false),
        ];
        for (to, on, expected) in reach {
            assert_eq!(reaches(&upstream(to).unwrap().0, &listen(on).unwrap()), expected, "{to} {on}");
        }
        let both = [
            ("0.0.0.0:8000", "127.0.0.1:8000", true),
            ("10.0.0.1:8000", "10.0.0.2:8000", false),
            ("localhost:8000", "127.0.0.1:8000", true),
            ("127.0.0.1:8000", "127.0.0.2:8000", false),
            ("127.0.0.1:8000", "[::ffff:127.0.0.1]:8000", true),
            ("10.0.0.1:8000", "[::ffff:0.0.0.0]:8000", true),
            ("0.0.0.0:0", "0.0.0.0:0", false),
            ("unix:/a", "unix:/a", true),
        ];
        for (a, b, expected) in both {
            assert_eq!(collide(&listen(a).unwrap(), &listen(b).unwrap()), expected, "{a} {b}");
        }
    }

    #[test]
    fn listen_and_upstream_are_split() {
        assert_eq!(split_listener(":8000=:8001"), Ok((":8000", ":8001")));
        for text in ["", "a", "=b", "a="] {
            assert!(split_listener(text).unwrap_err().contains("LISTEN=UPSTREAM"), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_parses_or_fails_without_panic(text in "[a-z0-9:/\\[\\]@?#.%=é ]{0,30}") {
            for result in [listen(&text), upstream(&text).map(|(address, _)| address)] {
                if let Err(message) = result {
                    proptest::prop_assert!(!message.is_empty());
                }
            }
            drop(admin(&text));
            drop(split_listener(&text));
            drop(crate::config::shown_url(&text));
        }
    }

    #[test]
    fn address_lists_expand_to_both_families() {
        for (text, expected) in [
            ("[10.0.0.7]:8000", vec!["10.0.0.7:8000"]),
            ("[10.0.0.7,fd00::7]:8000", vec!["10.0.0.7:8000", "[fd00::7]:8000"]),
            ("[fd00::7]:8000", vec!["[fd00::7]:8000"]),
            ("0.0.0.0:8000", vec!["0.0.0.0:8000"]),
            ("unix:/run/a.sock", vec!["unix:/run/a.sock"]),
        ] {
            assert_eq!(each(text), expected);
        }
    }
}
