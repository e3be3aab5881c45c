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
        ("0.0.0.0:0", "0.0.0.0:0", false),
        ("unix:/a", "unix:/a", true),
    ];
    for (a, b, expected) in both {
        assert_eq!(collide(&listen(a).unwrap(), &listen(b).unwrap()), expected, "{a} {b}");
    }
}

#[test]
fn listen_and_upstream_are_split() {
    assert_eq!(split_pair(":8000=:8001"), Ok((":8000", ":8001")));
    for text in ["", "a", "=b", "a="] {
        assert!(split_pair(text).unwrap_err().contains("LISTEN=UPSTREAM"), "{text}");
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
        drop(split_pair(&text));
        drop(crate::config::redact::url(&text));
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
