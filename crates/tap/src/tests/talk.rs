//! A scripted connection that a tap captures.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokometer_observe::budget::Budget;

use crate::tests::log::{Call, Log};
use crate::tests::packets::{ACK, FIN, RST, SYN, Sums, Tcp};
use crate::{Clock, Limits, Link, OwnedPacket, Server, Tap};

/// Capture time of the start.
pub(crate) const EPOCH: Duration = Duration::from_secs(1_790_000_000);

pub(crate) const GET: &str = "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n";

/// A tap on port 8000, a connection to it, and the time. Sequence numbers wrap early in each connection.
pub(crate) struct Talk {
    pub(crate) tap: Tap,
    pub(crate) log: Log,
    pub(crate) at: Duration,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// Next sequence numbers.
    pub(crate) up: u32,
    pub(crate) down: u32,
    pub(crate) window: u16,
    pub(crate) link: Link,
    pub(crate) outgoing: Option<bool>,
    pub(crate) sums: Sums,
    /// The timestamp of all segments.
    pub(crate) timestamp: u32,
    id: u16,
}

impl Talk {
    pub(crate) fn new() -> Talk {
        Talk::with(Log::new(), |_| {})
    }

    pub(crate) fn with(log: Log, limit: impl FnOnce(&mut Limits)) -> Talk {
        let servers = vec![
            Server { address: None, port: 8000, listener: 3 },
            Server { address: Some([10, 0, 0, 9].into()), port: 8001, listener: 4 },
        ];
        let mut limits = Limits::new(Budget::new(64 << 20));
        limit(&mut limits);
        let tap = Tap::new(servers, Arc::new(log.clone()), limits, Clock::new(EPOCH, log.start));
        Talk {
            tap,
            log,
            at: Duration::ZERO,
            client: ([10, 0, 0, 1], 40_000).into(),
            server: ([10, 0, 0, 2], 8000).into(),
            up: u32::MAX - 3,
            down: u32::MAX - 5,
            window: 500,
            link: Link::Ethernet,
            outgoing: None,
            sums: Sums::Missing,
            timestamp: 0,
            id: 0,
        }
    }

    /// Advances the time.
    pub(crate) fn wait(&mut self, ms: u64) -> &mut Talk {
        self.at += Duration::from_millis(ms);
        self
    }

    fn next_id(&mut self) -> u16 {
        self.id = self.id.wrapping_add(1);
        self.id
    }

    /// Timestamps, and in SYN a window scale of 2^9.
    fn options(&self, flags: u8) -> Vec<u8> {
        let timestamps = [&[1, 1, 8, 10][..], &self.timestamp.to_be_bytes(), &[0; 4]].concat();
        if flags & SYN != 0 { [&timestamps[..], &[1, 3, 3, 9]].concat() } else { timestamps }
    }

    /// The client's next segment.
    pub(crate) fn client_segment(&mut self, flags: u8, payload: &[u8]) -> Tcp {
        Tcp {
            from: self.client,
            to: self.server,
            seq: self.up,
            ack: self.down,
            flags,
            window: self.window,
            id: self.next_id(),
            options: self.options(flags),
            urgent: 0,
            sums: self.sums,
            payload: payload.to_vec(),
        }
    }

    /// The server's next segment.
    pub(crate) fn server_segment(&mut self, flags: u8, payload: &[u8]) -> Tcp {
        let (from, to, seq, ack) = (self.server, self.client, self.down, self.up);
        Tcp { from, to, seq, ack, window: 500, ..self.client_segment(flags, payload) }
    }

    /// Passes this segment to the tap, with the current time.
    pub(crate) fn capture(&mut self, tcp: &Tcp) -> &mut Talk {
        let packet = OwnedPacket { outgoing: self.outgoing, at: EPOCH + self.at, ..tcp.packet(self.link) };
        self.tap.packet(&packet.as_packet());
        self
    }

    /// The client sends this text.
    pub(crate) fn c(&mut self, text: &str) -> &mut Talk {
        let tcp = self.client_segment(ACK, text.as_bytes());
        self.up = self.up.wrapping_add(text.len() as u32);
        self.capture(&tcp)
    }

    /// The server sends this text.
    pub(crate) fn s(&mut self, text: &str) -> &mut Talk {
        let tcp = self.server_segment(ACK, text.as_bytes());
        self.down = self.down.wrapping_add(text.len() as u32);
        self.capture(&tcp)
    }

    /// The client sends this text, shifted by `skip` bytes. Its next sequence number does not change.
    pub(crate) fn c_after(&mut self, skip: i32, text: &str) -> &mut Talk {
        let tcp = self.client_segment(ACK, text.as_bytes());
        self.capture(&Tcp { seq: tcp.seq.wrapping_add_signed(skip), ..tcp })
    }

    /// The server sends this text, shifted by `skip` bytes. Its next sequence number does not change.
    pub(crate) fn s_after(&mut self, skip: i32, text: &str) -> &mut Talk {
        let tcp = self.server_segment(ACK, text.as_bytes());
        self.capture(&Tcp { seq: tcp.seq.wrapping_add_signed(skip), ..tcp })
    }

    pub(crate) fn c_fin(&mut self) -> &mut Talk {
        let tcp = self.client_segment(ACK | FIN, b"");
        self.up = self.up.wrapping_add(1);
        self.capture(&tcp)
    }

    pub(crate) fn s_fin(&mut self) -> &mut Talk {
        let tcp = self.server_segment(ACK | FIN, b"");
        self.down = self.down.wrapping_add(1);
        self.capture(&tcp)
    }

    pub(crate) fn c_rst(&mut self) -> &mut Talk {
        let tcp = self.client_segment(RST, b"");
        self.capture(&tcp)
    }

    pub(crate) fn s_rst(&mut self) -> &mut Talk {
        let tcp = self.server_segment(RST | ACK, b"");
        self.capture(&tcp)
    }

    pub(crate) fn syn(&mut self) -> &mut Talk {
        let tcp = self.client_segment(SYN, b"");
        self.capture(&Tcp { ack: 0, ..tcp })
    }

    /// SYN, SYN-ACK and ACK.
    pub(crate) fn open(&mut self) -> &mut Talk {
        self.syn();
        self.up = self.up.wrapping_add(1);
        let tcp = self.server_segment(SYN | ACK, b"");
        self.down = self.down.wrapping_add(1);
        self.capture(&tcp).c("")
    }

    /// The kernel reports lost packets.
    pub(crate) fn lose(&mut self) -> &mut Talk {
        self.tap.lost(1, EPOCH + self.at);
        self
    }

    /// Waits until a reset counts.
    pub(crate) fn settle(&mut self) -> &mut Talk {
        self.wait(1000).tick()
    }

    /// Passes the current time to the tap.
    pub(crate) fn tick(&mut self) -> &mut Talk {
        self.tap.tick(EPOCH + self.at);
        self
    }

    pub(crate) fn end(&mut self) -> &mut Talk {
        self.tap.end(EPOCH + self.at);
        self
    }

    /// Observer calls since the last use of this function, without network calls and the creation of the observer.
    pub(crate) fn calls(&mut self) -> Vec<Call> {
        let calls = self.log.take().into_iter();
        calls.filter(|call| !matches!(call, Call::Accepted { .. })).collect()
    }
}
