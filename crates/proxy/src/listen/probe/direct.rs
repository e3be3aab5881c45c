//! Connections of other local processes to the server, such as a proxy in the same pod. They bypass this proxy, although
//! the server accepts no connections on an address of the pod.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::listen::upstream::own::canonical;

/// The state ESTABLISHED in the kernel's socket tables (include/net/tcp_states.h).
const ESTABLISHED: u8 = 1;

/// Maximum number of rows that are read. The kernel returns 4 KiB per read, and with tens of thousands of closed
/// connections (TIME_WAIT), reading all of them took as much CPU time as forwarding new connections.
const MAX_ROWS: usize = 8192;

/// A client's address and the server's address.
type Connection = (SocketAddr, SocketAddr);

/// A row of `/proc/net/tcp` or `/proc/net/tcp6` (Documentation/networking/proc_net_tcp.rst).
#[derive(Debug, PartialEq)]
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    inode: u64,
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
    /// Looks for connections to `port`. Returns whether other processes were connected in the last minutes. A connection
    /// counts from the second look on: a single look may take a new connection of this process for another one's.
    pub(super) fn look(&mut self, port: u16, now: Instant) -> bool {
        match clients(port) {
            Ok(found) => {
                let last = std::mem::replace(&mut self.suspects, found);
                self.new = last.is_empty();
                if !self.suspects.is_disjoint(&last) {
                    self.seen = Some(now);
                }
            }
            Err(error) => {
                self.new = false;
                tracing::debug!(%error, "The kernel's table of connections cannot be read.");
            }
        }
        self.seen.is_some_and(|seen| now.duration_since(seen) < REPORTED)
    }

    /// Whether the last look found the first connections, so that another look soon is useful.
    pub fn unconfirmed(&self) -> bool {
        self.new && !self.suspects.is_empty()
    }
}

/// The connections of other processes to the server at `port`.
fn clients(port: u16) -> io::Result<HashSet<Connection>> {
    let mut sockets = Vec::new();
    let mut keep = |socket: Socket| {
        let at_port = socket.local.port() == port || socket.remote.port() == port;
        // A connection that no process has accepted has no inode.
        if at_port && socket.state == ESTABLISHED && socket.inode != 0 {
            sockets.push(socket);
        }
    };
    read_table("/proc/net/tcp".as_ref(), &mut keep)?;
    match read_table("/proc/net/tcp6".as_ref(), &mut keep) {
        // The kernel has no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => result?,
    }
    Ok(foreign(&sockets, &own_sockets()?, port))
}

/// The connections to the server at `port` whose client's socket does not belong to this process.
fn foreign(sockets: &[Socket], own: &HashSet<u64>, port: u16) -> HashSet<Connection> {
    let ours: HashSet<Connection> = sockets
        .iter()
        .filter(|socket| own.contains(&socket.inode))
        .map(|socket| (socket.local, socket.remote))
        .collect();
    let accepted = sockets.iter().filter(|socket| socket.local.port() == port && !own.contains(&socket.inode));
    accepted.map(|socket| (socket.remote, socket.local)).filter(|connection| !ours.contains(connection)).collect()
}

/// The inode numbers of this process's sockets.
fn own_sockets() -> io::Result<HashSet<u64>> {
    let links = fs::read_dir("/proc/self/fd")?.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(links.filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()).collect())
}

fn read_table(path: &Path, keep: &mut dyn FnMut(Socket)) -> io::Result<()> {
    let mut rows = BufReader::new(File::open(path)?);
    let mut line = String::new();
    let mut read = 0;
    while rows.read_line(&mut line)? > 0 {
        read += 1;
        if read > MAX_ROWS {
            return Err(io::Error::other("it has too many rows"));
        }
        // The first line contains the names of the columns.
        if let Some(socket) = parse(&line) {
            keep(socket);
        }
        line.clear();
    }
    Ok(())
}

fn parse(line: &str) -> Option<Socket> {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (address(columns.next()?)?, address(columns.next()?)?);
    let state = u8::from_str_radix(columns.next()?, 16).ok()?;
    // Queues, timer, retransmissions, user and timeout.
    let inode = columns.nth(5)?.parse().ok()?;
    Some(Socket { local, remote, state, inode })
}

/// An address such as `0100007F:1F40`: 32-bit words in the machine's byte order, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn rows_of_the_kernel_are_parsed() {
        let row = "   3: 0100007F:1F40 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000 20 4 30 10 -1\n";
        let (local, remote) = ("127.0.0.1:8000".parse().unwrap(), "127.0.0.2:50000".parse().unwrap());
        assert_eq!(parse(row), Some(Socket { local, remote, state: ESTABLISHED, inode: 4711 }));
        let of = |text| address(text).map(|address| address.to_string());
        assert_eq!(of("0000000000000000FFFF00000100007F:1F40").as_deref(), Some("127.0.0.1:8000"));
        assert_eq!(of("00000000000000000000000001000000:0050").as_deref(), Some("[::1]:80"));
        for text in ["0100007F", "0100007:1F40", "0100007G:1F40", "0100007F:1F400"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(
            parse("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"),
            None
        );
    }

    #[test]
    fn clients_of_other_processes_are_found() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let socket = |local, remote, inode| Socket { local: at(local), remote: at(remote), state: ESTABLISHED, inode };
        let sockets = [
            // This process is connected to the server,
            socket("127.0.0.1:1", "127.0.0.1:8000", 1),
            socket("127.0.0.1:8000", "127.0.0.1:1", 2),
            // and so is another one,
            socket("127.0.0.1:3", "127.0.0.1:8000", 3),
            socket("127.0.0.1:8000", "127.0.0.1:3", 4),
            // and a client on another machine.
            socket("10.0.0.1:8000", "10.0.0.2:5", 5),
            // Clients of this process's own listener on the same port.
            socket("10.0.0.3:8000", "10.0.0.2:6", 6),
        ];
        let found = foreign(&sockets, &HashSet::from([1, 6]), 8000);
        assert_eq!(
            found,
            HashSet::from([(at("127.0.0.1:3"), at("127.0.0.1:8000")), (at("10.0.0.2:5"), at("10.0.0.1:8000"))])
        );
    }

    #[test]
    fn connections_of_this_process_are_its_own() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let _accepted = server.accept().unwrap();
        assert_eq!(clients(server.local_addr().unwrap().port()).unwrap(), HashSet::new());
    }
}
