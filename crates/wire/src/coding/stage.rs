//! One coding being undone.

use crate::coding::Coding;
use crate::coding::Limits;
use crate::coding::Unreadable;
use crate::coding::brotli::Brotli;
use crate::coding::gzip::Gzip;
use crate::coding::inflate::Inflate;
use crate::coding::message;
use crate::coding::zlib::Zlib;
use crate::coding::zstandard::Zstandard;

/// The state of one coding. Each variant is small or boxed; the windows are on the heap.
#[derive(Debug)]
pub(super) enum Stage {
    Gzip(Gzip),
    Deflate(Zlib),
    Brotli(Brotli),
    Zstd(Zstandard),
    /// Messages of a WebSocket.
    Message(Inflate),
}

impl Stage {
    /// Before the first byte.
    pub(super) fn new(coding: Coding, limits: &Limits) -> Result<Stage, Unreadable> {
        Ok(match coding {
            Coding::Gzip => Stage::Gzip(Gzip::new()),
            Coding::Deflate => Stage::Deflate(Zlib::new()),
            Coding::Brotli => Stage::Brotli(Brotli::new(limits.window_bytes)),
            Coding::Zstd => Stage::Zstd(Zstandard::new(limits.window_bytes)?),
        })
    }

    /// Takes what it can of `input`, and tells how many bytes it wrote. When it fills `output` it may have more; when it
    /// does not, it has taken all of `input`, or a part and wants to be called again.
    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        match self {
            Stage::Gzip(gzip) => gzip.step(input, output),
            Stage::Deflate(zlib) => zlib.step(input, output),
            Stage::Brotli(brotli) => brotli.step(input, output),
            Stage::Zstd(zstd) => zstd.step(input, output),
            Stage::Message(inflate) => message::step(inflate, input, output),
        }
    }

    /// What setting up a decoder costs, in decoded bytes of 1 to 2 ns each (measured: 0.3, 5 and 4 to 8 us).
    pub(super) fn setup_cost(coding: Coding) -> usize {
        match coding {
            Coding::Gzip | Coding::Deflate => 512,
            Coding::Brotli => 6 * 1024,
            Coding::Zstd => 3 * 1024,
        }
    }

    /// What [`Stage::restart`] costs, likewise.
    pub(super) fn restart_cost(&self) -> usize {
        match self {
            Stage::Brotli(_) => Stage::setup_cost(Coding::Brotli),
            Stage::Gzip(_) | Stage::Deflate(_) | Stage::Zstd(_) | Stage::Message(_) => 256,
        }
    }

    /// What the last step has cost, which gave `written` bytes. brotli decodes ahead.
    pub(super) fn cost(&mut self, written: usize) -> usize {
        match self {
            Stage::Gzip(_) | Stage::Deflate(_) | Stage::Message(_) | Stage::Zstd(_) => written,
            Stage::Brotli(brotli) => brotli.decoded(),
        }
    }

    /// What earlier steps have cost beyond [`Stage::cost`], if nothing more is asked for.
    pub(super) fn unpaid(&self) -> usize {
        match self {
            Stage::Zstd(zstd) => zstd.ahead(),
            Stage::Gzip(_) | Stage::Deflate(_) | Stage::Message(_) | Stage::Brotli(_) => 0,
        }
    }

    /// Bytes it holds on the heap.
    pub(super) fn holds(&self) -> usize {
        match self {
            Stage::Gzip(gzip) => gzip.holds(),
            Stage::Deflate(zlib) => zlib.holds(),
            Stage::Brotli(brotli) => brotli.holds(),
            Stage::Zstd(zstd) => zstd.holds(),
            Stage::Message(_) => message::holds(),
        }
    }

    /// Ready for another stream, wherever this one stands; it keeps its memory where it can.
    pub(super) fn restart(&mut self) -> Result<(), Unreadable> {
        match self {
            Stage::Gzip(gzip) => gzip.restart(),
            Stage::Deflate(zlib) => zlib.restart(),
            Stage::Brotli(brotli) => brotli.restart(),
            Stage::Zstd(zstd) => return zstd.restart(),
            Stage::Message(inflate) => inflate.reset(),
        }
        Ok(())
    }

    /// The stream has come to an end. Those of a WebSocket's messages have none.
    pub(super) fn is_at_end(&self) -> bool {
        match self {
            Stage::Gzip(gzip) => gzip.is_at_end(),
            Stage::Deflate(zlib) => zlib.is_at_end(),
            Stage::Brotli(brotli) => brotli.is_at_end(),
            Stage::Zstd(zstd) => zstd.is_at_end(),
            Stage::Message(_) => false,
        }
    }
}
