//! All connections of one capture.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer_observe::budget::Share;
use tokometer_observe::input::{Direction, Observe};
use tokometer_observe::observer::CONNECTION_BYTES;

use crate::embryos::{Embryos, Held};
use crate::flow::{Action, Ends, Flow};
use crate::packet::{Clock, Packet};
use crate::segment::{Endpoint, Key, NoSegment, OwnedSegment, Segment, parse};
use crate::servers::Server;
use crate::shared::{Limits, Shared};
use crate::stats::Stats;

/// Interval of gap checks while a gap is suspected.
const GAP_PERIOD: Duration = Duration::from_millis(100);

/// Interval of idle checks.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// Memory charged for a connection's state, table entry and observer; its requests and waiting bytes are charged
/// separately.
const FLOW_BYTES: usize = size_of::<Flow>() + 2 * (size_of::<Key>() + size_of::<Box<Flow>>()) + CONNECTION_BYTES;

/// The connections of one capture. Used by one thread.
pub struct Tap {
    servers: Vec<Server>,
    clock: Clock,
    shared: Shared,
    flows: HashMap<Key, Box<Flow>>,
    embryos: Embryos,
    /// Memory charged for `flows`.
    share: Share,
    /// The time of the last packet or tick. It never decreases, although packets captured on several CPUs may be out of
    /// order.
    now: Option<Instant>,
    /// When connections were last checked.
    checked: Option<Instant>,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").field("servers", &self.servers).field("flows", &self.flows.len()).finish_non_exhaustive()
    }
}

impl Tap {
    /// Creates a tap on these servers, which reports connections to `observe`.
    pub fn new(servers: Vec<Server>, observe: Arc<dyn Observe>, limits: Limits, clock: Clock) -> Tap {
        let share = limits.budget.account(None, 0).share();
        let shared = Shared { observe, limits, stats: Arc::default(), observed: 0, suspects_end: false };
        Tap {
            servers,
            clock,
            embryos: Embryos::new(&shared.limits.budget),
            shared,
            flows: HashMap::new(),
            share,
            now: None,
            checked: None,
        }
    }

    /// Processes one packet. Pass packets in capture order.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        let at = self.advance(packet.at);
        let stats = &self.shared.stats;
        stats.packets.add(1);
        match parse(packet) {
            Ok(segment) => self.segment(&segment, at),
            Err(NoSegment::Other) => {}
            Err(NoSegment::Fragment) => stats.fragments.add(1),
            Err(NoSegment::Malformed) => stats.malformed.add(1),
            Err(NoSegment::Corrupt) => stats.ignored.add(1),
        }
        self.check(at);
    }

    fn segment(&mut self, segment: &Segment<'_>, at: Instant) {
        let Some((direction, listener)) = self.direction(segment) else { return };
        let key = segment.key(direction);
        let mut is_known = false;
        if let Some(flow) = self.flows.get_mut(&key) {
            // The server sends SYN only if the old connection has ended, but anyone can send SYN to the server: see RFC
            // 5961, section 4.
            flow.is_replaced |= segment.syn() && direction == Direction::Response;
            let begins = flow.is_replaced && self.embryos.completes_handshake(&key, direction, segment);
            if !segment.syn() && !begins {
                return flow.segment(direction, segment, at, &mut self.shared);
            }
            is_known = true;
        }
        if segment.rst() {
            return;
        }
        let has_embryo = self.embryos.contains(&key);
        let is_sent_by_server = direction == Direction::Response && !segment.syn() && !is_known;
        if self.embryos.completes_handshake(&key, direction, segment)
            || is_sent_by_server && (has_embryo || segment.len > 0)
        {
            self.open(key, listener, direction, segment, at);
        } else if has_embryo || segment.syn() || segment.len > 0 {
            // Segments without data begin nothing, because their connection may have ended. If it has not, a later
            // segment with data does.
            self.embryos.hold(key, Held { direction, at, segment: OwnedSegment::new(segment) });
        }
    }

    /// Adds a connection that the server has accepted, as this segment shows.
    fn open(&mut self, key: Key, listener: usize, direction: Direction, segment: &Segment<'_>, at: Instant) {
        if let Some(mut old) = self.flows.remove(&key) {
            old.replace(at, &mut self.shared);
        }
        let held = self.embryos.take(&key, segment);
        let is_full = self.flows.len() >= self.shared.limits.connections;
        if is_full || self.share.hold((self.flows.len() + 1) * FLOW_BYTES).is_err() {
            return self.shared.stats.shed.add(1);
        }
        let ends = Ends { client: key.client, server: key.server, listener };
        let begun = held.first().map_or(at, |held| held.at);
        let has_syn = held.iter().any(|held| held.segment.as_segment().syn());
        let mut flow = Box::new(Flow::new(ends, has_syn, begun, &self.shared));
        for Held { direction, at, segment } in &held {
            flow.segment(*direction, &segment.as_segment(), *at, &mut self.shared);
        }
        flow.segment(direction, segment, at, &mut self.shared);
        self.flows.insert(key, flow);
    }

    /// The direction of a segment, and the listener of its server; `None` if neither end is a server. If both are, the
    /// handshake or a known connection decides.
    fn direction(&self, segment: &Segment<'_>) -> Option<(Direction, usize)> {
        let to = self.server(&segment.destination).map(|listener| (Direction::Request, listener));
        let from = self.server(&segment.source).map(|listener| (Direction::Response, listener));
        match (to, from) {
            (Some(_), Some(_)) if segment.syn() => {
                if segment.opens() {
                    to
                } else {
                    from
                }
            }
            (Some(_), Some(_)) => {
                let is_known = |direction| {
                    let key = segment.key(direction);
                    self.flows.contains_key(&key) || self.embryos.contains(&key)
                };
                to.filter(|_| is_known(Direction::Request)).or(from.filter(|_| is_known(Direction::Response)))
            }
            (to, from) => to.or(from),
        }
    }

    /// The listener of a server.
    fn server(&self, end: &Endpoint) -> Option<usize> {
        let is_at = |server: &&Server| {
            server.port == end.port && server.address.is_none_or(|address| address.to_canonical() == end.address())
        };
        self.servers.iter().find(is_at).map(|server| server.listener)
    }

    /// Releases the memory of removed connections.
    fn charge(&mut self) {
        // Cannot fail: the share only shrinks.
        self.share.hold(self.flows.len() * FLOW_BYTES).ok();
    }

    /// The instant of a capture time; never earlier than the previous instant.
    fn advance(&mut self, at: Duration) -> Instant {
        let at = self.clock.instant(at);
        let at = self.now.map_or(at, |now| now.max(at));
        self.now = Some(at);
        at
    }

    /// Periodically gives up on gaps and evicts idle connections.
    fn check(&mut self, at: Instant) {
        let period = if self.shared.suspects_end { GAP_PERIOD } else { IDLE_PERIOD };
        let checked = *self.checked.get_or_insert(at);
        if at.saturating_duration_since(checked) < period {
            return;
        }
        self.checked = Some(at);
        self.shared.suspects_end = false;
        self.embryos.expire(at);
        let Tap { flows, shared, .. } = self;
        flows.retain(|_, flow| flow.tick(at, shared) == Action::Keep);
        self.charge();
    }

    /// Reports that the kernel dropped this many packets before `at`. Marks every open request, because any of them may
    /// be affected. Call this before passing later packets, so that no affected request ends unmarked.
    pub fn lost(&mut self, packets: u64, at: Duration) {
        let at = self.advance(at);
        self.shared.stats.kernel_drops.add(packets);
        self.flows.values_mut().for_each(|flow| flow.lost_packets(at, &self.shared));
    }

    /// Gives up on gaps and evicts idle connections, as [`Tap::packet`] does. Call this about every 100 ms while there
    /// are no packets.
    pub fn tick(&mut self, at: Duration) {
        let at = self.advance(at);
        self.check(at);
    }

    /// Ends the capture and all connections. A connection ends with `CaptureEnded`, unless the server has finished.
    pub fn end(&mut self, at: Duration) {
        let at = self.advance(at);
        self.finish(at);
    }

    fn finish(&mut self, at: Instant) {
        let Tap { flows, shared, embryos, .. } = self;
        *embryos = Embryos::new(&shared.limits.budget);
        flows.drain().for_each(|(_, mut flow)| flow.end(at, shared));
        self.charge();
    }

    /// Replaces the clock, after the system clock was set.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// The counters.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.shared.stats
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Some(now) = self.now {
            self.finish(now);
        }
    }
}
