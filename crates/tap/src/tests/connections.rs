//! Connections whose beginning is captured.

use std::time::Duration;

use tokometer_observe::input::{Close, Direction, Side};

use crate::tests::log::Call::{self, Accepted, Closed, Finished, Lost, LostPackets, Seen};
use crate::tests::log::Log;
use crate::tests::packets::{ACK, FIN, RST, SYN, Tcp};
use crate::tests::talk::{EPOCH, GET, Talk};

const UP: Direction = Direction::Request;
const DOWN: Direction = Direction::Response;

fn up(text: &str) -> Call {
    Seen(UP, text.into())
}

fn down(text: &str) -> Call {
    Seen(DOWN, text.into())
}

#[test]
fn observer_sees_both_directions_with_capture_times() {
    let mut talk = Talk::new();
    talk.open().wait(5).c("a").wait(2).s("b").wait(1).c_fin().wait(1).s_fin();
    let ms = Duration::from_millis;
    let close = Closed(Close::Finished { first: Side::Client });
    let accepted = Accepted { listener: 3, peer: "10.0.0.1:40000".into(), upstream: "10.0.0.2:8000".into() };
    let calls = talk.log.take_timed().into_iter().filter(|(_, _, call)| !matches!(call, Call::Network(_)));
    assert_eq!(
        calls.collect::<Vec<_>>(),
        [
            (1, ms(0), accepted),
            (1, ms(5), up("a")),
            (1, ms(7), down("b")),
            (1, ms(8), Finished(UP)),
            (1, ms(9), Finished(DOWN)),
            (1, ms(9), close),
        ]
    );
    assert_eq!((talk.tap.stats().opened.get(), talk.tap.stats().open()), (1, 0));
    assert_eq!(talk.tap.stats().bytes(UP).get(), 1);
}

#[test]
fn connection_without_data_creates_no_observer() {
    let mut talk = Talk::new();
    talk.open().c_fin().s_fin();
    assert_eq!(talk.log.take(), []);
    // The server refuses the connection.
    talk.client.set_port(40_001);
    talk.syn().s_rst();
    assert_eq!(talk.log.take(), []);
    assert_eq!((talk.tap.stats().opened.get(), talk.tap.stats().open()), (1, 0));
}

#[test]
fn reordered_segments_are_passed_in_order() {
    let mut talk = Talk::new();
    talk.open().c_after(2, "cd").c_after(6, "gh").c_after(4, "ef");
    assert_eq!(talk.calls(), []);
    assert_eq!(talk.tap.stats().reassembly_bytes.get(), 6);
    talk.wait(3).c("ab");
    assert_eq!(talk.calls(), [up("ab"), up("cd"), up("ef"), up("gh")]);
    assert_eq!((talk.tap.stats().reassembly_bytes.get(), talk.tap.stats().out_of_order.get()), (0, 3));
}

#[test]
fn overlapping_bytes_are_those_that_linux_reads() {
    let mut talk = Talk::new();
    talk.open().c("abcd");
    talk.c_after(-2, "XXef");
    talk.up = talk.up.wrapping_add(2);
    talk.c_after(2, "CD").c_after(1, "b??e").c_after(4, "?f").c_after(3, "??");
    talk.c_after(1, "b").c("a");
    assert_eq!(String::from_utf8(talk.log.bytes(UP)).unwrap(), "abcdefab??ef");
    talk.up = talk.up.wrapping_add(5);
    // Bytes in order take precedence over bytes that were queued earlier.
    talk.c_after(1, "XY").c("1234");
    assert_eq!(String::from_utf8(talk.log.bytes(UP)).unwrap(), "abcdefab??ef1234");
}

#[test]
fn retransmissions_and_probes_add_nothing() {
    let mut talk = Talk::new();
    talk.open().c("abc").c_after(-3, "abc").c_after(-1, "c").c_after(-1, "").c_after(-2, "bc");
    talk.s("x").s_after(-1, "y");
    assert_eq!(talk.calls(), [up("abc"), down("x")]);
    assert_eq!(talk.tap.stats().retransmitted.get(), 2);
}

#[test]
fn fin_waits_for_earlier_bytes() {
    let mut talk = Talk::new();
    talk.open().c("a");
    let tcp = talk.server_segment(ACK | FIN, b"cd");
    talk.capture(&Tcp { seq: tcp.seq.wrapping_add(2), ..tcp });
    assert_eq!(talk.calls(), [up("a")]);
    talk.s("ab");
    assert_eq!(talk.calls(), [down("ab"), down("cd"), Finished(DOWN)]);
    // Bytes after a FIN are ignored.
    talk.s_after(3, "zz");
    talk.wait(200).c_rst().settle();
    assert_eq!(talk.calls(), [Closed(Close::Reset(Side::Client))]);
}

#[test]
fn resets_end_connections_on_their_side() {
    for (by_client, side) in [(true, Side::Client), (false, Side::Server)] {
        let mut talk = Talk::new();
        talk.open().c("a").s("b");
        if by_client {
            talk.c_rst()
        } else {
            talk.s_rst()
        };
        assert_eq!(talk.calls(), [up("a"), down("b")]);
        talk.wait(999).tick();
        assert_eq!(talk.calls(), [], "its sender may go on");
        talk.wait(100).tick();
        assert_eq!(talk.calls(), [Closed(Close::Reset(side))]);
        talk.s("more").c_rst();
        assert_eq!(talk.log.take(), [], "after the end");
        assert_eq!(talk.tap.stats().attached.get(), 0);
    }
    // A reset whose sequence number is out of range does not belong to this connection.
    let mut talk = Talk::new();
    talk.open().c("a");
    let tcp = talk.client_segment(RST, b"");
    talk.capture(&Tcp { seq: tcp.seq.wrapping_add(1 << 31), ..tcp });
    assert_eq!(talk.calls(), [up("a")]);
}

#[test]
fn reset_after_missing_bytes_leaves_the_request_unobserved() {
    let mut talk = Talk::new();
    talk.open().c("a").s("b");
    let tcp = talk.server_segment(RST | ACK, b"");
    talk.lose().capture(&Tcp { seq: tcp.seq.wrapping_add(100), ..tcp }).settle();
    assert_eq!(talk.calls(), [up("a"), down("b"), LostPackets, Lost]);
    assert_eq!((talk.tap.stats().open(), talk.tap.stats().unsynchronised.get()), (0, 0));
}

#[test]
fn reset_by_the_client_does_not_hide_missing_bytes_of_the_response() {
    // First case: a hole before waiting bytes. Second case: missing bytes that only the reset acknowledges.
    for waiting in [true, false] {
        let mut talk = Talk::new();
        talk.open().c("a").s("b");
        if waiting {
            let tcp = talk.server_segment(ACK, b"later");
            talk.capture(&Tcp { seq: tcp.seq.wrapping_add(100), ..tcp });
            talk.lose().c_rst().settle();
        } else {
            let tcp = talk.client_segment(RST | ACK, b"");
            talk.lose().capture(&Tcp { ack: tcp.ack.wrapping_add(100), ..tcp }).settle();
        }
        assert_eq!(talk.calls(), [up("a"), down("b"), LostPackets, Lost], "waiting: {waiting}");
        assert_eq!(talk.tap.stats().open(), 0);
    }
}

#[test]
fn acknowledgement_out_of_range_is_a_gap() {
    let mut talk = Talk::new();
    talk.open().c("a").s("b");
    let tcp = talk.client_segment(ACK, b"");
    talk.lose().capture(&Tcp { ack: tcp.ack.wrapping_add((1 << 31) - 1), ..tcp });
    talk.wait(200).tick();
    assert_eq!(talk.calls(), [up("a"), down("b"), LostPackets, Lost]);
}

#[test]
fn ended_connection_does_not_hide_the_next_one() {
    let mut talk = Talk::new();
    talk.open().c("a").c_rst().settle();
    // A new connection between the same ends; its SYN is not captured.
    for _ in 0..3 {
        talk.wait(4_000).c("b").tick();
    }
    talk.wait(1_000).c("b").s("c");
    assert_eq!(talk.tap.stats().attached.get(), 1);
}

#[test]
fn acknowledged_bytes_that_are_missing_detach_after_100_ms() {
    let mut talk = Talk::new();
    talk.open().c("a").s("b");
    talk.down = talk.down.wrapping_add(10);
    talk.lose().c("").wait(99).tick();
    assert_eq!(talk.calls(), [up("a"), down("b"), LostPackets]);
    talk.wait(1).tick();
    assert_eq!(talk.calls(), [Lost]);
    assert_eq!((talk.tap.stats().gaps.get(), talk.tap.stats().unsynchronised.get()), (1, 1));
    // The next request is observed again, by another observer.
    talk.s("rest").c(GET);
    let calls = talk.log.take_timed();
    assert!(matches!(&calls[..], [(2, _, Accepted { .. }), .., (2, _, call)] if *call == up(GET)), "{calls:?}");
    assert_eq!((talk.tap.stats().synchronised.get(), talk.tap.stats().unsynchronised.get()), (1, 0));
}

#[test]
fn connection_with_a_gap_before_fin_ends() {
    let mut talk = Talk::new();
    talk.open().c("a").s("b");
    talk.down = talk.down.wrapping_add(10);
    talk.s_fin().c("").wait(100).tick();
    assert_eq!((talk.calls(), talk.tap.stats().open()), (vec![up("a"), down("b"), Lost], 1));
    talk.c_fin();
    assert_eq!((talk.tap.stats().open(), talk.tap.stats().unsynchronised.get()), (0, 0));
}

#[test]
fn late_segment_fills_an_acknowledged_gap() {
    let mut talk = Talk::new();
    talk.open().c("a").s_after(2, "de");
    let tcp = talk.client_segment(ACK, b"");
    talk.capture(&Tcp { ack: tcp.ack.wrapping_add(4), ..tcp });
    talk.wait(50).s("bc").wait(500).tick();
    assert_eq!(talk.calls(), [up("a"), down("bc"), down("de")]);
}

#[test]
fn loss_that_is_not_acknowledged_waits_for_the_retransmission() {
    let mut talk = Talk::new();
    talk.open().c("a").s_after(2, "de").wait(30_000).tick();
    talk.s("bc");
    assert_eq!(talk.calls(), [up("a"), down("bc"), down("de")]);
    assert_eq!(talk.tap.stats().gaps.get(), 0);
}

#[test]
fn full_reassembly_buffer_detaches() {
    let mut talk = Talk::with(Log::new(), |limits| limits.reassembly_bytes = 1000);
    talk.open().c("a").s_after(1, &"x".repeat(900)).s_after(1000, "y");
    assert_eq!(talk.calls(), [up("a"), Lost]);
    assert_eq!(talk.tap.stats().reassembly_bytes.get(), 0);
}

#[test]
fn memory_of_waiting_segments_is_charged_and_released() {
    let budget = tokometer_observe::budget::Budget::new(1 << 20);
    let held = budget.clone();
    let mut talk = Talk::with(Log::new(), |limits| limits.budget = budget);
    talk.open();
    let flow = held.held();
    assert!((100..2048).contains(&flow), "{flow}");
    talk.c_after(1, &"x".repeat(1000));
    assert!(held.held() > flow + 1000);
    talk.c("a");
    assert_eq!(held.held(), flow);
    talk.end();
    assert_eq!(held.held(), 0);
}

#[test]
fn connections_over_the_limit_are_shed() {
    let mut talk = Talk::with(Log::new(), |limits| limits.connections = 1);
    talk.open().c("a");
    talk.client.set_port(40_001);
    talk.open().c("b");
    assert_eq!(talk.calls(), [up("a")]);
    assert_eq!(talk.tap.stats().shed.get(), 1);
}

#[test]
fn idle_connections_are_evicted() {
    let mut talk = Talk::with(Log::new(), |limits| limits.idle = Duration::from_secs(60));
    talk.open().c("a").wait(59_999).tick();
    assert_eq!(talk.calls(), [up("a")]);
    // Checked once a second.
    talk.wait(1000).tick();
    assert_eq!((talk.calls(), talk.tap.stats().open()), (vec![Closed(Close::CaptureEnded)], 0));
}

#[test]
fn addresses_and_ports_can_be_used_again() {
    let mut talk = Talk::new();
    talk.open().c("a").c_fin().s_fin();
    talk.up = talk.up.wrapping_add(5000);
    talk.open().c("b");
    let close = Closed(Close::Finished { first: Side::Client });
    assert_eq!(talk.calls(), [up("a"), Finished(UP), Finished(DOWN), close, up("b")]);
    assert_eq!(talk.tap.stats().opened.get(), 2);
}

#[test]
fn syn_on_an_open_connection_counts_once_the_server_accepts_it() {
    let mut talk = Talk::new();
    talk.open().c("a");
    let (up_before, down_before) = (talk.up, talk.down);
    talk.up = talk.up.wrapping_sub(9000);
    talk.syn();
    (talk.up, talk.down) = (up_before, down_before);
    talk.s("b");
    assert_eq!(talk.calls(), [up("a"), down("b")], "anyone can send a SYN");
    (talk.up, talk.down) = (77_000, 88_000);
    talk.open().c("c");
    assert_eq!(talk.calls(), [Closed(Close::Reset(Side::Client)), up("c")]);
}

#[test]
fn repeated_handshake_segments_change_nothing() {
    let mut talk = Talk::new();
    talk.syn().syn();
    talk.up = talk.up.wrapping_add(1);
    let tcp = talk.server_segment(SYN | ACK, b"");
    talk.capture(&tcp).capture(&Tcp { id: 900, ..tcp });
    talk.down = talk.down.wrapping_add(1);
    talk.c("a");
    assert_eq!((talk.calls(), talk.tap.stats().opened.get()), (vec![up("a")], 1));
}

#[test]
fn data_in_syn_and_missing_handshake_segments_are_accepted() {
    // TCP fast open.
    let mut talk = Talk::new();
    let tcp = talk.client_segment(SYN, b"ab");
    talk.capture(&tcp);
    talk.up = talk.up.wrapping_add(3);
    let tcp = talk.server_segment(SYN | ACK, b"");
    talk.capture(&tcp);
    talk.down = talk.down.wrapping_add(1);
    talk.c("cd");
    assert_eq!(talk.calls(), [up("ab"), up("cd")]);
    // Only one segment of the handshake is captured.
    for kept in [SYN, SYN | ACK] {
        let mut talk = Talk::new();
        let tcp = if kept == SYN { talk.client_segment(SYN, b"") } else { talk.server_segment(SYN | ACK, b"") };
        match kept {
            SYN => talk.up = talk.up.wrapping_add(1),
            _ => talk.down = talk.down.wrapping_add(1),
        }
        talk.capture(&tcp).c("a").s("b").c("c");
        assert_eq!(talk.calls(), [up("a"), down("b"), up("c")]);
    }
}

#[test]
fn response_whose_beginning_may_be_missing_is_not_observed() {
    // Neither the server's SYN nor the client's first acknowledgement is captured.
    let mut talk = Talk::new();
    talk.syn();
    talk.up = talk.up.wrapping_add(1);
    talk.s("the middle of a response").c("");
    assert_eq!((talk.log.take(), talk.tap.stats().unsynchronised.get()), (vec![], 1));
    talk.c(GET).s("a");
    assert_eq!(talk.calls(), [up(GET), down("a")]);
    let mut talk = Talk::new();
    talk.syn();
    talk.up = talk.up.wrapping_add(20);
    talk.c("the middle of a request").s("b");
    assert_eq!((talk.log.take(), talk.tap.stats().unsynchronised.get()), (vec![], 1));
}

#[test]
fn second_capture_of_each_packet_is_dropped() {
    for flags in [false, true] {
        let mut talk = Talk::new();
        talk.open();
        for text in ["ab", "cd"] {
            let tcp = talk.server_segment(ACK, text.as_bytes());
            for outgoing in [true, false] {
                talk.outgoing = flags.then_some(outgoing);
                talk.capture(&tcp);
            }
            talk.down = talk.down.wrapping_add(2);
        }
        assert_eq!(talk.calls(), [down("ab"), down("cd")]);
        let stats = talk.tap.stats();
        assert_eq!((stats.duplicates.get(), stats.retransmitted.get(), stats.segments.get()), (2, 0, 5));
    }
}

#[test]
fn capture_that_begins_with_a_second_copy_counts_no_retransmission() {
    let mut talk = Talk::new();
    talk.outgoing = Some(false);
    talk.s("a").c(GET);
    for text in ["bc", "de"] {
        let one = talk.server_segment(ACK, text.as_bytes());
        talk.down = talk.down.wrapping_add(2);
        let two = talk.server_segment(ACK, text.as_bytes());
        talk.down = talk.down.wrapping_add(2);
        for (tcp, outgoing) in [(&one, true), (&two, true), (&one, false), (&two, false)] {
            talk.outgoing = Some(outgoing);
            talk.capture(tcp);
        }
    }
    assert_eq!(talk.log.bytes(DOWN), b"bcbcdede");
    assert_eq!((talk.tap.stats().retransmitted.get(), talk.tap.stats().duplicates.get()), (0, 4));
}

#[test]
fn second_capture_replaces_a_lost_first_one() {
    let mut talk = Talk::new();
    talk.open().lose();
    let first = talk.server_segment(ACK, b"ab");
    let second = Tcp { seq: first.seq.wrapping_add(2), payload: b"cd".into(), id: 77, ..first.clone() };
    for (tcp, outgoing) in [(&first, true), (&first, false), (&second, false)] {
        talk.outgoing = Some(outgoing);
        talk.capture(tcp);
    }
    assert_eq!(talk.calls(), [down("ab"), down("cd")]);
    // The first copies of both packets are captured before the second copies.
    let mut talk = Talk::new();
    talk.open();
    for (tcp, outgoing) in [(&first, true), (&second, true), (&first, false), (&second, false)] {
        talk.outgoing = Some(outgoing);
        talk.capture(tcp);
    }
    assert_eq!(talk.calls(), [down("ab"), down("cd")]);
    assert_eq!((talk.tap.stats().duplicates.get(), talk.tap.stats().retransmitted.get()), (2, 0));
}

#[test]
fn truncated_segment_is_a_gap() {
    let mut talk = Talk::new();
    talk.open().c("a");
    let tcp = talk.server_segment(ACK, b"abcdefgh");
    let mut packet = tcp.packet(talk.link);
    packet.bytes.truncate(packet.bytes.len() - 3);
    packet.at = EPOCH;
    talk.tap.packet(&packet.as_packet());
    talk.down = talk.down.wrapping_add(8);
    talk.s("ij").c("").wait(100).tick();
    assert_eq!(talk.calls(), [up("a"), down("abcde"), Lost]);
    assert_eq!((talk.tap.stats().truncated.get(), talk.tap.stats().gaps.get()), (1, 1));
}

#[test]
fn end_of_the_capture_is_not_the_end_of_the_connection() {
    let mut talk = Talk::new();
    talk.open().c("a").end();
    assert_eq!(talk.calls(), [up("a"), Closed(Close::CaptureEnded)]);
    let mut talk = Talk::new();
    talk.open().c("a").s("b").s_fin().end();
    let close = Closed(Close::Finished { first: Side::Server });
    assert_eq!(talk.calls(), [up("a"), down("b"), Finished(DOWN), close]);
    // A client that has finished may still wait for its response.
    let mut talk = Talk::new();
    talk.open().c("a").c_fin();
    drop(talk.tap);
    assert_eq!(talk.log.take()[1..], [up("a"), Finished(UP), Closed(Close::CaptureEnded)]);
}

#[test]
fn kernel_drops_are_passed_to_open_connections() {
    let mut talk = Talk::new();
    talk.open().c("a");
    talk.tap.lost(7, EPOCH);
    assert_eq!((talk.calls(), talk.tap.stats().kernel_drops.get()), (vec![up("a"), LostPackets], 7));
}

#[test]
fn panic_of_an_observer_is_contained() {
    let mut talk = Talk::with(Log { panics_at: Some("bad"), ..Log::new() }, |_| {});
    talk.open().c("a").c("bad").c("b").c_fin().s_fin();
    assert_eq!(talk.calls(), [up("a")]);
    assert_eq!((talk.tap.stats().observer_panics.get(), talk.tap.stats().open()), (1, 0));
}

#[test]
fn connections_that_the_observers_refuse_are_followed_to_their_end() {
    let mut talk = Talk::with(Log { refuses: true, ..Log::new() }, |_| {});
    talk.open().c("abc").s("de").c_fin().s_fin();
    assert_eq!((talk.calls(), talk.tap.stats().open()), (vec![], 0));
    assert_eq!((talk.tap.stats().ended.get(), talk.tap.stats().unsynchronised.get()), (1, 0));
}

#[test]
fn tls_is_counted_and_shown_to_the_observer() {
    let mut talk = Talk::new();
    talk.open().c("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}");
    assert_eq!((talk.calls().len(), talk.tap.stats().tls.get()), (1, 1));
}
