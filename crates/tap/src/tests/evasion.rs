//! Packets that the server's kernel ignores must not change a record.

use std::time::Instant;

use tokometer_observe::input::{Close, Direction, Side};
use tokometer_observe::measure::Record;

use crate::tests::log::Call;
use crate::tests::observers::{LAST, REQUEST, TOKEN, talk, values};
use crate::tests::packets::{ACK, FIN, RST, SYN, Sums, Tcp, URG};
use crate::tests::talk::Talk;

/// A change of a client's or server's segment.
type Change = fn(Tcp) -> Tcp;

/// Two requests on one connection, with other packets between their parts.
fn records(start: Instant, sums: Sums, evade: &dyn Fn(&mut Talk)) -> Vec<String> {
    let (mut talk, kept) = talk();
    talk.sums = sums;
    talk.timestamp = 7000;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: ";
    let head = format!("{head}{}\r\n\r\n", 3 * TOKEN.len() + LAST.len());
    talk.open();
    for _ in 0..2 {
        evade(talk.wait(1));
        talk.c(&REQUEST[..40]).s("");
        evade(talk.wait(1));
        talk.c(&REQUEST[40..]).wait(20).s(&head).c("");
        for text in [TOKEN, TOKEN, TOKEN, LAST] {
            talk.wait(700).s(text).wait(1);
            evade(&mut talk);
            talk.c("");
        }
    }
    talk.c_fin().s_fin();
    talk.settle();
    let records = kept.records.lock().unwrap();
    records.iter().map(|record| values(&Record { started: start, ..Record::clone(record) })).collect()
}

fn from_client(talk: &mut Talk, flags: u8, payload: &str, change: Change) {
    let tcp = talk.client_segment(flags, payload.as_bytes());
    talk.capture(&change(tcp));
}

fn check(name: &str, sums: Sums, evade: &dyn Fn(&mut Talk)) {
    let start = Instant::now();
    let (plain, evaded) = (records(start, sums, &|_| {}), records(start, sums, evade));
    assert_eq!(plain.len(), 2);
    assert!(plain.iter().all(|record| record.contains("outcome: Ok")), "{plain:?}");
    assert_eq!(plain, evaded, "{name}");
}

/// Bytes other than those that the client sends to its server.
const OTHER: &str = "GET /other HTTP/1.1\r\nHost: a\r\n\r\nGET /more HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn segments_that_the_server_ignores_change_no_record() {
    let cases: [(&str, u8, &str, Change); 23] = [
        ("old reset", RST, "", |tcp| after(tcp, -3)),
        ("reset within the window", RST, "", |tcp| after(tcp, 100)),
        ("reset within the window, with an acknowledgement", RST | ACK, "", |tcp| after(tcp, 1)),
        ("reset at the end of the window", RST, "", |tcp| after(tcp, 256_000)),
        ("reset outside of the window", RST, "", |tcp| after(tcp, 500_000_000)),
        ("reset out of range", RST, "", |tcp| after(tcp, i32::MIN)),
        ("reset with data", RST, OTHER, |tcp| after(tcp, 10)),
        ("reset after which the client goes on", RST, "", |tcp| tcp),
        ("SYN of another connection", SYN, "", |tcp| after(tcp, 9000)),
        ("SYN with the next number", SYN, "", |tcp| tcp),
        ("SYN with data", SYN, OTHER, |tcp| after(tcp, -1)),
        ("SYN-ACK of the client", SYN | ACK, OTHER, |tcp| after(tcp, -1)),
        ("SYN and FIN", SYN | FIN, OTHER, |tcp| after(tcp, -1)),
        ("data with an acknowledgement of bytes never sent", ACK, OTHER, |tcp| Tcp {
            ack: tcp.ack.wrapping_add(99),
            ..tcp
        }),
        ("FIN with an acknowledgement of bytes never sent", ACK | FIN, "", |tcp| Tcp {
            ack: tcp.ack.wrapping_add(1),
            ..tcp
        }),
        ("data with an acknowledgement of long ago", ACK, OTHER, |tcp| Tcp {
            ack: tcp.ack.wrapping_sub(1 << 20),
            ..tcp
        }),
        ("data outside of the window", ACK, OTHER, |tcp| after(tcp, 256_000)),
        ("data with an old timestamp", ACK, OTHER, |tcp| stamped(tcp, 6998)),
        ("FIN with an old timestamp", ACK | FIN, "", |tcp| stamped(tcp, 1)),
        ("old FIN", ACK | FIN, "", |tcp| after(tcp, -2)),
        ("FIN outside of the window", ACK | FIN, "", |tcp| after(tcp, 256_001)),
        ("FIN out of range", ACK | FIN, OTHER, |tcp| after(tcp, i32::MIN)),
        ("repeated byte with another value", ACK, "#", |tcp| after(tcp, -1)),
    ];
    for (name, flags, payload, change) in cases {
        check(name, Sums::Correct, &|talk| from_client(talk, flags, payload, change));
    }
}

fn after(tcp: Tcp, distance: i32) -> Tcp {
    Tcp { seq: tcp.seq.wrapping_add_signed(distance), ..tcp }
}

fn stamped(mut tcp: Tcp, timestamp: u32) -> Tcp {
    tcp.options[4..8].copy_from_slice(&timestamp.to_be_bytes());
    tcp
}

#[test]
fn packets_with_wrong_checksums_change_no_record() {
    for (flags, payload) in [(RST, ""), (ACK, OTHER), (ACK | FIN, "")] {
        // A packet with the same headers follows, so that this one must not count as its first copy.
        check("wrong", Sums::Correct, &|talk| {
            from_client(talk, flags, payload, |tcp| Tcp { sums: Sums::Wrong, ..tcp })
        });
    }
    // In a capture on the sending host, all checksums of a direction are missing.
    let start = Instant::now();
    assert_eq!(records(start, Sums::Missing, &|_| {}), records(start, Sums::Correct, &|_| {}));
}

#[test]
fn forged_packets_of_the_server_change_no_record() {
    for distance in [-5, 40, 500_000_000] {
        check("reset", Sums::Correct, &|talk| {
            let tcp = talk.server_segment(RST | ACK, b"");
            talk.capture(&after(tcp, distance));
        });
    }
    // This host sends the server's packets, so a received one comes from another host.
    let mut talk = Talk::new();
    talk.open().c("a");
    for (flags, text, is_sent) in [(ACK, "b", true), (ACK, "X", false), (RST, "", false), (ACK, "c", true)] {
        let tcp = talk.server_segment(flags, text.as_bytes());
        talk.outgoing = Some(is_sent);
        talk.capture(&tcp).wait(2);
        talk.down = talk.down.wrapping_add(if is_sent { 1 } else { 0 });
    }
    talk.settle();
    assert_eq!(talk.log.bytes(Direction::Response), b"bc");
    assert_eq!(talk.tap.stats().open(), 1);
}

#[test]
fn fin_before_accepted_bytes_has_no_effect() {
    let mut talk = Talk::new();
    talk.open();
    let tcp = talk.client_segment(ACK | FIN, b"");
    talk.capture(&after(tcp, 2)).c("abcd").s("x");
    assert_eq!((talk.log.bytes(Direction::Request), talk.calls().len()), (b"abcd".to_vec(), 2));
}

#[test]
fn urgent_byte_is_not_part_of_the_stream() {
    let mut talk = Talk::new();
    talk.open();
    let tcp = Tcp { urgent: 3, ..talk.client_segment(ACK | URG, b"ab#cd") };
    talk.up = talk.up.wrapping_add(5);
    talk.capture(&tcp).c("e");
    // An urgent byte of a later segment.
    let tcp = Tcp { urgent: 2, ..talk.client_segment(ACK | URG, b"f") };
    talk.up = talk.up.wrapping_add(1);
    talk.capture(&tcp).c("#g");
    assert_eq!(talk.log.bytes(Direction::Request), b"abcdefg");
}

#[test]
fn data_in_syn_counts_only_if_the_server_acknowledges_it() {
    let mut talk = Talk::new();
    let tcp = talk.client_segment(SYN, OTHER.as_bytes());
    let other = after(tcp.clone(), -5000);
    talk.capture(&tcp).capture(&other);
    talk.up = talk.up.wrapping_add(1);
    let tcp = talk.server_segment(SYN | ACK, b"");
    talk.capture(&tcp);
    talk.down = talk.down.wrapping_add(1);
    talk.c("ab").s("x");
    assert_eq!(talk.log.bytes(Direction::Request), b"ab");
}

#[test]
fn response_counts_without_the_windows_of_the_client() {
    let mut talk = Talk::new();
    talk.open().c("a");
    let text = "x".repeat(40_000);
    for _ in 0..10 {
        talk.s(&text);
    }
    assert_eq!(talk.log.bytes(Direction::Response).len(), 400_000);
}

#[test]
fn second_syn_does_not_change_the_window_scale() {
    let text = "x".repeat(600);
    let mut talk = Talk::new();
    let again = Tcp { options: vec![], ..talk.syn().client_segment(SYN, b"") };
    talk.up = talk.up.wrapping_add(1);
    let answer = talk.server_segment(SYN | ACK, b"");
    talk.capture(&answer).capture(&again);
    talk.down = talk.down.wrapping_add(1);
    talk.c(&text).s("").c(&text).c(&text);
    assert_eq!(talk.log.bytes(Direction::Request).len(), 1800);
}

#[test]
fn timestamps_may_begin_after_the_handshake() {
    let mut talk = Talk::new();
    talk.open();
    talk.timestamp = 3_000_000_000;
    talk.c("a").s("b");
    assert_eq!(talk.log.bytes(Direction::Request), b"a");
}

#[test]
fn packets_that_the_capturing_host_has_merged_count() {
    let mut talk = Talk::new();
    talk.sums = Sums::Correct;
    talk.open().c("a");
    talk.sums = Sums::Unfinished;
    talk.c("bc").s("d");
    assert_eq!((talk.log.bytes(Direction::Request), talk.tap.stats().ignored.get()), (b"abc".to_vec(), 0));
}

#[test]
fn reset_connection_ends_at_the_time_of_the_reset() {
    let mut talk = Talk::new();
    talk.open().c("a").s("b").c("").wait(5).s_rst();
    let reset = talk.at;
    // An acknowledgement under way.
    talk.wait(20).c("").settle();
    assert_eq!(talk.log.take_timed().last(), Some(&(1, reset, Call::Closed(Close::Reset(Side::Server)))));
}

#[test]
fn reset_counts_once_nothing_follows() {
    // The tap does not know exactly what was sent, because packets were lost.
    let mut talk = Talk::new();
    talk.open().c("a").s("b").c("").lose();
    from_client(&mut talk, RST, "", |tcp| after(tcp, 100));
    talk.wait(500).s("c").wait(5).c("").settle().s("d");
    assert_eq!(talk.log.bytes(Direction::Response), b"bcd");
    assert_eq!((talk.tap.stats().open(), talk.tap.stats().gaps.get()), (1, 0));
}

#[test]
fn unobserved_connection_is_found_again_despite_forged_segments() {
    let mut talk = Talk::new();
    talk.s("in progress").c("");
    from_client(&mut talk, ACK, "bytes after a hole", |tcp| after(tcp, 5000));
    from_client(&mut talk, ACK | FIN, "", |tcp| after(tcp, 300));
    from_client(&mut talk, ACK | FIN, "", |tcp| after(tcp, -30));
    talk.c("GET / HTTP/1.1\r\n\r\n").s("a");
    assert_eq!(talk.calls().len(), 2);
}
