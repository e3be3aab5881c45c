//! Responses to clients whose server cannot be reached.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::relay::admission::{Accepted, Relay};
use crate::relay::drain::Phase;
use crate::relay::settings::Unreachable;
use crate::relay::stats::Full;
use crate::relay::stats::unreached::Unreached;
use crate::relay::stream::Stream;
use tokometer_observe::input::{Close, Direction};

/// Timeout of the first bytes. A client that sent nothing by then holds a descriptor and has no request to respond to.
const FIRST_BYTES: Duration = Duration::from_secs(10);

/// After the response, the client may still be sending its request. Closing with unread bytes makes the kernel send a
/// reset that overtakes the response (RFC 9112 section 9.6). These limits apply to reading and discarding the rest.
const LINGER: Duration = Duration::from_secs(10);
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// Read size: small, because these connections are few and short.
const CHUNK_BYTES: usize = 4 * 1024;

/// Maximum reads before an immediate refusal.
const READS_AT_ONCE: usize = 16;

impl Relay {
    /// Refuses a client immediately because the connection limit is reached. The client must not hold a descriptor
    /// while it sends its request.
    ///
    /// HTTP/1 clients get 503 unless the settings specify a reset. The relay does not wait for the rest of the request:
    /// a client that has not sent the whole request gets a reset after the response.
    pub(crate) fn refuse(&self, mut client: Stream, why: Full) {
        if self.settings().unreachable == Unreachable::Reset || is_other_than_http1(&mut client) {
            return client.reset();
        }
        let message = match why {
            Full::Descriptors => "tokometer: no file descriptors are left for more connections",
            Full::Memory => "tokometer: no memory is left for more connections",
            Full::MaxConnections => "tokometer: the maximum number of connections is open (relay.max_connections)",
        };
        let mut cx = Context::from_waker(Waker::noop());
        // The send buffer of a new socket holds the whole response.
        drop(Pin::new(&mut client).poll_write(&mut cx, &service_unavailable("too_many_connections", message)));
        client.close();
    }
}

/// Reads the bytes that have already arrived, because closing with unread bytes would discard the response. True if
/// they are not HTTP/1.
fn is_other_than_http1(client: &mut Stream) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let mut chunk = [0; CHUNK_BYTES];
    let mut other = false;
    for read in 0..READS_AT_ONCE {
        let mut buf = ReadBuf::new(&mut chunk);
        match Pin::new(&mut *client).poll_read(&mut cx, &mut buf) {
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                other |= read == 0 && is_http1(buf.filled()) == Some(false);
            }
            _ => break,
        }
    }
    other
}

impl Accepted {
    /// Responds to a client whose server cannot be reached, according to the settings, and ends the connection.
    ///
    /// The observer receives the client's bytes, but not this response, because the server did not send it.
    pub(crate) async fn refuse(mut self, client: Stream, why: Unreached, address: &str, reason: &str) {
        self.guard.unreached(why);
        match self.guard.relay().settings().unreachable {
            Unreachable::Reset => client.reset(),
            Unreachable::Refuse | Unreachable::Http503 => self.response(client, address, reason).await,
        }
        self.end(if why == Unreached::Timeout { Close::ConnectTimeout } else { Close::Refused });
    }

    async fn response(&mut self, mut client: Stream, address: &str, reason: &str) {
        let relay = Arc::clone(self.guard.relay());
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut start = Vec::new();
        let first = async {
            loop {
                let bytes = self.read(&mut client, &mut chunk).await?;
                start.extend_from_slice(bytes);
                if let Some(known) = is_http1(&start) {
                    return Ok::<bool, io::Error>(known);
                }
            }
        };
        if !matches!(relay.drain().in_time(FIRST_BYTES, first).await, Some(Ok(true)))
            || self.ticket.phase() == Phase::Forced
        {
            return client.reset();
        }
        let linger = async {
            let message = format!("tokometer: cannot reach the inference server at {address}: {reason}");
            client.write_all(&service_unavailable("upstream_unreachable", &message)).await?;
            client.shutdown().await?;
            let mut left = LINGER_BYTES;
            while left > 0 {
                left = left.saturating_sub(self.read(&mut client, &mut chunk).await?.len());
            }
            Ok::<(), io::Error>(())
        };
        // Ends with the client's FIN or at a limit; either way the response had time to arrive.
        drop(relay.drain().in_time(LINGER, linger).await);
        client.close();
    }

    async fn read<'a>(&mut self, client: &mut Stream, chunk: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let length = client.read(chunk).await?;
        let at = Instant::now();
        let bytes = chunk.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            self.guard.finished(Direction::Request, at);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.guard.seen(Direction::Request, bytes, at);
        Ok(bytes)
    }
}

/// Whether these first bytes begin an HTTP/1 request: an uppercase method and a space. `None` while undecided. The
/// preface of HTTP/2 (`PRI * HTTP/2.0`, RFC 9113 section 3.4) begins like a request, but is not one.
fn is_http1(start: &[u8]) -> Option<bool> {
    const LONGEST_METHOD: usize = 24;
    let method = start.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    match start.get(method) {
        Some(b' ') => Some(method > 0 && !start.starts_with(b"PRI ")),
        Some(_) => Some(false),
        None if method > LONGEST_METHOD => Some(false),
        None => None,
    }
}

/// An error body in the format of the OpenAI API.
pub fn error_body(code: u16, kind: &str, message: &str) -> String {
    let message = serde_json::Value::from(message);
    format!(r#"{{"error":{{"message":{message},"type":"{kind}","param":null,"code":{code}}}}}"#)
}

fn service_unavailable(kind: &str, message: &str) -> Vec<u8> {
    let body = error_body(503, kind, message);
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_identify_an_http1_request() {
        for (start, expected) in [
            (&b"POST /v1/chat/completions HTTP/1.1\r\n"[..], Some(true)),
            (b"G", None),
            (b"GET ", Some(true)),
            (b"M-SEARCH * HTTP/1.1", Some(true)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(false)),
            (b" / HTTP/1.1", Some(false)),
            (b"\x16\x03\x01", Some(false)),
            (b"get / HTTP/1.1", Some(false)),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Some(false)),
            (b"", None),
        ] {
            assert_eq!(is_http1(start), expected, "{:?}", start.escape_ascii().to_string());
        }
    }

    #[test]
    fn error_response_is_valid_json_for_any_address() {
        let message = "tokometer: cannot reach the inference server at unix:/run/a\"b\\c\n: refused";
        let response = service_unavailable("upstream_unreachable", message);
        let response = String::from_utf8(response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["message"], message);
        assert_eq!(body["error"]["code"], 503);
    }
}
