//! The server side of a WebSocket (RFC 6455), without extensions.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::server::http::Client;
use crate::server::http::Ended;

/// Appended to the key before it is hashed (section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Maximum size of a message in bytes.
const MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Codes of close frames (section 7.4.1).
pub(crate) const NORMAL: u16 = 1000;
pub(crate) const PROTOCOL_ERROR: u16 = 1002;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The response to a handshake with this key.
pub(crate) fn switched(key: &str) -> Vec<u8> {
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    let accept = BASE64_STANDARD.encode(hash);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: \
         {accept}\r\nserver: uvicorn\r\n\r\n"
    )
    .into_bytes()
}

/// Input from a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A whole message.
    Message(Vec<u8>),
    /// A ping; the pong carries its payload.
    Ping(Vec<u8>),
    /// The client closes the session; the payload is echoed.
    Close(Vec<u8>),
    /// Invalid client frames.
    Malformed,
}

/// One frame, unmasked.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    last: bool,
    opcode: u8,
    payload: Vec<u8>,
}

/// An open WebSocket.
#[derive(Debug)]
pub(crate) struct Socket<'a> {
    client: &'a mut Client,
    /// An incomplete message.
    message: Option<Vec<u8>>,
}

impl<'a> Socket<'a> {
    pub(crate) fn new(client: &'a mut Client) -> Socket<'a> {
        Socket { client, message: None }
    }

    /// Receives the next input from the client. Cancel-safe: dropping the future loses nothing.
    pub(crate) async fn receive(&mut self) -> Result<Received, Ended> {
        loop {
            let frame = match self.client.next(frame).await {
                Ok(frame) => frame,
                Err(Ended::Gone) => return Err(Ended::Gone),
                Err(_) => return Ok(Received::Malformed),
            };
            let mut message = match (frame.opcode, self.message.take()) {
                (PING, message) => {
                    self.message = message;
                    return Ok(Received::Ping(frame.payload));
                }
                (PONG, message) => {
                    self.message = message;
                    continue;
                }
                (CLOSE, _) => return Ok(Received::Close(frame.payload)),
                (TEXT | BINARY, None) => Vec::new(),
                (CONTINUATION, Some(message)) => message,
                _ => return Ok(Received::Malformed),
            };
            message.extend_from_slice(&frame.payload);
            if message.len() > MESSAGE_BYTES {
                return Ok(Received::Malformed);
            }
            if frame.last {
                return Ok(Received::Message(message));
            }
            self.message = Some(message);
        }
    }

    /// Sends a text message.
    pub(crate) async fn send(&mut self, text: &str) -> Result<(), Ended> {
        self.client.send(&framed(TEXT, text.as_bytes())).await
    }

    /// Sends a pong.
    pub(crate) async fn pong(&mut self, payload: &[u8]) -> Result<(), Ended> {
        self.client.send(&framed(PONG, payload)).await
    }

    /// Sends a close frame; the payload is the code and its reason.
    pub(crate) async fn close(&mut self, payload: &[u8]) -> Result<(), Ended> {
        self.client.send(&framed(CLOSE, payload)).await
    }

    /// Sends bytes without framing.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.client.send(bytes).await
    }
}

/// A server frame (section 5.2).
fn framed(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        length @ 0..=125 => frame.push(length as u8),
        length @ 126..=0xffff => {
            frame.push(126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

/// Parses the frame at the start of `bytes`; returns it with its length, or `None` if incomplete. Clients mask all of
/// their frames.
fn frame(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Ended> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    let (last, reserved, opcode) = (first & 0x80 != 0, first & 0x70, first & 0x0f);
    let known = matches!(opcode, CONTINUATION | TEXT | BINARY) || (matches!(opcode, CLOSE | PING | PONG) && last);
    if reserved != 0 || !known || second & 0x80 == 0 || (opcode >= CLOSE && second & 0x7f > 125) {
        return Err(Ended::Malformed);
    }
    let (length, rest) = match (second & 0x7f, rest) {
        (126, [a, b, rest @ ..]) => (u64::from(u16::from_be_bytes([*a, *b])), rest),
        (127, [a, b, c, d, e, f, g, h, rest @ ..]) => (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), rest),
        (126 | 127, _) => return Ok(None),
        (length, rest) => (u64::from(length), rest),
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= MESSAGE_BYTES).ok_or(Ended::Malformed)?;
    let Some((mask, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let Some(masked) = rest.get(..length) else { return Ok(None) };
    let payload = masked.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
    Ok(Some((Frame { last, opcode, payload }, bytes.len() - rest.len() + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_matches_the_rfc_example() {
        let switched = String::from_utf8(switched("dGhlIHNhbXBsZSBub25jZQ==")).unwrap();
        assert!(switched.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{switched}");
    }

    /// Masks a frame as a client would.
    fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = framed(opcode, payload);
        let head = bytes.len() - payload.len();
        bytes[1] |= 0x80;
        for (byte, key) in bytes[head..].iter_mut().zip([7, 8, 9, 10].iter().cycle()) {
            *byte ^= key;
        }
        bytes.splice(head..head, [7, 8, 9, 10]);
        bytes
    }

    #[test]
    fn frames_of_every_length_parse_only_when_complete() {
        for length in [0, 1, 125, 126, 127, 0xffff, 0x1_0000] {
            let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let bytes = masked(TEXT, &payload);
            let cuts = (0..20.min(bytes.len())).chain([bytes.len() - 1]);
            for cut in cuts {
                assert!(matches!(frame(&bytes[..cut]), Ok(None)), "{length} cut at {cut}");
            }
            let (read, used) = frame(&[&bytes[..], b"more"].concat()).unwrap().unwrap();
            assert_eq!((read, used), (Frame { last: true, opcode: TEXT, payload }, bytes.len()));
        }
    }

    #[test]
    fn invalid_client_frames_are_rejected() {
        let mut reserved = masked(TEXT, b"x");
        reserved[0] |= 0x40;
        let mut parted = masked(PING, b"x");
        parted[0] &= 0x7f;
        for bytes in [framed(TEXT, b"x"), masked(3, b"x"), masked(PING, &[0; 126]), reserved, parted] {
            assert!(matches!(frame(&bytes), Err(Ended::Malformed)), "{bytes:?}");
        }
        let endless = [0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert!(matches!(frame(&endless), Err(Ended::Malformed)));
    }
}
