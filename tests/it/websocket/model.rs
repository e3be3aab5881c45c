//! Writes frames, and parses frames with a naive model that needs all bytes at once.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use super::Reported;

pub(crate) const FIN: u8 = 0x80;
pub(crate) const RSV1: u8 = 0x40;

/// A frame with this first byte.
pub(crate) fn frame(first: u8, mask: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let masked = if mask.is_some() { 0x80 } else { 0 };
    match payload.len() {
        length @ 0..126 => bytes.push(masked | length as u8),
        length @ 126..65_536 => {
            bytes.push(masked | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        length => {
            bytes.push(masked | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend(mask.unwrap_or_default().iter().take(if mask.is_some() { 4 } else { 0 }));
    bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask.unwrap_or_default()[at % 4]));
    bytes
}

/// Compresses the consecutive messages of one sender (RFC 7692, section 7.2.1).
pub(crate) struct Deflater {
    compress: Compress,
    takeover: bool,
}

impl Deflater {
    pub(crate) fn new(takeover: bool) -> Deflater {
        Deflater { compress: Compress::new(Compression::default(), false), takeover }
    }

    pub(crate) fn message(&mut self, data: &[u8]) -> Vec<u8> {
        // Without input, a flush of zlib writes nothing. An empty message is one zero byte (section 7.2.3.6).
        if data.is_empty() {
            return vec![0];
        }
        let mut out = Vec::with_capacity(data.len() + 1000);
        let before = self.compress.total_in();
        loop {
            let taken = (self.compress.total_in() - before) as usize;
            out.reserve(1000);
            self.compress.compress_vec(&data[taken..], &mut out, FlushCompress::Sync).unwrap();
            if (self.compress.total_in() - before) as usize == data.len() && out.len() < out.capacity() {
                break;
            }
        }
        assert_eq!(&out[out.len() - 4..], [0, 0, 0xff, 0xff]);
        out.truncate(out.len() - 4);
        if !self.takeover {
            self.compress.reset();
        }
        out
    }
}

/// The content of valid frames, parsed with all bytes available. `deflate`: `Some(takeover)` if compression was
/// negotiated.
pub(crate) fn naive(mut bytes: &[u8], deflate: Option<bool>) -> Vec<Reported> {
    let mut reported = Vec::new();
    let mut message: Option<(u8, Vec<u8>)> = None;
    let mut inflate = Decompress::new(false);
    while bytes.len() >= 2 {
        let (first, second) = (bytes[0], bytes[1]);
        let (length, mut at) = match second & 0x7f {
            126 => (u16::from_be_bytes(bytes[2..4].try_into().unwrap()) as usize, 4),
            127 => (u64::from_be_bytes(bytes[2..10].try_into().unwrap()) as usize, 10),
            length => (length as usize, 2),
        };
        let mut mask = [0; 4];
        if second & 0x80 != 0 {
            mask.copy_from_slice(&bytes[at..at + 4]);
            at += 4;
        }
        let payload: Vec<u8> = bytes[at..at + length].iter().enumerate().map(|(i, byte)| byte ^ mask[i % 4]).collect();
        bytes = &bytes[at + length..];
        match first & 0x0f {
            8 => reported.push(Reported::Close(payload.first_chunk().map(|code| u16::from_be_bytes(*code)))),
            9.. => {}
            opcode => {
                let (begun, data) = message.get_or_insert_with(|| (first, Vec::new()));
                assert!(opcode == 0 || *begun | FIN == first | FIN);
                data.extend(payload);
                if first & FIN != 0 {
                    let (begun, mut data) = message.take().unwrap();
                    if begun & RSV1 != 0 {
                        data.extend([0, 0, 0xff, 0xff]);
                        data = inflated(&mut inflate, &data);
                        if deflate == Some(false) {
                            inflate.reset(false);
                        }
                    }
                    if !data.is_empty() {
                        reported.push(Reported::Data(data));
                    }
                    reported.push(Reported::End { text: begun & 0x0f == 1 });
                }
            }
        }
    }
    reported
}

fn inflated(inflate: &mut Decompress, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let before = inflate.total_in();
    loop {
        let taken = (inflate.total_in() - before) as usize;
        out.reserve(10_000);
        inflate.decompress_vec(&data[taken..], &mut out, FlushDecompress::Sync).unwrap();
        if (inflate.total_in() - before) as usize == data.len() && out.len() < out.capacity() {
            return out;
        }
    }
}
