//! One direction: reassembles frames into messages.

use crate::budget::Credit;
use crate::coding::{Series, Unreadable};
use crate::message::Fault;
use crate::slices::{Prefix, take};
use crate::websocket::{Event, Extensions};

/// Maximum header size: 2 bytes, 8 bytes of length, 4 bytes of mask.
const MAX: usize = 14;

/// A parsed frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    /// The last frame of its message.
    fin: bool,
    /// RSV1: compressed, on the first frame of a message (RFC 7692, section 6).
    compressed: bool,
    /// RSV2 or RSV3: no known extension uses them.
    reserved: bool,
    opcode: u8,
    /// Bytes of payload.
    length: u64,
    mask: Option<[u8; 4]>,
}

/// Opcodes (section 11.8). 8 and above are control frames.
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;

impl Frame {
    /// A control frame, which may occur between the frames of a message.
    fn is_control(&self) -> bool {
        self.opcode >= CLOSE
    }
}

/// A length whose first bit is set, which RFC 6455 does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BadLength;

/// The bytes of one header.
#[derive(Clone, Copy, Debug)]
struct Header(Prefix<MAX>);

impl Header {
    /// Before the first byte.
    const START: Header = Header(Prefix::new());

    /// Consumes the bytes of the header. `None` while the header is incomplete.
    fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, BadLength> {
        let whole = self.0.fill(2, bytes) && self.0.fill(2 + self.length_bytes() + self.mask_bytes(), bytes);
        if whole { self.frame().map(Some) } else { Ok(None) }
    }

    fn mask_bytes(&self) -> usize {
        if self.0.bytes()[1] & 0x80 == 0 { 0 } else { 4 }
    }

    fn length_bytes(&self) -> usize {
        match self.0.bytes()[1] & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }

    fn frame(&self) -> Result<Frame, BadLength> {
        let [first, second, a, b, c, d, e, f, g, h, ..] = *self.0.bytes();
        let length = match self.length_bytes() {
            0 => u64::from(second & 0x7f),
            2 => u64::from(u16::from_be_bytes([a, b])),
            _ => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        };
        if length >> 63 == 1 {
            return Err(BadLength);
        }
        let mask = self.0.bytes().get(2 + self.length_bytes()..).and_then(|rest| rest.first_chunk::<4>());
        Ok(Frame {
            fin: first & 0x80 != 0,
            compressed: first & 0x40 != 0,
            reserved: first & 0x30 != 0,
            opcode: first & 0x0f,
            length,
            mask: mask.copied().filter(|_| second & 0x80 != 0),
        })
    }
}

/// Bytes unmasked per step, on the stack.
const SLICE: usize = 4 * 1024;

/// Parses the frames of one sender.
#[derive(Debug)]
pub(super) struct Receiver {
    at: At,
    /// The current, incomplete message.
    message: Option<Message>,
    inflater: Inflater,
}

#[derive(Debug)]
enum At {
    Header(Header),
    Payload(Payload),
    /// The start of the next frame is unknown.
    Lost,
}

/// The payload of a frame.
#[derive(Clone, Copy, Debug)]
struct Payload {
    frame: Frame,
    /// Bytes read so far.
    read: u64,
    /// The first two bytes of a close frame's payload: its code.
    code: [u8; 2],
}

/// An incomplete message.
#[derive(Clone, Copy, Debug)]
struct Message {
    text: bool,
    compressed: bool,
    /// The content cannot be interpreted: a reserved bit or opcode, or an unknown extension.
    opaque: bool,
}

#[derive(Debug)]
enum Inflater {
    /// No compression was negotiated.
    None,
    Deflate(Box<Series>),
    /// The sender's compressed messages can no longer be decoded.
    Lost,
}

impl Receiver {
    pub(super) fn new(extensions: Extensions, takeover: bool, credit: Credit) -> Receiver {
        let inflater = match extensions {
            Extensions::None => Inflater::None,
            Extensions::Deflate(_) => Inflater::Deflate(Box::new(Series::of_websocket(takeover, credit))),
            Extensions::Unknown => Inflater::Lost,
        };
        Receiver { at: At::Header(Header::START), message: None, inflater }
    }

    /// Ignores all further bytes.
    pub(super) fn lose(&mut self) {
        self.at = At::Lost;
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.at, At::Lost)
    }

    pub(super) fn read(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Event<'_>)) -> Result<(), Fault> {
        loop {
            match &mut self.at {
                At::Lost => return Ok(()),
                At::Header(header) => {
                    let frame = match header.take(&mut bytes) {
                        Ok(Some(frame)) => frame,
                        Ok(None) => return Ok(()),
                        Err(BadLength) => {
                            self.lose();
                            return Err(Fault::MalformedFrame);
                        }
                    };
                    self.begin(&frame);
                    self.at = At::Payload(Payload { frame, read: 0, code: [0; 2] });
                }
                At::Payload(payload) => {
                    let mut payload = *payload;
                    let data = take(&mut bytes, payload.frame.length - payload.read);
                    self.payload(&mut payload, data, each);
                    if payload.read < payload.frame.length {
                        self.at = At::Payload(payload);
                        return Ok(());
                    }
                    self.end(&payload, each);
                    self.at = At::Header(Header::START);
                }
            }
        }
    }

    /// Starts a frame. A new message within an incomplete one discards the incomplete one without a report, because
    /// endpoints reject it.
    fn begin(&mut self, frame: &Frame) {
        match frame.opcode {
            CONTINUATION => {
                if let Some(message) = &mut self.message {
                    message.opaque |= frame.reserved || frame.compressed;
                }
            }
            _ if frame.is_control() => {}
            opcode => {
                let unknown = !matches!(opcode, TEXT | BINARY) || frame.reserved;
                let readable = match self.inflater {
                    Inflater::None => !frame.compressed,
                    Inflater::Deflate(_) => true,
                    Inflater::Lost => false,
                };
                self.message =
                    Some(Message { text: opcode == TEXT, compressed: frame.compressed, opaque: unknown || !readable });
            }
        }
    }

    fn payload(&mut self, payload: &mut Payload, data: &[u8], each: &mut dyn FnMut(Event<'_>)) {
        if payload.frame.is_control() {
            for (place, byte) in (payload.read..2).zip(data) {
                let mask = payload.frame.mask.map_or(0, |mask| mask_at(mask, place));
                if let Some(code) = payload.code.get_mut(place as usize) {
                    *code = byte ^ mask;
                }
            }
        } else if let Some(mask) = payload.frame.mask {
            let mut scratch = [0; SLICE];
            let mut place = payload.read;
            for piece in data.chunks(SLICE) {
                for (open, byte) in scratch.iter_mut().zip(piece) {
                    *open = byte ^ mask_at(mask, place);
                    place += 1;
                }
                self.data(scratch.get(..piece.len()).unwrap_or_default(), each);
            }
        } else {
            self.data(data, each);
        }
        payload.read += data.len() as u64;
    }

    /// Handles unmasked bytes of the current message.
    fn data(&mut self, data: &[u8], each: &mut dyn FnMut(Event<'_>)) {
        let Some(message) = self.message.filter(|message| !message.opaque && !data.is_empty()) else { return };
        if !message.compressed {
            return each(Event::Data(data));
        }
        let Inflater::Deflate(series) = &mut self.inflater else { return };
        let inflated = series.feed(data, &mut |slice| each(Event::Data(slice)));
        self.inflated(inflated, each);
    }

    fn inflated(&mut self, result: Result<(), Unreadable>, each: &mut dyn FnMut(Event<'_>)) {
        let Err(why) = result else { return };
        self.inflater = Inflater::Lost;
        if let Some(message) = &mut self.message {
            message.opaque = true;
        }
        each(Event::Unreadable(why));
    }

    /// Ends a frame.
    fn end(&mut self, payload: &Payload, each: &mut dyn FnMut(Event<'_>)) {
        let frame = &payload.frame;
        if frame.is_control() {
            if frame.opcode == CLOSE {
                each(Event::Close((frame.length >= 2).then(|| u16::from_be_bytes(payload.code))));
            }
            return;
        }
        if !frame.fin {
            return;
        }
        if let (Some(Message { compressed: true, opaque: false, .. }), Inflater::Deflate(series)) =
            (self.message, &mut self.inflater)
        {
            let inflated = series.end(&mut |slice| each(Event::Data(slice)));
            self.inflated(inflated, each);
        }
        if let Some(message) = self.message.take().filter(|message| !message.opaque) {
            each(Event::MessageEnd { text: message.text });
        }
    }
}

/// The mask byte for this offset in the payload (section 5.3).
fn mask_at(mask: [u8; 4], place: u64) -> u8 {
    mask[(place & 3) as usize]
}
