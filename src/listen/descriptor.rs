//! Takes an accepted socket out of pingora's stream.
//!
//! pingora hands on a boxed stream with buffers and timers of its own, registered with the thread that accepted. The relay
//! needs the bare socket, registered with the thread that serves it: less memory, no clock reads per token, and resets
//! that can be noticed while nothing is read.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;

use pingora::protocols::Stream;

/// A second descriptor of the socket under `stream`; the first is closed when the stream is dropped.
///
/// # Errors
/// When no descriptor is free.
pub(crate) fn duplicate(stream: &Stream) -> io::Result<OwnedFd> {
    let descriptor = stream.id();
    if descriptor < 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: `id()` of an accepted stream is its open descriptor (pingora-core 0.9.1, protocols/l4/stream.rs), checked
    // not to be -1, and `stream` is borrowed for the whole call, so it stays open while it is duplicated.
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()
}
