//! The per-thread read buffer, shared by all connections of the thread.

use std::cell::Cell;

thread_local! {
    static SCRATCH: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Lends the thread's buffer of `size` bytes to `work`.
pub(crate) fn with<R>(size: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with(|scratch| {
        // Taken out during the call: a nested call would get its own buffer instead of an alias.
        let mut buffer = match scratch.take() {
            Some(buffer) if buffer.len() >= size => buffer,
            _ => vec![0; size].into_boxed_slice(),
        };
        let result = work(buffer.get_mut(..size).unwrap_or_default());
        scratch.set(Some(buffer));
        result
    })
}
