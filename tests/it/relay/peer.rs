//! Plays scripts for both ends of a connection, and returns the bytes that each end received.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::Duration;
use std::{io, thread};

use socket2::SockRef;

/// Timeout of each step; only a failing test waits this long.
const PATIENCE: Duration = crate::WAIT;

/// One action of an end.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Writes all bytes. Errors are ignored, because it depends on timing when writes begin to fail.
    Send(Vec<u8>),
    /// Writes one byte at a time.
    Drip(Vec<u8>),
    /// Reads until this many bytes have been received in total.
    Read(usize),
    /// Reads to the end of the stream.
    ReadEnd,
    /// Sends FIN and continues reading.
    Finish,
    /// Closes with a reset.
    Reset,
    /// Closes the connection. The end of a script does so too.
    Close,
    /// Waits until the other end reaches its `Meet`.
    Meet,
}

/// How an end's stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The script did not read up to the end.
    Unread,
    Fin,
    Reset,
    /// The stream did not end in time.
    Hangs,
}

/// The bytes and ending that an end received.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ending: Ending,
}

impl std::fmt::Debug for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = &self.bytes[..self.bytes.len().min(120)];
        write!(f, "{:?} after {} bytes: {}", self.ending, self.bytes.len(), start.escape_ascii())
    }
}

/// The actions of both ends.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) client: Vec<Step>,
    pub(crate) server: Vec<Step>,
}

/// A connection that a script can be played on.
pub(crate) trait Wire: Read + Write + Send {
    fn finish(&mut self);
    fn reset(&mut self);
}

impl Wire for TcpStream {
    fn finish(&mut self) {
        self.shutdown(Shutdown::Write).ok();
    }

    fn reset(&mut self) {
        SockRef::from(&*self).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

impl Wire for std::os::unix::net::UnixStream {
    fn finish(&mut self) {
        self.shutdown(Shutdown::Write).ok();
    }

    fn reset(&mut self) {}
}

/// Connects with timeouts for reads and writes.
pub(crate) fn dial(address: SocketAddr) -> TcpStream {
    prepare(TcpStream::connect(address).unwrap())
}

pub(crate) fn prepare(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A server's listening socket.
pub(crate) fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Plays a script: the client on the result of `connect`, the server on that of `accept`.
pub(crate) fn play<C: Wire, S: Wire>(
    script: &Script,
    connect: impl FnOnce() -> C + Send,
    accept: impl FnOnce() -> S + Send,
) -> (Got, Got) {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let server = scope.spawn(|| act(accept(), &script.server, &barrier));
        let client = act(connect(), &script.client, &barrier);
        (client, server.join().unwrap())
    })
}

/// Plays a script over TCP against a server at `listener`, through `address`.
pub(crate) fn play_tcp(script: &Script, address: SocketAddr, listener: &TcpListener) -> (Got, Got) {
    play(script, || dial(address), || prepare(listener.accept().unwrap().0))
}

fn act(mut wire: impl Wire, steps: &[Step], barrier: &Barrier) -> Got {
    let mut got = Got { bytes: Vec::new(), ending: Ending::Unread };
    for step in steps {
        match step {
            Step::Send(bytes) => drop(wire.write_all(bytes).and_then(|()| wire.flush())),
            Step::Drip(bytes) => {
                bytes.iter().for_each(|byte| drop(wire.write_all(&[*byte]).and_then(|()| wire.flush())))
            }
            Step::Read(total) => read_until(&mut wire, &mut got, *total),
            Step::ReadEnd => read_until(&mut wire, &mut got, usize::MAX),
            Step::Finish => wire.finish(),
            Step::Reset => {
                wire.reset();
                break;
            }
            Step::Close => break,
            Step::Meet => {
                barrier.wait();
            }
        }
    }
    drop(wire);
    // After the close, only `Meet` steps are executed.
    let closed = steps.iter().position(|step| matches!(step, Step::Reset | Step::Close)).unwrap_or(steps.len());
    for step in &steps[closed..] {
        if matches!(step, Step::Meet) {
            barrier.wait();
        }
    }
    got
}

fn read_until(wire: &mut impl Wire, got: &mut Got, total: usize) {
    let mut chunk = vec![0; 64 * 1024];
    while got.bytes.len() < total && got.ending == Ending::Unread {
        let most = chunk.len().min(total - got.bytes.len());
        match wire.read(&mut chunk[..most]) {
            Ok(0) => got.ending = Ending::Fin,
            Ok(length) => got.bytes.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                got.ending = Ending::Hangs;
            }
            Err(_) => got.ending = Ending::Reset,
        }
    }
}
