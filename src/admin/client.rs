//! Client for `/drain`: requests a drain of a running tokometer.

use std::io;
use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::net::ToSocketAddrs;
use std::time::Duration;

/// Maximum time to connect to the admin server and to start the drain.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum bytes of a response.
const LONGEST: u64 = 64 * 1024;

/// State of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Number of open streams.
    pub open_streams: u64,
}

/// Why the drain failed.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// Invalid address.
    #[error("`{0}` is not the address of an admin server; write http://127.0.0.1:9464")]
    Address(String),
    /// The server does not respond, or stopped responding.
    #[error(
        "the admin server at {address} does not respond: {source}; is tokometer running, and is this its admin address (--admin)?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The admin server rejected the request.
    #[error("the admin server at {address} rejected the drain: {message}")]
    Refused {
        /// The address.
        address: String,
        /// The reason in the response.
        message: String,
    },
    /// The server is not tokometer.
    #[error("the server at {0} is not tokometer's admin server; set its address with --admin")]
    Stranger(String),
}

/// Requests a drain at this admin address (`http://127.0.0.1:9464` or `127.0.0.1:9464`). With `wait`, returns when no
/// stream is open or the time is over; otherwise immediately.
///
/// # Errors
/// If the server cannot be reached, or is not tokometer.
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
