//! Writes recordings as capture files. This code is independent of the reader.

use std::time::Duration;

use tokometer::replay::{End, Recording};

/// Capture time at which a recording's request begins.
pub(super) const EPOCH: Duration = Duration::from_secs(1_790_000_000);

/// Port of the server.
pub(super) const PORT: u16 = 8000;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Largest payload of a segment, as with segmentation offload.
const MAX_PAYLOAD: usize = 60_000;

/// Format of a capture file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Number of the link type.
    pub(super) link: u32,
    pub(super) pcapng: bool,
    pub(super) ipv6: bool,
    /// Maximum number of captured bytes per packet.
    pub(super) snaplen: usize,
}

/// All supported link types; both file formats and both IP versions occur.
pub(super) const FORMS: [Form; 6] = {
    const fn form(link: u32, pcapng: bool, ipv6: bool) -> Form {
        Form { link, pcapng, ipv6, snaplen: 262_144 }
    }
    [
        form(1, false, false),
        form(113, false, true),
        form(276, true, false),
        form(0, true, true),
        form(101, false, false),
        form(1, true, true),
    ]
};

/// A connection that is written packet by packet.
pub(super) struct Writer {
    form: Form,
    file: Vec<u8>,
    /// Next sequence numbers of client and server.
    next: [u32; 2],
    id: u16,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

impl Writer {
    pub(super) fn new(form: Form) -> Writer {
        let mut file = Vec::new();
        if form.pcapng {
            block(&mut file, 0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[255; 8]].concat());
            let snaplen = (form.snaplen as u32).to_le_bytes();
            block(&mut file, 1, &[&(form.link as u16).to_le_bytes()[..], &[0, 0], &snaplen].concat());
        } else {
            file.extend(0xa1b2_c3d4_u32.to_le_bytes());
            file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            file.extend([form.snaplen as u32, form.link].map(u32::to_le_bytes).concat());
        }
        Writer { form, file, next: [u32::MAX - 100, 7], id: 0 }
    }

    /// A file with the packets of this recording, from the handshake to the end of the connection.
    pub(super) fn recording(form: Form, recording: &Recording) -> Vec<u8> {
        let mut writer = Writer::new(form);
        writer.open();
        writer.send(CLIENT, EPOCH, &recording.request);
        let mut last = EPOCH;
        for (at, bytes) in &recording.reads {
            last = last.max(EPOCH + *at);
            writer.send(SERVER, EPOCH + *at, bytes);
        }
        let (end, from, flags) = match recording.end {
            None => (last, CLIENT, FIN),
            Some((at, End::Eof)) => (EPOCH + at, SERVER, FIN),
            Some((at, End::Reset)) => (EPOCH + at, SERVER, RST),
            Some((at, End::ClientAbort | End::ClientTimeout)) => (EPOCH + at, CLIENT, FIN),
        };
        writer.segment(from, end, flags | ACK, &[]);
        if flags == FIN {
            writer.next[from] = writer.next[from].wrapping_add(1);
            writer.segment(1 - from, end, FIN | ACK, &[]);
        }
        writer.file
    }

    fn open(&mut self) {
        let at = EPOCH - Duration::from_millis(2);
        for (from, flags) in [(CLIENT, SYN), (SERVER, SYN | ACK)] {
            self.segment(from, at, flags, &[]);
            self.next[from] = self.next[from].wrapping_add(1);
        }
        // The client's acknowledgement, after a round trip of 1 ms.
        self.segment(CLIENT, at + Duration::from_millis(1), ACK, &[]);
    }

    /// Writes the packets in which `from` sends these bytes.
    pub(super) fn send(&mut self, from: usize, at: Duration, bytes: &[u8]) {
        for part in bytes.chunks(MAX_PAYLOAD) {
            self.segment(from, at, ACK, part);
            self.next[from] = self.next[from].wrapping_add(part.len() as u32);
        }
    }

    fn segment(&mut self, from: usize, at: Duration, flags: u8, payload: &[u8]) {
        let ports = if from == CLIENT { [51_234, PORT] } else { [PORT, 51_234] };
        let mut tcp = ports.map(u16::to_be_bytes).concat();
        tcp.extend(self.next[from].to_be_bytes());
        let acknowledged = if flags & ACK == 0 { 0 } else { self.next[1 - from] };
        tcp.extend(acknowledged.to_be_bytes());
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        self.id = self.id.wrapping_add(1);
        let last = [1, 2].map(|end: u8| if (end == 1) == (from == CLIENT) { 1 } else { 2 });
        let packet = if self.form.ipv6 {
            let address = |last: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
            let len = (tcp.len() as u16).to_be_bytes();
            [&[0x60, 0, 0, 0][..], &len, &[6, 64], &address(last[0]), &address(last[1]), &tcp].concat()
        } else {
            let len = (tcp.len() as u16 + 20).to_be_bytes();
            let addresses = [10, 0, 0, last[0], 10, 0, 0, last[1]];
            [&[0x45, 0][..], &len, &self.id.to_be_bytes(), &[0x40, 0, 64, 6, 0, 0], &addresses, &tcp].concat()
        };
        self.packet(at, &self.framed(from, &packet));
    }

    /// Adds the link-layer header, as captured on the server's host.
    fn framed(&self, from: usize, ip: &[u8]) -> Vec<u8> {
        let ether_type: [u8; 2] = if self.form.ipv6 { [0x86, 0xdd] } else { [8, 0] };
        let kind = if from == SERVER { 4 } else { 0 };
        let header = match self.form.link {
            0 => vec![if self.form.ipv6 { 30 } else { 2 }, 0, 0, 0],
            1 => [&[2; 12][..], &ether_type].concat(),
            113 => [&[0, kind, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0][..], &ether_type].concat(),
            276 => [&ether_type[..], &[0, 0, 0, 0, 0, 1, 0, 1, kind, 6, 1, 2, 3, 4, 5, 6, 0, 0]].concat(),
            _ => Vec::new(),
        };
        [&header, ip].concat()
    }

    fn packet(&mut self, at: Duration, bytes: &[u8]) {
        let captured = &bytes[..bytes.len().min(self.form.snaplen)];
        let lens = [captured.len() as u32, bytes.len() as u32].map(u32::to_le_bytes).concat();
        if self.form.pcapng {
            let micros = at.as_micros() as u64;
            let time = [(micros >> 32) as u32, micros as u32].map(u32::to_le_bytes).concat();
            block(&mut self.file, 6, &[&[0; 4][..], &time, &lens, captured].concat());
        } else {
            self.file.extend([at.as_secs() as u32, at.subsec_micros()].map(u32::to_le_bytes).concat());
            self.file.extend(lens);
            self.file.extend(captured);
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.file
    }
}

/// Appends a pcapng block.
fn block(file: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let padded = body.len().next_multiple_of(4);
    let len = (padded as u32 + 12).to_le_bytes();
    file.extend(kind.to_le_bytes());
    file.extend(len);
    file.extend(body);
    file.resize(file.len() + padded - body.len(), 0);
    file.extend(len);
}
