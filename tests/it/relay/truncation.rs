//! A server that ends TLS without close_notify: the effect on the client, and the request's outcome.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::{ServerConnection, StreamOwned};

use tokometer::app::DataPath;
use tokometer::replay::Notebook;
use tokometer_observe::input::Direction;
use tokometer_observe::measure::Outcome;
use tokometer_observe::observer;
use tokometer_proxy::listen::{ClientTls, Listener, ServerTls};
use tokometer_proxy::relay::Settings;

use crate::endings::{DELTA, DONE, FINISH, REQUEST, chunk};
use crate::listener::listener_to;

use super::peer;
use super::peer::{Ending, Wire};
use super::rig::tcp;
use super::sockets::{Authority, tls_client};

/// How the server ends TLS.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    CloseNotify,
    Cut,
}

/// The bytes of `response` that the client received, and the request's outcome.
fn play(authority: &Authority, client_tls: bool, response: &[u8], end: End) -> (Vec<u8>, Ending, Outcome) {
    let (socket, upstream) = peer::listen();
    let (certificate, key) = authority.sign("relay.test");
    let server_name = Some("server.test".to_owned());
    let listener = Listener {
        tls: client_tls.then_some(ServerTls { certificate, key, client_ca: None }),
        upstream_tls: Some(ClientTls { ca: Some(authority.ca()), server_name, identity: None, insecure: false }),
        ..listener_to(upstream)
    };
    let notebook = Notebook::default();
    let sink = Arc::new(notebook.clone());
    let path = DataPath::start(&[listener], Settings::default(), observer::Settings::default(), sink, 1).unwrap();
    let config = authority.server("server.test");
    let server = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let socket = peer::prepare(socket.accept().unwrap().0);
            let mut server = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
            server.read_exact(&mut vec![0; REQUEST.len()]).unwrap();
            server.write_all(response).unwrap();
            server.flush().unwrap();
            if end == End::CloseNotify {
                server.conn.send_close_notify();
                server.conn.write_tls(&mut server.sock).unwrap();
            }
            Wire::finish(&mut server.sock);
        });
        let socket = peer::dial(tcp(&path.addresses()[0]));
        let mut client: Box<dyn ReadWrite> =
            if client_tls { Box::new(tls_client(&authority.client(None), socket)) } else { Box::new(socket) };
        client.write_all(REQUEST).unwrap();
        client.flush().unwrap();
        server.join().unwrap();
        let relay = path.handles().relay;
        // For a large response, the client reads only after the relay has received all of it. Counts of small responses
        // may be reported late, so they are not awaited.
        while response.len() > 100_000 && relay.stats_of(0).bytes(Direction::Response).get() < response.len() as u64 {
            std::thread::yield_now();
        }
        let mut got = Vec::new();
        match client.read_to_end(&mut got) {
            Ok(_) => (got, Ending::Fin),
            Err(_) => (got, Ending::Reset),
        }
    });
    path.stop();
    let records = notebook.take().records;
    assert_eq!(records.len(), 1);
    (server.0, server.1, records[0].outcome)
}

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

/// One complete streamed response in three forms: delimited by the end of the connection, by length, and by chunks.
fn responses() -> [Vec<u8>; 3] {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let events = [DELTA, FINISH, DONE].map(|event| format!("{event}\n\n")).concat();
    let length = events.len();
    let mut chunked = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
    [DELTA, FINISH, DONE].iter().for_each(|event| chunked.extend(chunk(event)));
    chunked.extend(b"0\r\n\r\n");
    [
        format!("{head}\r\n{events}").into_bytes(),
        format!("{head}content-length: {length}\r\n\r\n{events}").into_bytes(),
        chunked,
    ]
}

#[test]
fn truncated_tls_is_an_error_only_for_incomplete_responses() {
    let authority = Authority::new();
    let [delimited, length, chunked] = responses();
    for client_tls in [false, true] {
        let of = |response: &[u8], end| play(&authority, client_tls, response, end);
        assert_eq!(of(&delimited, End::CloseNotify), (delimited.clone(), Ending::Fin, Outcome::Ok));
        assert_eq!(
            of(&delimited, End::Cut),
            (delimited.clone(), Ending::Reset, Outcome::Truncated),
            "TLS {client_tls}"
        );
        // If the client uses TLS, the relay passes the truncation on. The client may ignore it for a complete response.
        let ending = if client_tls { Ending::Reset } else { Ending::Fin };
        for complete in [&length, &chunked] {
            assert_eq!(of(complete, End::Cut), (complete.clone(), ending, Outcome::Ok), "TLS {client_tls}");
        }
        let cut = &length[..length.len() - 5];
        assert_eq!(of(cut, End::Cut), (cut.to_vec(), Ending::Reset, Outcome::Truncated), "TLS {client_tls}");
    }
}

#[test]
fn bytes_before_a_truncation_reach_a_slow_client() {
    let mut response = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n\r\n".to_vec();
    response.resize(160_000, b'x');
    let (got, ending, outcome) = play(&Authority::new(), false, &response, End::Cut);
    assert!(got == response, "{} of {} bytes", got.len(), response.len());
    assert_eq!((ending, outcome), (Ending::Reset, Outcome::Truncated));
}
