//! One direction: reassembles frames into messages.

use crate::budget::Account;
use crate::coding::MessageInflater;
use crate::message::Fault;
use crate::websocket::Extensions;
use crate::websocket::Seen;
use crate::websocket::frame::BINARY;
use crate::websocket::frame::BadLength;
use crate::websocket::frame::CLOSE;
use crate::websocket::frame::CONTINUATION;
use crate::websocket::frame::Frame;
use crate::websocket::frame::Header;
use crate::websocket::frame::TEXT;

/// Bytes unmasked at once, on the stack.
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
    Deflate(Box<MessageInflater>),
    /// The sender's compressed messages cannot be decoded any more.
    Lost,
}

impl Receiver {
    pub(super) fn new(extensions: Extensions, takeover: bool, account: Account) -> Receiver {
        let inflater = match extensions {
            Extensions::None => Inflater::None,
            Extensions::Deflate(_) => Inflater::Deflate(Box::new(MessageInflater::new(takeover, account))),
            Extensions::Unknown => Inflater::Lost,
        };
        Receiver { at: At::Header(Header::default()), message: None, inflater }
    }

    pub(super) fn read(&mut self, mut bytes: &[u8], tell: &mut dyn FnMut(Seen<'_>)) -> Result<(), Fault> {
        loop {
            match &mut self.at {
                At::Header(header) => {
                    let frame = header.take(&mut bytes).map_err(|BadLength| Fault::MalformedFrame)?;
                    let Some(frame) = frame else { return Ok(()) };
                    self.begin(&frame);
                    self.at = At::Payload(Payload { frame, read: 0, code: [0; 2] });
                }
                At::Payload(payload) => {
                    let mut payload = *payload;
                    let left = payload.frame.length - payload.read;
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let (data, rest) = bytes.split_at_checked(here).unwrap_or((bytes, &[]));
                    bytes = rest;
                    self.payload(&mut payload, data, tell);
                    if payload.read < payload.frame.length {
                        self.at = At::Payload(payload);
                        return Ok(());
                    }
                    self.end(&payload, tell);
                    self.at = At::Header(Header::default());
                }
            }
        }
    }

    /// Starts a frame. A new message within another one discards the other without a report: endpoints fail on it.
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

    fn payload(&mut self, payload: &mut Payload, data: &[u8], tell: &mut dyn FnMut(Seen<'_>)) {
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
                self.data(scratch.get(..piece.len()).unwrap_or_default(), tell);
            }
        } else {
            self.data(data, tell);
        }
        payload.read += data.len() as u64;
    }

    /// Handles unmasked bytes of the current message.
    fn data(&mut self, data: &[u8], tell: &mut dyn FnMut(Seen<'_>)) {
        let Some(message) = self.message.filter(|message| !message.opaque && !data.is_empty()) else { return };
        if message.compressed {
            self.inflate(tell, |inflater, tell| inflater.feed(data, &mut |slice| tell(Seen::Data(slice))));
        } else {
            tell(Seen::Data(data));
        }
    }

    fn inflate(
        &mut self,
        tell: &mut dyn FnMut(Seen<'_>),
        step: impl FnOnce(&mut MessageInflater, &mut dyn FnMut(Seen<'_>)) -> Result<(), crate::coding::Unreadable>,
    ) {
        let Inflater::Deflate(inflater) = &mut self.inflater else { return };
        if let Err(why) = step(inflater, tell) {
            self.inflater = Inflater::Lost;
            if let Some(message) = &mut self.message {
                message.opaque = true;
            }
            tell(Seen::Unreadable(why));
        }
    }

    /// Ends a frame.
    fn end(&mut self, payload: &Payload, tell: &mut dyn FnMut(Seen<'_>)) {
        let frame = &payload.frame;
        if frame.is_control() {
            if frame.opcode == CLOSE {
                tell(Seen::Close((frame.length >= 2).then(|| u16::from_be_bytes(payload.code))));
            }
            return;
        }
        if !frame.fin {
            return;
        }
        if let Some(Message { compressed: true, opaque: false, .. }) = self.message {
            self.inflate(tell, |inflater, tell| inflater.end(&mut |slice| tell(Seen::Data(slice))));
        }
        if let Some(message) = self.message.take().filter(|message| !message.opaque) {
            tell(Seen::MessageEnd { text: message.text });
        }
    }
}

/// The mask byte for this offset in the payload (section 5.3).
fn mask_at(mask: [u8; 4], place: u64) -> u8 {
    let [a, b, c, d] = mask;
    match place & 3 {
        0 => a,
        1 => b,
        2 => c,
        _ => d,
    }
}
