//! Tests network measurements from packets.

use std::time::Duration;

use tokometer_observe::input::Network;

use crate::tests::log::Call;
use crate::tests::packets::{ACK, SYN};
use crate::tests::talk::Talk;

const MS: Duration = Duration::from_millis(1);

/// The last reported values.
fn last(talk: &Talk) -> Network {
    let calls = talk.log.take_timed();
    let network = calls.iter().rev().find_map(|(_, _, call)| match call {
        Call::Network(network) => Some(*network),
        _ => None,
    });
    network.unwrap()
}

#[test]
fn round_trip_comes_from_the_handshake_and_from_data() {
    let mut talk = Talk::new();
    talk.syn();
    talk.up = talk.up.wrapping_add(1);
    let tcp = talk.server_segment(SYN | ACK, b"");
    talk.down = talk.down.wrapping_add(1);
    talk.wait(1).capture(&tcp).wait(20).c("").wait(1).c("a").wait(100).s("b");
    let network = last(&talk);
    assert_eq!(network, Network { rtt: Some(20 * MS), retransmits: Some(0), zero_window: Some(Duration::ZERO) });
    talk.wait(15).c("").s("c");
    assert_eq!(last(&talk).rtt, Some(15 * MS));
    talk.wait(90).c("").s("d");
    assert!(talk.log.take_timed().iter().all(|(_, _, call)| !matches!(call, Call::Network(_))), "no change");
}

#[test]
fn segments_sent_again_to_the_client_are_counted() {
    let mut talk = Talk::new();
    talk.open().c("ab").c_after(-2, "ab").s("cd").s_after(-2, "cd").s_after(-1, "d").s_after(-1, "").s("e");
    assert_eq!(last(&talk).retransmits, Some(1));
    assert_eq!(talk.tap.stats().retransmitted.get(), 2);
    // A retransmission is also reported if the connection ends directly afterwards.
    talk.s_after(-2, "de").c_rst().settle();
    assert_eq!(last(&talk).retransmits, Some(2));
}

#[test]
fn zero_window_of_the_client_is_time_that_it_blocks() {
    let mut talk = Talk::new();
    talk.open().c("a").wait(10).s("b");
    talk.window = 0;
    talk.wait(1).c("").wait(40).c("");
    talk.window = 9;
    talk.wait(2).c("").wait(3).s("c");
    let calls = talk.log.take_timed();
    let calls: Vec<_> = calls.into_iter().map(|(_, at, call)| (at, call)).collect();
    let blocked = (53 * MS, Call::Blocked(42 * MS));
    let at = calls.iter().position(|call| *call == blocked).unwrap_or_else(|| panic!("{calls:?}"));
    assert_eq!(calls[at - 1], (11 * MS, Call::Waits));
    assert!(matches!(calls[at + 1].1, Call::Network(Network { zero_window: Some(time), .. }) if time == 42 * MS));
    // The connection ends while the window is zero.
    talk.window = 0;
    talk.c("").wait(7).s_rst().settle();
    let calls = talk.log.take();
    assert_eq!(calls[..2], [Call::Waits, Call::Blocked(7 * MS)]);
}
