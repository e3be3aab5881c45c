//! Addresses at which other hosts can reach this one.

use std::fs;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use std::net::UdpSocket;

/// Every address of this host except loopback and link-local ones.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    // Linux only; if these files are missing or hidden, only the address of the default route is found.
    let v4 = fs::read_to_string("/proc/net/fib_trie").map(|trie| local_v4(&trie)).unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/if_inet6").map(|list| global_v6(&list)).unwrap_or_default();
    let mut found: Vec<IpAddr> = v4.into_iter().map(IpAddr::from).chain(v6.into_iter().map(IpAddr::from)).collect();
    found.extend(default_route());
    found.sort();
    found.dedup();
    found
}

/// Source address of the default route. Connecting a UDP socket sends no packet (192.0.2.1 is reserved for
/// documentation).
fn default_route() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|address| !address.is_loopback() && !address.is_unspecified())
}

/// From `/proc/net/fib_trie`: an address is on the line before the one that marks it as local.
fn local_v4(trie: &str) -> Vec<Ipv4Addr> {
    let mut last = None;
    let mut found = Vec::new();
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(last.filter(|address| !address.is_loopback() && !address.is_link_local()));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// From `/proc/net/if_inet6`: 32 hexadecimal digits; the fourth column is the scope, 00 for global.
fn global_v6(list: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| {
        let mut columns = line.split_ascii_whitespace();
        let digits = columns.next().filter(|digits| digits.len() == 32)?;
        let scope = columns.nth(2)?;
        (scope == "00").then(|| u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)).flatten()
    };
    list.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_addresses_are_found_in_proc_net() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 127.0.0.0/8 2 0 2\n           \
                    |-- 127.0.0.1\n              /32 host LOCAL\n           |-- 127.255.255.255\n              /32 link BROADCAST\n     \
                    |-- 172.17.0.2\n        /32 host LOCAL\nLocal:\n     |-- 172.17.0.2\n        /32 host LOCAL\n     \
                    |-- 169.254.1.1\n        /32 host LOCAL\n";
        assert_eq!(local_v4(trie), [Ipv4Addr::new(172, 17, 0, 2)]);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe80000000000000004211fffe000002 05 40 20 80     eth0\n\
                    20010db8000000000000000000000002 05 40 00 80     eth0\nrubbish\n";
        assert_eq!(global_v6(list), ["2001:db8::2".parse::<Ipv6Addr>().unwrap()]);
    }

    #[test]
    fn own_addresses_exclude_loopback() {
        assert!(own_addresses().iter().all(|address| !address.is_loopback()));
    }
}
