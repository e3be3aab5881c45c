//! The whole program: a session is forwarded unmodified, and its responses are counted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use tokometer::replay::Notebook;
use tokometer_observe::measure::{CountSource, Outcome};

use super::model::{FIN, frame};
use super::observed::{COMMIT, DELTA, DONE, HANDSHAKE, SWITCHED, of_client, of_server};
use crate::end_to_end::relay_to;

#[test]
fn session_is_forwarded_unmodified_and_its_responses_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let notebook = Notebook::default();
    let (path, url) = relay_to(listener.local_addr().unwrap(), &notebook);
    let asked = [of_client(COMMIT), frame(FIN | 9, Some([7; 4]), b"ping")].concat();
    let response_complete =
        [of_server(DELTA), frame(FIN | 10, None, b"ping"), of_server(DELTA), of_server(DONE)].concat();
    let closes = (frame(FIN | 8, Some([5; 4]), &[0x03, 0xe8]), frame(FIN | 8, None, &[0x03, 0xe8]));

    let expected = [HANDSHAKE, &asked, &asked, &closes.0].concat();
    let (length, ask, response, close) = (asked.len(), asked.clone(), response_complete.clone(), closes.1.clone());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        let mut read = |stream: &mut TcpStream, length: usize| {
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes).unwrap();
            got.extend(bytes);
        };
        read(&mut stream, HANDSHAKE.len());
        stream.write_all(SWITCHED).unwrap();
        for _ in 0..2 {
            read(&mut stream, length);
            stream.write_all(&response).unwrap();
        }
        read(&mut stream, close.len() + 4);
        stream.write_all(&close).unwrap();
        got
    });
    let mut client = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    let mut got = Vec::new();
    let mut read = |client: &mut TcpStream, length: usize| {
        let mut bytes = vec![0; length];
        client.read_exact(&mut bytes).unwrap();
        got.extend(bytes);
    };
    client.write_all(HANDSHAKE).unwrap();
    read(&mut client, SWITCHED.len());
    for _ in 0..2 {
        client.write_all(&ask).unwrap();
        read(&mut client, response_complete.len());
    }
    client.write_all(&closes.0).unwrap();
    client.read_to_end(&mut got).unwrap();
    drop(client);
    assert_eq!(server.join().unwrap(), expected);
    assert_eq!(got, [SWITCHED, &response_complete, &response_complete, &closes.1].concat());
    path.stop();

    let replayed = notebook.take();
    let outcomes: Vec<Outcome> = replayed.records.iter().map(|record| record.outcome).collect();
    assert_eq!(outcomes, [Outcome::Ok; 3]);
    for response in &replayed.records[1..] {
        assert_eq!(response.tokens.output.map(|n| (n.tokens, n.source)), Some((3, CountSource::Usage)));
        assert!(response.since_requested(response.times.first_token).is_some());
    }
    assert_eq!((replayed.detached.len(), replayed.in_flight), (0, 0));
}
