//! The whole program: compressed bytes are forwarded unmodified, and their content is counted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use tokometer::replay::Notebook;
use tokometer_observe::measure::{CountSource, Outcome};

use super::encode::{ENCODINGS, encode, encoded_parts};
use crate::end_to_end::relay_to;

#[test]
fn compressed_traffic_is_forwarded_unmodified_and_counted() {
    let delta = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let end = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
        data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":30}}\n\ndata: [DONE]\n\n";
    for (name, coding) in ENCODINGS {
        let asked = encode(name, &[br#"{"model":"m","stream":true,"max_tokens":77}"#]);
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n",
            asked.len()
        );
        let request = [request.as_bytes(), &asked].concat();
        let mut events = vec![delta.as_bytes(); 30];
        events.push(end.as_bytes());
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n";
        let mut writes = vec![format!("{head}Content-Encoding: {coding}\r\n\r\n").into_bytes()];
        writes.extend(encoded_parts(name, &events));

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let notebook = Notebook::default();
        let (path, url) = relay_to(listener.local_addr().unwrap(), &notebook);
        let (sent, length) = (writes.clone(), request.len());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut got = vec![0; length];
            stream.read_exact(&mut got).unwrap();
            for write in &sent {
                stream.write_all(write).unwrap();
            }
            got
        });
        let mut client = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
        client.write_all(&request).unwrap();
        let mut response = Vec::new();
        client.read_to_end(&mut response).unwrap();
        assert_eq!(server.join().unwrap(), request, "{name}: the request is unmodified");
        assert_eq!(response, writes.concat(), "{name}: the response is unmodified");
        drop(client);
        path.stop();

        let replayed = notebook.take();
        let [record] = replayed.records.as_slice() else { panic!("{name}: one record: {replayed:?}") };
        assert_eq!(record.outcome, Outcome::Ok, "{name}");
        assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((30, CountSource::Usage)), "{name}");
        assert_eq!((record.tokens.chunks, record.request.max_tokens), (30, Some(77)), "{name}");
        assert!(record.times.first_token.is_some(), "{name}");
        assert_eq!(replayed.unread, [], "{name}");
    }
}
