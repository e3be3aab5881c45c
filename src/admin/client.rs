//! The other side of `/drain`: asks a running tokometer to drain.

use std::io;
use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::net::ToSocketAddrs;
use std::time::Duration;

/// How long the admin server may take to be reached and to begin the drain.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest answer that is read.
const LONGEST: u64 = 64 * 1024;

/// How a drain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Streams that are open.
    pub open_streams: u64,
}

/// Why there is no drain.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// It is no address.
    #[error("`{0}` is no address of an admin server; write http://127.0.0.1:9464")]
    Address(String),
    /// Nobody answers, or no longer.
    #[error(
        "the admin server at {address} does not answer: {source}; is tokometer running, and is this its admin address (--admin)?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The admin server refuses it.
    #[error("the admin server at {address} refuses the drain: {message}")]
    Refused {
        /// The address.
        address: String,
        /// The reason that it gives.
        message: String,
    },
    /// Somebody answers who is no tokometer.
    #[error("what answers at {0} is not tokometer's admin server; give its address with --admin")]
    Stranger(String),
}

/// Begins a drain at this admin address (`http://127.0.0.1:9464` or `127.0.0.1:9464`). With `wait` it returns when no stream is
/// open any more, or when that time is over; else at once.
///
/// # Errors
/// When the server cannot be reached, or is none of ours.
pub fn drain(admin: &str, wait: Option<Duration>) -> Result<Drained, DrainError> {
    let rest = admin.strip_prefix("http://").unwrap_or(admin);
    let address = rest.strip_suffix('/').unwrap_or(rest);
    let wrong = || DrainError::Address(admin.to_owned());
    let unreachable = |source| DrainError::Unreachable { address: address.to_owned(), source };
    if address.contains('/') || !address.contains(':') {
        return Err(wrong());
    }
    let target = address.to_socket_addrs().map_err(|_| wrong())?.next().ok_or_else(wrong)?;
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE).map_err(unreachable)?;
    stream.set_read_timeout(Some(wait.unwrap_or_default() + PATIENCE)).map_err(unreachable)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(unreachable)?;
    let query = wait.map(|wait| format!("?wait={}ms", wait.as_millis())).unwrap_or_default();
    let request =
        format!("POST /drain{query} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(unreachable)?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).map_err(unreachable)?;
    let answer = String::from_utf8_lossy(&answer);
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    match (body["draining"].as_bool(), body["open_streams"].as_u64()) {
        (Some(true), Some(open_streams)) => Ok(Drained { open_streams }),
        _ if body["error"]["message"].is_string() => {
            let message = body["error"]["message"].as_str().unwrap_or_default().to_owned();
            Err(DrainError::Refused { address: address.to_owned(), message })
        }
        _ => Err(DrainError::Stranger(address.to_owned())),
    }
}
