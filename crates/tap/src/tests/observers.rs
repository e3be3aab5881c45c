//! Tests the request records that the proxy's observers create from captured packets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokometer_observe::input::{Close, Connection, Direction, Network, Observe, Side};
use tokometer_observe::measure::{Detach, Outcome, Record, Sink};
use tokometer_observe::observer::{Observers, Settings};

use crate::tests::log::Log;
use crate::tests::talk::{EPOCH, Talk};
use crate::{Clock, Limits, Server, Tap};

const MS: Duration = Duration::from_millis(1);

pub(super) const REQUEST: &str =
    "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 27\r\n\r\n{\"model\":\"m\",\"stream\":true}";
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
pub(super) const TOKEN: &str =
    "data: {\"id\":\"chatcmpl-1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
pub(super) const LAST: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// Stores records and detachments.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) records: Mutex<Vec<Arc<Record>>>,
    detached: Mutex<Vec<Detach>>,
}

impl Sink for Recorder {
    fn record(&self, record: &Arc<Record>) {
        self.records.lock().unwrap().push(Arc::clone(record));
    }

    fn detached(&self, _: usize, why: Detach) {
        self.detached.lock().unwrap().push(why);
    }
}

impl Recorder {
    fn outcomes(&self) -> Vec<Outcome> {
        self.records.lock().unwrap().iter().map(|record| record.outcome).collect()
    }

    fn last(&self) -> Record {
        Record::clone(self.records.lock().unwrap().last().unwrap())
    }

    fn detached(&self) -> Vec<Detach> {
        self.detached.lock().unwrap().clone()
    }
}

fn observers() -> (Arc<Recorder>, Arc<Observers>) {
    let kept = Arc::<Recorder>::default();
    let observers = Arc::new(Observers::new(Settings::default(), 1, Arc::clone(&kept) as _));
    (kept, observers)
}

/// A scripted connection with the proxy's observers.
pub(super) fn talk() -> (Talk, Arc<Recorder>) {
    let (kept, observers) = observers();
    let mut talk = Talk::with(Log::new(), |_| {});
    let servers = vec![Server { address: None, port: 8000, listener: 0 }];
    let limits = Limits::new(observers.budget());
    talk.tap = Tap::new(servers, observers, limits, Clock::new(EPOCH, talk.log.start));
    (talk, kept)
}

/// The values that do not depend on the source of the bytes.
pub(super) fn values(record: &Record) -> String {
    format!("{:?}", Record { connection: 0, network: Network::default(), ..record.clone() })
}

#[test]
fn records_equal_those_of_the_proxy() {
    let (mut talk, tapped) = talk();
    talk.open().wait(1).c(REQUEST).wait(30).s(HEAD);
    for _ in 0..5 {
        talk.wait(20).s(TOKEN);
    }
    talk.wait(20).s(LAST).s_fin().wait(1).c_fin();

    let (relayed, observers) = observers();
    let mut at = talk.log.start;
    let connection = Connection { id: 1, peer: None, listener: 0, upstream: "a".into(), accepted: at };
    let mut observer = observers.accepted(&connection).unwrap();
    at += MS;
    observer.seen(Direction::Request, REQUEST.as_bytes(), at);
    at += 30 * MS;
    observer.seen(Direction::Response, HEAD.as_bytes(), at);
    for text in [TOKEN, TOKEN, TOKEN, TOKEN, TOKEN, LAST] {
        at += 20 * MS;
        observer.seen(Direction::Response, text.as_bytes(), at);
    }
    observer.finished(Direction::Response, at);
    observer.finished(Direction::Request, at + MS);
    observer.closed(Close::Finished { first: Side::Server }, at + MS);

    assert_eq!(tapped.outcomes(), [Outcome::Ok]);
    assert_eq!(tapped.last().tokens.chunks, 5);
    assert_eq!(values(&tapped.last()), values(&relayed.last()));
}

#[test]
fn ends_of_connections_give_the_outcomes_of_the_proxy() {
    let begun = |talk: &mut Talk| {
        let head = HEAD.replace("Connection: close", "Content-Length: 9999");
        talk.open().c(REQUEST).s(&head).s(TOKEN);
    };
    type Step = fn(&mut Talk);
    let cases: [(Step, Outcome); 7] = [
        (|talk| _ = talk.c_rst(), Outcome::ClientAbortMidStream),
        (|talk| _ = talk.c_fin().s_fin(), Outcome::ClientAbortMidStream),
        (|talk| _ = talk.s_rst(), Outcome::UpstreamReset),
        (|talk| _ = talk.s_fin().c_fin(), Outcome::Truncated),
        // Nothing was captured for an hour: as far as is known, neither side has ended the connection.
        (|talk| _ = talk.wait(3_700_000).tick(), Outcome::Unobserved),
        (|talk| _ = talk.end(), Outcome::Unobserved),
        (|talk| _ = talk.s_fin().end(), Outcome::Truncated),
    ];
    for (step, outcome) in cases {
        let (mut talk, kept) = talk();
        begun(&mut talk);
        step(&mut talk);
        talk.settle();
        assert_eq!(kept.outcomes(), [outcome]);
        assert_eq!(kept.detached(), []);
    }
}

#[test]
fn request_with_a_gap_is_unobserved_and_the_next_one_is_observed() {
    let (mut talk, kept) = talk();
    talk.open().c(REQUEST).s(HEAD).s(TOKEN);
    talk.down = talk.down.wrapping_add(100);
    talk.lose().c("").wait(100).s(LAST).c("");
    assert_eq!((kept.outcomes(), kept.detached()), (vec![Outcome::Unobserved], vec![Detach::CaptureGap]));
    assert!(kept.last().capture_loss);
    talk.c(REQUEST).s(HEAD).s(TOKEN).s(LAST).s_fin().c_fin();
    assert_eq!(kept.outcomes(), [Outcome::Unobserved, Outcome::Ok]);
    assert_eq!(kept.last().connection, 2);
}

#[test]
fn tls_detaches_the_observer() {
    let (mut talk, kept) = talk();
    let tcp = talk.open().client_segment(16, &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
    talk.capture(&tcp);
    assert_eq!((kept.detached(), talk.tap.stats().tls.get()), (vec![Detach::Tls], 1));
}

#[test]
fn network_is_that_of_each_request() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: ";
    let head = format!("{head}{}\r\n\r\n", TOKEN.len() + LAST.len());
    let (mut talk, kept) = talk();
    talk.open().c(REQUEST).s(&head).wait(4).c("").s(TOKEN);
    talk.s_after(-(TOKEN.len() as i32), TOKEN).s_after(-(TOKEN.len() as i32), TOKEN);
    talk.window = 0;
    talk.c("").wait(30);
    talk.window = 500;
    talk.c("").s(LAST).c("");
    let network = |rtt, retransmits, zero_window| Network {
        rtt: Some(rtt),
        retransmits: Some(retransmits),
        zero_window: Some(zero_window),
    };
    assert_eq!(kept.last().network, network(Duration::ZERO, 2, 30 * MS));
    assert_eq!(kept.last().blocked.total(), 30 * MS);
    talk.c(REQUEST).s(&head).s(TOKEN).s(LAST);
    assert_eq!(kept.last().network, network(Duration::ZERO, 0, Duration::ZERO));
    assert_eq!(kept.outcomes(), [Outcome::Ok; 2]);
}

#[test]
fn requests_during_a_loss_of_packets_are_marked() {
    let (mut talk, kept) = talk();
    talk.open().c(REQUEST).s(HEAD).s(TOKEN);
    talk.tap.lost(3, EPOCH + talk.at);
    talk.s(LAST).s_fin().c_fin();
    assert_eq!((kept.last().capture_loss, kept.outcomes()), (true, vec![Outcome::Ok]));
    (talk.up, talk.down) = (1, 2);
    talk.open().c(REQUEST).s(HEAD).s(TOKEN).s(LAST).s_fin().c_fin();
    assert_eq!((kept.last().capture_loss, kept.outcomes().len()), (false, 2));
}
