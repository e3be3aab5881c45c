//! The decoder of one coding.

use crate::coding::Coding;
use crate::coding::Limits;
use crate::coding::Unreadable;
use crate::coding::brotli::Brotli;
use crate::coding::deflate;
use crate::coding::deflate::Gzip;
use crate::coding::deflate::INFLATE_BYTES;
use crate::coding::deflate::Inflate;
use crate::coding::deflate::Zlib;
use crate::coding::zstandard::Zstandard;

/// The state of one coding. Each variant is small or boxed; the windows are on the heap.
#[derive(Debug)]
pub(super) enum Stage {
    Gzip(Gzip),
    Deflate(Zlib),
    Brotli(Brotli),
    Zstd(Zstandard),
    /// WebSocket messages.
    Message(Inflate),
}

impl Stage {
    /// A new decoder.
    pub(super) fn new(coding: Coding, limits: &Limits) -> Result<Stage, Unreadable> {
        Ok(match coding {
            Coding::Gzip => Stage::Gzip(Gzip::new()),
            Coding::Deflate => Stage::Deflate(Zlib::new()),
            Coding::Brotli => Stage::Brotli(Brotli::new(limits.window_bytes)),
            Coding::Zstd => Stage::Zstd(Zstandard::new(limits.window_bytes)?),
        })
    }

    /// Decodes from `input` and returns the number of bytes written. If `output` is full, more may be available;
    /// otherwise all of `input` was consumed, or a part of it and the caller must call again.
    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        match self {
            Stage::Gzip(gzip) => gzip.step(input, output),
            Stage::Deflate(zlib) => zlib.step(input, output),
            Stage::Brotli(brotli) => brotli.step(input, output),
            Stage::Zstd(zstd) => zstd.step(input, output),
            Stage::Message(inflate) => deflate::message_step(inflate, input, output),
        }
    }

    /// Cost of creating a decoder, in decoded bytes of 1 to 2 ns each (measured: 0.3, 5 and 4 to 8 us).
    pub(super) fn setup_cost(coding: Coding) -> usize {
        match coding {
            Coding::Gzip | Coding::Deflate => 512,
            Coding::Brotli => 6 * 1024,
            Coding::Zstd => 3 * 1024,
        }
    }

    /// Cost of [`Stage::restart`], in the same unit.
    pub(super) fn restart_cost(&self) -> usize {
        match self {
            Stage::Brotli(_) => Stage::setup_cost(Coding::Brotli),
            Stage::Gzip(_) | Stage::Deflate(_) | Stage::Zstd(_) | Stage::Message(_) => 256,
        }
    }

    /// Cost of the last step, which produced `written` bytes. brotli decodes ahead.
    pub(super) fn cost(&mut self, written: usize) -> usize {
        match self {
            Stage::Gzip(_) | Stage::Deflate(_) | Stage::Message(_) | Stage::Zstd(_) => written,
            Stage::Brotli(brotli) => brotli.decoded(),
        }
    }

    /// Cost of earlier steps beyond [`Stage::cost`], if decoding stops here.
    pub(super) fn unpaid(&self) -> usize {
        match self {
            Stage::Zstd(zstd) => zstd.ahead(),
            Stage::Gzip(_) | Stage::Deflate(_) | Stage::Message(_) | Stage::Brotli(_) => 0,
        }
    }

    /// Bytes held on the heap.
    pub(super) fn holds(&self) -> usize {
        match self {
            Stage::Gzip(gzip) => gzip.holds(),
            Stage::Deflate(zlib) => zlib.holds(),
            Stage::Brotli(brotli) => brotli.holds(),
            Stage::Zstd(zstd) => zstd.holds(),
            Stage::Message(_) => INFLATE_BYTES,
        }
    }

    /// Prepares for a new stream from any state; keeps its memory where possible.
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

    /// True at the end of the stream. The streams of WebSocket messages have no end.
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
