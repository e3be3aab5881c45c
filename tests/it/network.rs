//! Values of the client's network that the proxy reads from the kernel.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokometer::app::DataPath;
use tokometer::replay::Notebook;
use tokometer_observe::input::Network;
use tokometer_observe::measure::Record;
use tokometer_observe::observer;
use tokometer_proxy::listen::{Address, Listener};
use tokometer_proxy::relay;

use crate::listener::listener_to;

/// Body size larger than all socket buffers between server and client together.
const LARGE: usize = 48 << 20;

/// Responds to each request with a body whose length is in the request path.
fn server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("the listener has an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                while let Some(len) = requested(&mut stream) {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
                    if stream.write_all(&[head.as_bytes(), &vec![b'a'; len]].concat()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// The length in the path of the next request; `None` at the end of the connection.
fn requested(stream: &mut impl Read) -> Option<usize> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    head.split(['/', ' ']).nth(2)?.parse().ok()
}

/// Requests a body of `len` bytes, reads the headers of the response, and after `pause` the body.
fn get(stream: &mut (impl Read + Write), len: usize, pause: Duration) {
    write!(stream, "GET /{len} HTTP/1.1\r\nHost: a\r\n\r\n").expect("the request is sent");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("the response has headers");
        head.push(byte[0]);
    }
    // The pause starts after the headers, because a busy server may respond late.
    thread::sleep(pause);
    stream.read_exact(&mut vec![0; len]).expect("the response has a body");
}

/// Runs `client` with a proxy that listens at this address; returns the records.
fn records(listen: Address, client: impl FnOnce(&Address)) -> Vec<Record> {
    let notebook = Notebook::default();
    let listener = Listener { listen, ..listener_to(server()) };
    let settings = (relay::Settings::default(), observer::Settings::default());
    let path = DataPath::start(&[listener], settings.0, settings.1, Arc::new(notebook.clone()), 1)
        .expect("the address is free");
    client(&path.addresses()[0].clone());
    path.stop();
    notebook.take().records
}

fn connect(address: &Address) -> TcpStream {
    let Address::Tcp { host, port } = address else { panic!("a TCP address") };
    TcpStream::connect((host.as_str(), *port)).expect("the proxy accepts")
}

fn any_port() -> Address {
    Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 }
}

fn network(record: &Record) -> Network {
    record.network
}

#[test]
fn time_of_a_full_window_belongs_to_its_request() {
    // During this time the client does not read, so its receive window is full.
    let pause = Duration::from_millis(500);
    let records = records(any_port(), |address| {
        let mut client = connect(address);
        get(&mut client, 10, Duration::ZERO);
        get(&mut client, LARGE, pause);
        get(&mut client, 10, Duration::ZERO);
    });
    let [before, slow, after] = &records[..] else { panic!("three requests") };
    let window = |record| network(record).zero_window.expect("the kernel knows it");
    assert!(window(slow) > pause / 2, "{slow:?}");
    assert!(window(before) < pause / 10 && window(after) < pause / 10, "{before:?} {after:?}");
    for record in &records {
        let rtt = network(record).rtt.expect("a response was acknowledged, or the handshake");
        assert!(rtt > Duration::ZERO && rtt < Duration::from_millis(100), "{rtt:?}");
    }
    // `slow` is not checked, because the kernel may retransmit into a window that was full.
    assert_eq!([before, after].map(|record| network(record).retransmits), [Some(0); 2]);
}

#[test]
fn cancelled_request_has_the_network_values_of_its_end() {
    let records = records(any_port(), |address| {
        let mut client = connect(address);
        write!(client, "GET /{LARGE} HTTP/1.1\r\nHost: a\r\n\r\n").expect("the request is sent");
        client.read_exact(&mut [0; 100]).expect("the response begins");
        thread::sleep(Duration::from_millis(300));
    });
    let window = network(&records[0]).zero_window.expect("the kernel knows it");
    assert!(window > Duration::from_millis(100), "{window:?}");
}

#[test]
fn client_on_a_unix_socket_has_no_network() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("proxy.sock");
    let records = records(Address::Unix(path.clone()), |_| {
        let mut client = UnixStream::connect(&path).expect("the proxy accepts");
        get(&mut client, 10, Duration::ZERO);
    });
    assert!(records.len() == 1 && records[0].network == Network::default(), "{records:?}");
}
