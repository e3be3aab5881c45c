//! Packets of connections that the server has not accepted, from many addresses.

use tokometer_observe::budget::Budget;

use crate::tests::log::Log;
use crate::tests::packets::{ACK, RST, SYN, Tcp};
use crate::tests::talk::{GET, Talk};

/// More than the table of connections holds.
const FLOOD: u32 = 70_000;

/// Sends these segments of the client and answers of the server from many addresses, then observes a new connection.
fn check(flags: u8, payload: &str, answer: u8) {
    let budget = Budget::new(64 << 20);
    let held = budget.clone();
    let mut talk = Talk::with(Log::new(), |limits| limits.budget = budget);
    let (client, up, down) = (talk.client, talk.up, talk.down);
    let mut most = 0;
    for n in 0..FLOOD {
        talk.client = ((0x0a00_0000 + n).to_be_bytes(), 40_000).into();
        let tcp = talk.client_segment(flags, payload.as_bytes());
        talk.capture(&tcp);
        if answer != 0 {
            let tcp = talk.server_segment(answer, b"");
            talk.capture(&Tcp { ack: tcp.ack.wrapping_add(1), ..tcp });
        }
        most = most.max(held.held());
    }
    assert!(most < 16 << 20, "{most}");
    (talk.client, talk.up, talk.down) = (client, up, down);
    talk.client.set_port(41_000);
    talk.open().c(GET).s("x");
    assert_eq!(talk.calls().len(), 2);
    let stats = talk.tap.stats();
    assert_eq!((stats.opened.get(), stats.attached.get(), stats.shed.get()), (1, 0, 0));
    // A connection in progress is found, too.
    talk.client.set_port(41_001);
    talk.c(GET).s("x");
    assert_eq!(talk.calls().len(), 2);
    talk.wait(31_000).tick().wait(31_000).tick().wait(31_000).tick().end();
    assert_eq!(held.held(), 0);
}

#[test]
fn unanswered_and_half_open_connections_hold_no_place() {
    check(SYN, "", 0);
    check(SYN, "", SYN | ACK);
    check(SYN, GET, SYN | ACK);
}

#[test]
fn data_of_no_connection_creates_no_record() {
    check(ACK, GET, 0);
    check(ACK, GET, RST);
}
