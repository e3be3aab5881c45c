//! An HTTP client for one server. Sends one request at a time, on one connection as long as the server keeps it open.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout_at;

use crate::client::connection::{Connection, Failure, connect};
use crate::client::recording::Recording;
use crate::client::target::Target;

/// Maximum time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP client of one server.
#[derive(Debug)]
pub struct Caller {
    target: Target,
    addresses: Vec<SocketAddr>,
    timeout: Duration,
    /// An open connection, for the first request.
    socket: Option<UnixStream>,
    kept: Option<Connection>,
    /// Whether connections are reused.
    reuse: bool,
    retried: u64,
    runtime: Option<Runtime>,
}

impl Caller {
    /// Creates a client for this target. Each response must be complete within `timeout`.
    pub fn new(target: &Target, timeout: Duration) -> Caller {
        let (target, addresses) = (target.clone(), Vec::new());
        Caller { target, addresses, timeout, socket: None, kept: None, reuse: true, retried: 0, runtime: None }
    }

    /// Creates a client that connects to this address.
    pub fn at(address: SocketAddr, target: &Target, timeout: Duration) -> Caller {
        Caller { addresses: vec![address], ..Caller::new(target, timeout) }
    }

    /// Sends the first request through this socket, if there is one.
    pub(crate) fn through(self, socket: Option<UnixStream>) -> Caller {
        Caller { socket, ..self }
    }

    /// The target of the requests.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Number of requests retried on a new connection because the server was closing the old one.
    pub fn retried(&self) -> u64 {
        self.retried
    }

    /// Sends a request and reads the complete response. Times include opening a connection, if one is needed.
    ///
    /// If a reused connection closes before the first response byte, the request is retried on a new connection (RFC
    /// 9112, 9.3.1).
    ///
    /// # Errors
    /// If there is no complete response.
    pub fn ask(&mut self, request: &Request<Full<Bytes>>) -> Result<Recording, Failure> {
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => Builder::new_current_thread().enable_all().build().map_err(Failure::Io)?,
        };
        let result = runtime.block_on(self.ask_on(request));
        self.runtime = Some(runtime);
        result
    }

    async fn ask_on(&mut self, request: &Request<Full<Bytes>>) -> Result<Recording, Failure> {
        if let Some(mut kept) = self.kept.take()
            && kept.is_open().await
        {
            match self.exchange(&mut kept, request, Instant::now()).await {
                // After one such close, connections are no longer reused: llama.cpp closes after each stream.
                Err(Failure::Cut) if kept.is_silent() => (self.reuse, self.retried) = (false, self.retried + 1),
                result => {
                    self.kept = Some(kept).filter(|_| result.is_ok());
                    return result;
                }
            }
        }
        let begun = Instant::now();
        let mut new = self.connect(begun).await?;
        let result = self.exchange(&mut new, request, begun).await;
        self.kept = Some(new).filter(|_| self.reuse && result.is_ok());
        result
    }

    async fn connect(&mut self, begun: Instant) -> Result<Connection, Failure> {
        if let Some(socket) = self.socket.take() {
            let socket = socket.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(socket));
            return Connection::new(socket.map_err(Failure::Connect)?, begun).await;
        }
        if self.addresses.is_empty() {
            self.addresses = self.target.addresses().map_err(Failure::Resolve)?;
        }
        let stream = connect(&self.addresses, self.timeout.min(CONNECT_TIMEOUT)).await.map_err(Failure::Connect)?;
        Connection::new(stream, begun).await
    }

    /// One attempt.
    async fn exchange(
        &self,
        connection: &mut Connection,
        request: &Request<Full<Bytes>>,
        begun: Instant,
    ) -> Result<Recording, Failure> {
        let sent = connection.send(request.clone(), None);
        let expired = |_| Err(Failure::Timeout(self.timeout));
        timeout_at((begun + self.timeout).into(), sent).await.unwrap_or_else(expired)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::channel;
    use std::thread;

    use http::Method;

    use super::*;

    /// A client of a server that sends these responses, one for each read, over several connections if they are empty.
    fn caller(responses: Vec<&'static str>) -> Caller {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut responses = responses.into_iter().peekable();
            while responses.peek().is_some() {
                let (mut client, _) = listener.accept().unwrap();
                while let Some(response) = responses.next().filter(|_| client.read(&mut [0; 4096]).is_ok_and(|n| n > 0))
                {
                    if response.is_empty() {
                        break;
                    }
                    client.write_all(response.as_bytes()).unwrap();
                }
            }
        });
        Caller::new(&Target::from(address), Duration::from_secs(10))
    }

    fn ask(caller: &mut Caller) -> Result<String, Failure> {
        let request = caller.target().request(Method::GET, "/", [], Bytes::new());
        caller.ask(&request).map(|response| String::from_utf8(response.body().to_vec()).unwrap())
    }

    #[test]
    fn request_is_repeated_on_a_new_connection_if_the_old_one_closes_without_a_response() {
        let mut caller = caller(vec!["HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "", "HTTP/1.1 200 OK\r\n\r\nb"]);
        assert_eq!((ask(&mut caller).unwrap(), caller.retried()), ("a".to_owned(), 0));
        assert_eq!((ask(&mut caller).unwrap(), caller.retried()), ("b".to_owned(), 1));
    }

    #[test]
    fn closed_connection_is_not_a_repeated_request() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut caller = Caller::new(&Target::from(listener.local_addr().unwrap()), Duration::from_secs(10));
        let (closed, is_closed) = channel();
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                assert!(client.read(&mut [0; 4096]).unwrap() > 0);
                client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na").unwrap();
                drop(client);
                closed.send(()).unwrap();
            }
        });
        for _ in 0..3 {
            assert_eq!((ask(&mut caller).unwrap(), caller.retried()), ("a".to_owned(), 0));
            is_closed.recv().unwrap();
        }
    }
}
