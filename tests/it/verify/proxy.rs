//! A proxy that forwards bytes and applies a test's change to the server's bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Applied to each slice of the server's bytes before it is forwarded.
type Change = fn(&mut Vec<u8>);

/// Listens on a free port and forwards to `server`. The forwarding threads end with their connections.
pub(super) fn start(server: SocketAddr, change: Change) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(upstream) = TcpStream::connect(server) else { continue };
            let (up, down) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
            thread::spawn(move || pass(up, upstream, |_| {}));
            thread::spawn(move || pass(down, client, change));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, change: Change) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 {
            break;
        }
        let mut bytes = buffer[..length].to_vec();
        change(&mut bytes);
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Write).ok();
}

/// Replaces every `from` by `to`; both must have the same length.
pub(super) fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
}
