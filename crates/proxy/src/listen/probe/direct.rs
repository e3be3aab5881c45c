//! Connections of other local processes to the server, such as a proxy in the same pod. They bypass this proxy, although
//! the server accepts no connections on an address of the pod.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::listen::upstream::own::canonical;

/// Maximum number of a server's connections that are examined. Reading them takes about 1 µs each.
const MAX_CONNECTIONS: usize = 16_384;

/// A client's address and the server's address.
type Connection = (SocketAddr, SocketAddr);

/// One end of an established connection on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct End {
    local: SocketAddr,
    remote: SocketAddr,
    inode: u32,
}

/// How long a bypass is reported after the last connection was seen. Connections are looked for once a minute, and a
/// proxy without traffic closes its connections.
const REPORTED: Duration = Duration::from_secs(15 * 60);

/// Finds connections of other processes to a server on this machine.
#[derive(Debug, Default)]
pub struct DirectClients {
    /// The connections that the last look found.
    suspects: HashSet<Connection>,
    /// Whether the look before found none.
    new: bool,
    /// When a connection was last found by two consecutive looks.
    seen: Option<Instant>,
}

impl DirectClients {
    /// Looks for connections to `port`. Returns whether other processes were connected in the last minutes; `None` if this
    /// is not known. A connection counts from the second look on: a single look may take a new connection of this process
    /// for another one's.
    pub(super) fn look(&mut self, port: u16, now: Instant) -> Option<bool> {
        let found = clients(port);
        let known = found.is_ok();
        match found {
            Ok(found) => {
                let last = std::mem::replace(&mut self.suspects, found);
                self.new = last.is_empty();
                if !self.suspects.is_disjoint(&last) {
                    self.seen = Some(now);
                }
            }
            Err(error) => {
                self.new = false;
                tracing::debug!(%error, "Cannot look for connections of other processes to the server.");
            }
        }
        let seen = self.seen.is_some_and(|seen| now.duration_since(seen) < REPORTED);
        (known || seen).then_some(seen)
    }

    /// Whether the last look found the first connections, so that another look soon is useful.
    pub fn unconfirmed(&self) -> bool {
        self.new && !self.suspects.is_empty()
    }
}

/// The connections of other processes to the server at `port`.
fn clients(port: u16) -> io::Result<HashSet<Connection>> {
    let mut ends = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (source, destination) in [(port, 0), (0, port)] {
            established(family as u8, source, destination, &mut ends)?;
        }
    }
    Ok(foreign(&ends, &own_sockets()?, port))
}

/// The connections to the server at `port` whose client's socket does not belong to this process.
fn foreign(ends: &[End], own: &HashSet<u32>, port: u16) -> HashSet<Connection> {
    let ours: HashSet<Connection> =
        ends.iter().filter(|end| own.contains(&end.inode)).map(|end| (end.local, end.remote)).collect();
    let accepted = ends.iter().filter(|end| end.local.port() == port && !own.contains(&end.inode));
    accepted.map(|end| (end.remote, end.local)).filter(|connection| !ours.contains(connection)).collect()
}

/// The inode numbers of this process's sockets.
fn own_sockets() -> io::Result<HashSet<u32>> {
    let links = fs::read_dir("/proc/self/fd")?.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(links.filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()).collect())
}

// A request and its responses on a netlink socket (sock_diag(7); include/uapi/linux/inet_diag.h). The kernel selects by
// state and port, so that the cost does not depend on other connections, nor on closed ones in TIME_WAIT.
const DIAG_BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x301;
const ESTABLISHED: u32 = 1 << 1;
const HEADER: usize = 16;
const REQUEST: usize = HEADER + 56;

/// Appends the ends of established connections with these ports; a port of 0 is any port.
fn established(family: u8, source: u16, destination: u16, ends: &mut Vec<End>) -> io::Result<()> {
    let mut request = Vec::with_capacity(REQUEST);
    request.extend((REQUEST as u32).to_ne_bytes());
    request.extend(DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(ESTABLISHED.to_ne_bytes());
    request.extend(source.to_be_bytes());
    request.extend(destination.to_be_bytes());
    request.resize(REQUEST, 0);

    let protocol = Protocol::from(libc::NETLINK_SOCK_DIAG);
    let mut socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::DGRAM, Some(protocol))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.write_all(&request)?;
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let length = socket.read(&mut buffer)?;
        if parse(&buffer[..length], ends)? {
            return Ok(());
        }
        if ends.len() > MAX_CONNECTIONS {
            return Err(io::Error::other("the server has too many connections"));
        }
    }
}

/// Appends the ends in these messages. Returns whether they include the last one.
fn parse(mut messages: &[u8], ends: &mut Vec<End>) -> io::Result<bool> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    while !messages.is_empty() {
        let length = word(messages, 0).ok_or_else(invalid)? as usize;
        let message = messages.get(HEADER..length).ok_or_else(invalid)?;
        match u16::from_ne_bytes([messages[4], messages[5]]) {
            DIAG_BY_FAMILY => {
                let end = end(message).ok_or_else(invalid)?;
                // A connection that no process has accepted has no inode.
                ends.extend((end.inode != 0).then_some(end));
            }
            kind if i32::from(kind) == libc::NLMSG_DONE => return Ok(true),
            kind if i32::from(kind) == libc::NLMSG_ERROR => {
                let errno = word(message, 0).ok_or_else(invalid)?;
                return Err(io::Error::from_raw_os_error((errno as i32).wrapping_neg()));
            }
            _ => {}
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// A `struct inet_diag_msg`: ports and addresses from byte 4, the inode at byte 68.
fn end(message: &[u8]) -> Option<End> {
    let v4 = i32::from(*message.first()?) == libc::AF_INET;
    let address = |port: usize, ip: usize| {
        let port = u16::from_be_bytes(message.get(port..port + 2)?.try_into().ok()?);
        let ip: [u8; 16] = message.get(ip..ip + 16)?.try_into().ok()?;
        let ip = if v4 { IpAddr::from([ip[0], ip[1], ip[2], ip[3]]) } else { IpAddr::from(ip) };
        Some(canonical(SocketAddr::new(ip, port)))
    };
    Some(End { local: address(4, 8)?, remote: address(6, 24)?, inode: word(message, 68)? })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn both_ends_of_a_connection_are_read_and_closed_ones_are_not() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(server) = TcpListener::bind(host) else { continue };
            let address = server.local_addr().unwrap();
            let client = TcpStream::connect(address).unwrap();
            let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
            let read = |source, destination| {
                let mut ends = Vec::new();
                established(family, source, destination, &mut ends).unwrap();
                ends.iter().map(|end| (end.local, end.remote)).collect::<Vec<_>>()
            };
            let port = address.port();
            assert_eq!(read(port, 0), [], "not accepted yet");
            let _accepted = server.accept().unwrap();
            let name = client.local_addr().unwrap();
            assert_eq!((read(port, 0), read(0, port)), (vec![(address, name)], vec![(name, address)]));
            assert_eq!(clients(port).unwrap(), HashSet::new(), "both ends are this process's own");
            drop(client);
            assert_eq!(read(0, port), [], "closed by the client");
        }
    }

    #[test]
    fn truncated_and_failed_responses_are_errors() {
        let message = |kind: u16, length: u32, body: &[u8]| {
            let mut message = length.to_ne_bytes().to_vec();
            message.extend(kind.to_ne_bytes());
            message.extend([0; 10]);
            message.extend(body);
            message
        };
        let mut end = [0; 72];
        end[0] = libc::AF_INET as u8;
        end[4..8].copy_from_slice(&[0x1f, 0x40, 0xc3, 0x50]);
        end[8..12].copy_from_slice(&[127, 0, 0, 1]);
        end[24..28].copy_from_slice(&[127, 0, 0, 2]);
        end[68..72].copy_from_slice(&4711_u32.to_ne_bytes());
        let row = message(DIAG_BY_FAMILY, 88, &end);
        let done = message(libc::NLMSG_DONE as u16, 20, &[0; 4]);
        let expected = End { local: at("127.0.0.1:8000"), remote: at("127.0.0.2:50000"), inode: 4711 };
        let mut ends = Vec::new();
        assert!(!parse(&row, &mut ends).unwrap());
        assert!(parse(&[row.clone(), done].concat(), &mut ends).unwrap());
        assert_eq!(ends, [expected, expected]);

        let denied = message(libc::NLMSG_ERROR as u16, 20, &(-libc::EPERM).to_ne_bytes());
        assert_eq!(parse(&denied, &mut ends).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        for cut in 1..row.len() {
            assert!(parse(&row[..cut], &mut ends).is_err(), "{cut}");
        }
        for length in [0, 15, 89, u32::MAX] {
            assert!(parse(&message(DIAG_BY_FAMILY, length, &end), &mut ends).is_err(), "{length}");
        }
    }

    #[test]
    fn clients_of_other_processes_are_found() {
        let end = |local, remote, inode| End { local: at(local), remote: at(remote), inode };
        let ends = [
            // This process is connected to the server,
            end("127.0.0.1:1", "127.0.0.1:8000", 1),
            end("127.0.0.1:8000", "127.0.0.1:1", 2),
            // and so is another one,
            end("127.0.0.1:3", "127.0.0.1:8000", 3),
            end("127.0.0.1:8000", "127.0.0.1:3", 4),
            // and a client on another machine.
            end("10.0.0.1:8000", "10.0.0.2:5", 5),
            // Clients of this process's own listener on the same port.
            end("10.0.0.3:8000", "10.0.0.2:6", 6),
        ];
        let found = foreign(&ends, &HashSet::from([1, 6]), 8000);
        assert_eq!(
            found,
            HashSet::from([(at("127.0.0.1:3"), at("127.0.0.1:8000")), (at("10.0.0.2:5"), at("10.0.0.1:8000"))])
        );
    }
}
