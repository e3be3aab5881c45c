//! HTTP/2 (RFC 9113): takes frames; returns headers, body slices, trailers and the ends of streams.
//!
//! Flow control, settings and priorities do not affect message boundaries, so their frames are skipped. Only header
//! blocks are collected: with compression, each block affects the decoding of the next.

mod frame;
mod half;
mod head;
mod hpack;
mod streams;

use std::time::Instant;

use crate::http1::{Http1, Limits};
use crate::http2::half::{Event, Half};
use crate::http2::hpack::Fields;
use crate::http2::streams::Streams;
use crate::message::{Activity, Fault, Reset, ResponseHead, Trailers, Visitor};

/// The first bytes of a client (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Parses one connection as a passive observer. Feed the bytes of each direction in the order in which they were read.
///
/// After a [`Fault`], open requests are reported as unobserved. From then on, requests are only counted, because each new
/// stream has a HEADERS frame: they are reported as unread. Keep passing the client's bytes. Not even this is possible if
/// a side does not begin with its preface. Violations within one stream are left to the endpoints: the stream is followed as far as possible.
///
/// Holds memory for the two compression tables, the pieces of a split header block, and a few bytes for each open
/// stream. A table has 4 KiB, or at most 64 KiB if its side requests more.
#[derive(Debug)]
pub struct Http2 {
    limits: Limits,
    request: Half,
    response: Half,
    streams: Streams,
    /// Remaining bytes of the preface.
    preface: u8,
    /// The request number of the first stream.
    first: u64,
    reads: Reads,
}

/// The part of a connection that can be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    All,
    /// The client's frame headers.
    Streams,
    Nothing,
}

impl Http2 {
    /// A connection on which the client begins with the preface.
    pub fn new(limits: Limits) -> Http2 {
        Http2 {
            limits,
            request: Half::new(Fault::MalformedRequest),
            response: Half::new(Fault::MalformedResponse),
            streams: Streams::default(),
            preface: PREFACE.len() as u8,
            first: 0,
            reads: Reads::All,
        }
    }

    /// A connection that a 101 switched to HTTP/2 during this request, which is complete. The response is on stream 1
    /// (RFC 7540, section 3.2).
    pub fn upgraded(limits: Limits, number: u64) -> Http2 {
        let mut http2 = Http2 { first: number, ..Http2::new(limits) };
        http2.streams.open(1, false);
        http2
    }

    /// True while no request can be found.
    pub(super) fn is_blind(&self) -> bool {
        self.reads == Reads::Nothing
    }

    /// True while every request is found and parsed.
    pub(super) fn is_certain(&self) -> bool {
        self.reads == Reads::All
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// The client's bytes so far, if `bytes` do not continue them to the preface. `None` after a switch with 101.
    pub(super) fn not_preface(&self, bytes: &[u8]) -> Option<&'static [u8]> {
        if self.streams.highest() > 0 || !self.is_unanswered() {
            return None;
        }
        let (begun, rest) = PREFACE.split_at_checked(PREFACE.len() - usize::from(self.preface))?;
        rest.iter().zip(bytes).any(|(expected, byte)| expected != byte).then_some(begun)
    }

    /// True if the server has sent nothing so far, and its bytes are parsed.
    pub(super) fn is_unanswered(&self) -> bool {
        self.reads == Reads::All && self.response.is_unused()
    }

    /// The parser that continues when the server responds in HTTP/1: no stream was served.
    pub(super) fn refused(&mut self, at: Instant, visitor: &mut impl Visitor) -> Http1 {
        for stream in self.streams.close_all() {
            visitor.unobserved(self.number(stream), at);
        }
        Http1::after_preface(self.limits, self.number(self.streams.highest()) + 1)
    }

    /// What the connection waits for.
    pub(super) fn activity(&self) -> Activity {
        match self.reads {
            Reads::All if !self.streams.has_skipped() => self.streams.activity(),
            _ => Activity::InProgress,
        }
    }

    /// Frees memory. From now on, requests are only counted.
    pub(super) fn only_count(&mut self, at: Instant, visitor: &mut impl Visitor) {
        for stream in self.streams.close_all() {
            visitor.unobserved(self.number(stream), at);
        }
        self.request.stop_decoding();
        self.response.stop_decoding();
        if self.reads == Reads::All {
            self.reads = Reads::Streams;
        }
    }

    /// Parses `bytes`, sent by the client and read at `at`.
    ///
    /// # Errors
    /// Why the connection is not parsed any more; returned once.
    pub fn request(&mut self, mut bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        if self.preface > 0 && self.reads != Reads::Nothing {
            let expected = PREFACE.get(PREFACE.len() - usize::from(self.preface)..).unwrap_or_default();
            let here = expected.len().min(bytes.len());
            let (start, rest) = bytes.split_at_checked(here).unwrap_or_default();
            if !expected.starts_with(start) {
                self.only_count(at, visitor);
                self.reads = Reads::Nothing;
                return Err(Fault::MalformedRequest);
            }
            self.preface -= here as u8;
            bytes = rest;
        }
        let result = self.read_requests(&mut bytes, at, visitor);
        if result.is_err() {
            self.only_count(at, visitor);
            // The headers that caused the fault, if any, are those of a request too.
            for stream in self.request.faulty_streams() {
                self.count(stream, at, visitor);
            }
        }
        if self.reads == Reads::Streams {
            while let Some((stream, first)) = self.request.next_headers(&mut bytes, at) {
                self.count(stream, first, visitor);
            }
        }
        result
    }

    fn read_requests(&mut self, bytes: &mut &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        while self.reads == Reads::All
            && let Some(event) = self.request.next(bytes, at, self.limits.head_bytes)?
        {
            self.request_event(event, at, visitor);
        }
        Ok(())
    }

    /// Reports the request of a stream whose headers are not decoded.
    fn count(&mut self, stream: u32, at: Instant, visitor: &mut impl Visitor) {
        if self.streams.is_new(stream) {
            self.streams.skip(stream);
            visitor.unread(self.number(stream), at);
        }
    }

    /// Parses `bytes`, sent by the server and read at `at`.
    ///
    /// # Errors
    /// Why the connection is not parsed any more; returned once.
    pub fn response(&mut self, mut bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        while self.reads == Reads::All {
            match self.response.next(&mut bytes, at, self.limits.head_bytes) {
                Ok(Some(event)) => self.response_event(event, at, visitor),
                Ok(None) => break,
                Err(fault) => {
                    self.only_count(at, visitor);
                    if self.response.is_fresh() {
                        self.reads = Reads::Nothing;
                    }
                    return Err(fault);
                }
            }
        }
        Ok(())
    }

    /// Number of open streams.
    pub fn open(&self) -> usize {
        self.streams.len()
    }

    /// True if a stream was opened that is not followed, and may still be open.
    pub(super) fn has_skipped(&self) -> bool {
        self.streams.has_skipped()
    }

    /// The request number of a stream: clients use odd stream IDs in increasing order.
    fn number(&self, stream: u32) -> u64 {
        self.first + u64::from(stream / 2)
    }

    /// Bytes held on the heap.
    pub(super) fn holds(&self) -> usize {
        self.request.holds() + self.response.holds() + self.streams.holds()
    }

    fn request_event(&mut self, event: Event<'_>, at: Instant, visitor: &mut impl Visitor) {
        match event {
            Event::Fields { stream, fields, ends, first } => {
                let number = self.number(stream);
                if self.streams.is_new(stream) {
                    let followed = visitor.request_begin(number, first);
                    head::request(&fields, |head| visitor.request_head(number, head, at));
                    if fields.is_truncated() {
                        visitor.unobserved(number, at);
                    }
                    if followed && !fields.is_truncated() {
                        self.streams.open(stream, true);
                    } else {
                        self.streams.skip(stream);
                    }
                }
                self.end_request(stream, ends, at, visitor);
            }
            Event::Data { stream, bytes, ends } => {
                if !bytes.is_empty() && self.streams.get(stream).is_some_and(|open| open.request_open) {
                    visitor.request_body(self.number(stream), bytes, at);
                }
                self.end_request(stream, ends, at, visitor);
            }
            Event::Reset { stream, code } => {
                if self.streams.close(stream) {
                    visitor.reset(self.number(stream), Reset::ByClient(code), at);
                }
            }
            // A client's GOAWAY refers to streams opened by the server.
            Event::GoAway { .. } => {}
        }
    }

    fn end_request(&mut self, stream: u32, ends: bool, at: Instant, visitor: &mut impl Visitor) {
        if ends && self.streams.get(stream).is_some_and(|open| std::mem::take(&mut open.request_open)) {
            visitor.request_end(self.number(stream), at);
        }
    }

    fn response_event(&mut self, event: Event<'_>, at: Instant, visitor: &mut impl Visitor) {
        match event {
            Event::Fields { stream, fields, ends, .. } => {
                self.response_fields(stream, &fields, ends, at, visitor);
                self.end_response(stream, ends, at, visitor);
            }
            Event::Data { stream, bytes, ends } => {
                if !bytes.is_empty() && self.streams.get(stream).is_some() {
                    visitor.response_body(self.number(stream), bytes, at);
                }
                self.end_response(stream, ends, at, visitor);
            }
            Event::Reset { stream, code } => {
                if self.streams.close(stream) {
                    visitor.reset(self.number(stream), Reset::ByServer(code), at);
                }
            }
            Event::GoAway { last } => {
                for stream in self.streams.close_above(last) {
                    visitor.reset(self.number(stream), Reset::NotTaken, at);
                }
            }
        }
    }

    fn response_fields(&mut self, stream: u32, fields: &Fields, ends: bool, at: Instant, visitor: &mut impl Visitor) {
        let number = self.number(stream);
        let Some(open) = self.streams.get(stream) else { return };
        if fields.is_truncated() {
            self.streams.lose(stream);
            return visitor.unobserved(number, at);
        }
        if open.has_response {
            return head::listed(fields, |fields| visitor.response_trailers(number, &Trailers { fields }, at));
        }
        match head::status(fields) {
            Some(status @ 100..200) if !ends => visitor.interim(number, status, at),
            status => {
                open.has_response = true;
                if let Some(status) = status {
                    head::listed(fields, |headers| {
                        visitor.response_head(number, &ResponseHead { status, minor: 0, headers }, at)
                    });
                }
            }
        }
    }

    fn end_response(&mut self, stream: u32, ends: bool, at: Instant, visitor: &mut impl Visitor) {
        if ends && self.streams.close(stream) {
            visitor.response_end(self.number(stream), at);
        }
    }
}
