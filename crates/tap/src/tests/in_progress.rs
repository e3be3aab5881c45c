//! Tests connections that are in progress when the capture begins, and how the client and the server are determined.

use tokometer_observe::input::{Close, Direction, Side};

use crate::tests::log::Call::{Accepted, Closed, Finished, Seen};
use crate::tests::packets::ACK;
use crate::tests::talk::{GET, Talk};

#[test]
fn observation_begins_with_the_next_request() {
    let mut talk = Talk::new();
    talk.s("of an earlier response").c("").s("more of it").c("");
    assert_eq!(talk.log.take(), []);
    let stats = talk.tap.stats();
    assert_eq!((stats.attached.get(), stats.unsynchronised.get(), stats.unobserved_bytes.get()), (1, 1, 32));
    talk.wait(1).c(GET).s("HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(
        talk.calls(),
        [Seen(Direction::Request, GET.into()), Seen(Direction::Response, "HTTP/1.1 200 OK\r\n\r\n".into())]
    );
    let stats = talk.tap.stats();
    assert_eq!((stats.synchronised.get(), stats.unsynchronised.get(), stats.open()), (1, 0, 1));
}

#[test]
fn first_captured_segment_can_begin_a_request() {
    let mut talk = Talk::new();
    talk.c(GET).s("a");
    assert_eq!(talk.calls().len(), 2);
}

#[test]
fn request_during_a_response_is_not_a_boundary() {
    let mut talk = Talk::new();
    let before = talk.down;
    talk.s("part of a response");
    // The client has not acknowledged these bytes yet, so its request is pipelined.
    let after = std::mem::replace(&mut talk.down, before);
    talk.c(GET);
    assert_eq!(talk.calls(), []);
    talk.down = after;
    // The request is retransmitted.
    talk.c_after(-(GET.len() as i32), GET);
    assert_eq!(talk.calls(), []);
    talk.c("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(talk.calls().len(), 1);
}

#[test]
fn http2_in_progress_is_never_observed() {
    let mut talk = Talk::new();
    talk.c("\0\0\u{4}\u{8}\0\0\0\0\0").s("\0\0\u{4}\0\0\0\0\0\u{1}data").c("").end();
    assert_eq!(talk.log.take(), []);
    assert_eq!((talk.tap.stats().unsynchronised.get(), talk.tap.stats().ended.get()), (0, 1));
}

#[test]
fn tls_in_progress_is_counted_once() {
    let mut talk = Talk::new();
    talk.s("a");
    let record = [23, 3, 3, 0, 40, 1, 2, 3];
    for _ in 0..2 {
        let tcp = talk.client_segment(ACK, &record);
        talk.up = talk.up.wrapping_add(8);
        talk.capture(&tcp);
    }
    assert_eq!((talk.log.take(), talk.tap.stats().tls.get()), (vec![], 1));
}

#[test]
fn connection_in_progress_ends_with_its_fins() {
    let mut talk = Talk::new();
    talk.s("a").c_fin().s_fin();
    assert_eq!((talk.tap.stats().open(), talk.tap.stats().unsynchronised.get()), (0, 0));
    // This connection is observed before it ends.
    let mut talk = Talk::new();
    talk.s("a").c(GET).s_fin().c_fin();
    let (up, down) = (Direction::Request, Direction::Response);
    let close = Closed(Close::Finished { first: Side::Server });
    assert_eq!(talk.calls(), [Seen(up, GET.into()), Finished(down), Finished(up), close]);
}

#[test]
fn segments_without_data_attach_to_nothing() {
    let mut talk = Talk::new();
    talk.c("").s("").c_rst().c_fin();
    talk.s_rst();
    assert_eq!(talk.tap.stats().attached.get(), 0);
}

#[test]
fn server_is_recognised_by_its_port_and_address() {
    let mut talk = Talk::new();
    talk.server.set_port(8001);
    talk.open().c("a");
    assert_eq!((talk.log.take(), talk.tap.stats().segments.get()), (vec![], 0));
    talk.server.set_ip([10, 0, 0, 9].into());
    talk.open().c("a");
    assert!(matches!(talk.log.take()[0], Accepted { listener: 4, .. }));
}

#[test]
fn direction_between_two_servers_follows_from_the_handshake() {
    let mut talk = Talk::new();
    talk.client = ([10, 0, 0, 9], 8001).into();
    talk.s("in progress: unknown").c(GET);
    assert_eq!(talk.tap.stats().attached.get(), 0);
    talk.open().c("a").s("b");
    let calls = talk.log.take();
    assert!(matches!(&calls[0], Accepted { listener: 3, peer, .. } if peer == "10.0.0.9:8001"), "{calls:?}");
    assert_eq!(calls[1..], [Seen(Direction::Request, "a".into()), Seen(Direction::Response, "b".into())]);
}
