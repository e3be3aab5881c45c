//! Which segments a receiver accepts. A client can send segments that the server's kernel drops, so that a tap which
//! accepts them reads other bytes than the server does.
//!
//! The rules are those of Linux 6.18 (`net/ipv4/tcp_input.c`), which implements RFC 9293 (section 3.10.7.4), RFC 5961
//! and RFC 7323. A value that the capture does not show allows everything.

use crate::segment::Segment;

/// Scale factor of a window if the handshake was not captured: the maximum (RFC 7323, section 2.3).
const MAX_SCALE: u8 = 14;

/// Maximum number by which timestamps may go back (Linux: `TCP_PAWS_WINDOW`).
const TIMESTAMP_STEP: i32 = 1;

/// What the capture shows about the sequence numbers of one direction.
#[derive(Debug)]
pub(super) struct Receiver {
    /// End of the bytes that the sender has sent (`snd_nxt`).
    sent: Option<u32>,
    /// End of the bytes that the receiver has acknowledged (`snd_una`).
    acknowledged: Option<u32>,
    /// End of the receiver's window.
    window_end: Option<u32>,
    /// The largest window that the receiver has announced (`max_window`).
    max_window: u32,
    /// Scale factor of the receiver's windows.
    scale: u8,
    /// The sender's timestamp with which later ones are compared (`ts_recent`).
    timestamp: Option<u32>,
    /// The sender's segments have timestamps, so the connection uses them.
    has_timestamps: bool,
    /// Packets of this direction may have been lost since the receiver last acknowledged all captured bytes.
    pub(super) may_lack: bool,
    /// Number of segments with correct checksums, minus those with wrong ones.
    intact: i32,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver {
            sent: None,
            acknowledged: None,
            window_end: None,
            max_window: 0,
            scale: MAX_SCALE,
            timestamp: None,
            has_timestamps: false,
            may_lack: false,
            intact: 0,
        }
    }
}

/// True if `a` comes after `b` in the order of sequence numbers and timestamps.
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// Replaces a number by a later one.
fn advance(number: &mut Option<u32>, to: u32) {
    if number.is_none_or(|number| is_after(to, number)) {
        *number = Some(to);
    }
}

impl Receiver {
    /// True if a checksum is wrong (`tcp_v4_rcv`). If most segments of this direction have wrong checksums, the
    /// capturing host sent them, and its network card would have computed their checksums.
    pub(super) fn is_corrupt(&mut self, segment: &Segment<'_>) -> bool {
        let Some(is_intact) = segment.is_intact else { return false };
        self.intact = self.intact.saturating_add(if is_intact { 1 } else { -1 });
        !is_intact && self.intact >= 0
    }

    /// True if the receiver accepts the sequence number and the timestamp (`tcp_validate_incoming`). `reverse` is the
    /// other direction.
    pub(super) fn accepts(&self, segment: &Segment<'_>, reverse: &Receiver) -> bool {
        // tcp_sequence, tcp_data_queue: outside of the window.
        let is_outside = self
            .window_end
            .is_some_and(|end| is_after(segment.sequence, end) || segment.len > 0 && segment.sequence == end);
        // tcp_paws_discard, tcp_paws_check: some systems send 0 in SYN and other values later.
        let is_older = match (self.timestamp, segment.timestamp) {
            (Some(recent), Some(now)) if recent != 0 => (recent.wrapping_sub(now) as i32) > TIMESTAMP_STEP,
            _ => false,
        };
        !(is_outside || is_older && reverse.has_timestamps)
    }

    /// True if the sender of this direction accepts this acknowledgement (`tcp_ack`; RFC 5961, section 5.2). `first`:
    /// the first sequence number, if known.
    pub(super) fn accepts_acknowledgement(&self, number: u32, first: Option<u32>) -> bool {
        let is_early = self.acknowledged.is_some_and(|acknowledged| {
            let most = first.map_or(u32::MAX, |first| acknowledged.wrapping_sub(first)).min(self.max_window);
            is_after(acknowledged.wrapping_sub(most), number)
        });
        let is_unsent = !self.may_lack && self.sent.is_some_and(|sent| is_after(number, sent));
        !is_early && !is_unsent
    }

    /// True if the receiver has acknowledged bytes up to this number and no further.
    pub(super) fn has_acknowledged(&self, number: u32) -> bool {
        self.acknowledged == Some(number)
    }

    /// True if a reset with this number may be within the window, as far as the capture shows.
    pub(super) fn is_in_window(&self, number: u32) -> bool {
        self.window_end.is_none_or(|end| !is_after(number, end))
    }

    /// Records a segment that the sender has sent, whether or not the receiver accepts it.
    pub(super) fn sent(&mut self, segment: &Segment<'_>) {
        advance(&mut self.sent, segment.end());
    }

    /// Records a segment of this direction that the receiver accepts. `reverse` is the other direction, whose receiver
    /// has sent the segment. True if it acknowledges new bytes.
    pub(super) fn accepted(&mut self, segment: &Segment<'_>, reverse: &mut Receiver) -> bool {
        self.has_timestamps = segment.timestamp.is_some();
        // tcp_replace_ts_recent: only segments that the receiver expects, without newer ones before it.
        let is_next = self.acknowledged.is_some_and(|acknowledged| !is_after(segment.sequence, acknowledged));
        if is_next && let Some(now) = segment.timestamp {
            advance(&mut self.timestamp, now);
        }
        let Some(number) = segment.acknowledged else { return false };
        let is_new = reverse.acknowledged.is_none_or(|before| is_after(number, before));
        advance(&mut reverse.acknowledged, number);
        // The windows of SYN segments are not scaled (RFC 7323, section 2.2).
        let window = u32::from(segment.window) << if segment.syn() { 0 } else { reverse.scale };
        reverse.max_window = reverse.max_window.max(window);
        advance(&mut reverse.window_end, number.wrapping_add(window));
        is_new
    }

    /// Sets the scale factor of the receiver's windows.
    pub(super) fn set_scale(&mut self, scale: u8) {
        self.scale = scale;
    }

    /// Records that packets may have been lost: a later window may have been announced.
    pub(super) fn lost_packets(&mut self) {
        self.window_end = None;
        self.may_lack = true;
    }
}
