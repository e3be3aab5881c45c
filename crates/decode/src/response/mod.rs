//! Decoder for one response body.

mod draft;
mod grpc;
mod kind;
mod prediction;
mod reading;

use std::hint::black_box;

pub(crate) use draft::{Draft, Flag};
pub(crate) use prediction::Prediction;
#[cfg(test)]
pub(crate) use prediction::skip_counts;
pub(crate) use reading::ResponseState;

use crate::dialect::Place;
use crate::framing::{DoneMark, Piece, PlainText, SseFramer, Verdict, next_piece};
use crate::scan::{Pause, Scanner};
use crate::{Channels, EngineFacts, Framing, ResponseText, Route, StreamEvent, TextLimits, TextMemory};
use grpc::GrpcResponse;
use reading::TextKeeper;

/// The response metadata known up to an event.
#[derive(Clone, Copy, Debug)]
pub struct ResponseInfo<'a> {
    reading: &'a ResponseState,
    framing: Framing,
}

impl ResponseInfo<'_> {
    /// See [`ResponseDecoder::model`].
    pub fn model(&self) -> Option<&str> {
        self.reading.model()
    }

    /// Whether the body is a sequence of events, whatever its `content-type`. `None` for messages and gRPC.
    pub fn streams(&self) -> Option<bool> {
        (!matches!(self.framing, Framing::Messages | Framing::Grpc)).then(|| self.framing.is_stream())
    }

    /// See [`ResponseDecoder::engine`].
    pub fn engine(&self) -> EngineFacts {
        self.reading.engine()
    }
}

/// Incremental decoder for one response body, in fixed memory. Input may be split at any byte.
///
/// Feed it the body after transfer and content decoding. Error bodies (4xx, 5xx) are decoded like any other.
#[derive(Clone, Debug)]
pub struct ResponseDecoder {
    framing: Framing,
    /// The route, until the first byte of the body confirms the declared framing.
    unconfirmed: Option<Route>,
    root: Place,
    framer: SseFramer,
    done: DoneMark,
    scanner: Scanner<Place>,
    reading: ResponseState,
    prediction: Prediction,
    end: End,
    /// Boxed: few responses use gRPC.
    grpc: Option<Box<GrpcResponse>>,
    /// The response text, if it is kept. Prediction is then disabled, because it skips strings.
    kept: Option<Box<ResponseText>>,
    /// Set when the body is plain response text.
    text: Option<PlainText>,
}

/// How the data so far ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The data of an event ends with a space.
    Space,
    /// A JSON body is one complete text and the end of its line.
    Line,
    Other,
}

impl End {
    fn of(data: &[u8]) -> End {
        if data.ends_with(b" ") { End::Space } else { End::Other }
    }
}

impl ResponseDecoder {
    /// Decoder for a response on this route with the framing that its `content-type` declares, if it is known. If the
    /// body begins differently, it is decoded as what it is. Routes with an unknown dialect are not decoded
    /// ([`Route::is_read`]).
    pub fn of_declared(route: Route, declared: Option<Framing>) -> Self {
        let is_text = declared == Some(Framing::Text) && route.has_text_response();
        let framing = declared.unwrap_or(Framing::Text);
        let is_declared = is_text || matches!(framing, Framing::Messages | Framing::Grpc);
        let unconfirmed = (!is_declared).then_some(route);
        Self { unconfirmed, ..Self::new(route, framing) }
    }

    /// Decoder for a response on this route with this framing. Routes with an unknown dialect are not decoded
    /// ([`Route::is_read`]).
    pub fn new(route: Route, framing: Framing) -> Self {
        let root = route.root(framing);
        Self {
            framing,
            unconfirmed: None,
            root,
            framer: SseFramer::default(),
            done: DoneMark::default(),
            scanner: Scanner::new(root),
            reading: ResponseState::default(),
            prediction: Prediction::new(root),
            end: End::Other,
            grpc: route.grpc().filter(|_| framing == Framing::Grpc).map(|method| Box::new(GrpcResponse::new(method))),
            kept: None,
            text: (framing == Framing::Text && route.has_text_response()).then(PlainText::default),
        }
    }

    /// Keeps the response text from now on. Call this only if [`Route::writes_text`] is true.
    pub fn keep_text(&mut self, limits: TextLimits, memory: &TextMemory) {
        self.kept = Some(Box::new(ResponseText::new(limits, memory.clone())));
    }

    /// Returns the kept text and stops keeping it.
    pub fn take_text(&mut self) -> Option<Box<ResponseText>> {
        self.kept.take()
    }

    /// Decodes the next bytes of the body. A server-sent event is emitted at the last byte of its blank line, and a
    /// JSON line at its line feed. A JSON text is emitted by [`ResponseDecoder::finish`], and a message by
    /// [`ResponseDecoder::end_message`].
    pub fn feed(&mut self, bytes: &[u8], each: &mut impl FnMut(&StreamEvent)) {
        self.feed_to(bytes, &mut |event, _| each(event));
    }

    /// Like [`ResponseDecoder::feed`]; `each` also receives the response metadata known so far.
    pub fn feed_to(&mut self, bytes: &[u8], each: &mut impl FnMut(&StreamEvent, &ResponseInfo<'_>)) {
        let bytes = match self.unconfirmed {
            Some(route) => self.confirm(route, bytes),
            None => bytes,
        };
        if let Some(grpc) = &mut self.grpc {
            grpc.feed(bytes, &mut self.reading);
        }
        if let Some(text) = &mut self.text {
            text.feed(bytes);
        }
        if self.root == Place::Unread {
            return;
        }
        match self.framing {
            Framing::Json => self.feed_json(bytes, each),
            Framing::Messages => self.scan(bytes),
            Framing::Ndjson => {
                let mut rest = bytes;
                while let Some(piece) = next_piece(&mut rest) {
                    match piece {
                        Piece::Part(part) => self.scan(part),
                        _ => self.end_event(each),
                    }
                }
            }
            Framing::Grpc | Framing::Text => {}
            Framing::Sse => {
                let mut rest = bytes;
                loop {
                    if self.kept.is_none()
                        && let Some(value) = self.framer.peek(rest)
                        && let Some(after) = self.prediction.skip_line(value, &mut self.scanner, &mut self.reading)
                    {
                        self.framer.take_line();
                        self.done.rule_out();
                        let last = value.len().checked_sub(after.len() + 2);
                        self.end = End::of(last.and_then(|last| value.get(..=last)).unwrap_or_default());
                        rest = after;
                    }
                    match self.framer.next(&mut rest) {
                        Some(Piece::Line(line)) => self.read_line(line),
                        Some(Piece::Part(part)) => self.read_part(part),
                        // Some servers send no blank line between events.
                        Some(Piece::Join) if self.scanner.is_done() => self.end_event(each),
                        Some(Piece::Join) => self.read_part(b"\n"),
                        Some(Piece::End) => self.end_event(each),
                        None => break,
                    }
                }
            }
        }
    }

    /// Ends a message ([`Framing::Messages`], [`Framing::Grpc`]) and emits its event.
    pub fn end_message(&mut self, each: &mut impl FnMut(&StreamEvent)) {
        self.end_message_to(&mut |event, _| each(event));
    }

    /// Like [`ResponseDecoder::end_message`]; `each` also receives the response metadata.
    pub fn end_message_to(&mut self, each: &mut impl FnMut(&StreamEvent, &ResponseInfo<'_>)) {
        if let Some(grpc) = &mut self.grpc {
            let event = grpc.end_message(&mut self.reading);
            each(&event, &self.info());
        }
        if self.framing == Framing::Messages && self.root != Place::Unread {
            self.end_event(each);
        }
    }

    /// Starts another response on the same connection ([`Framing::Messages`]), with its own id and error type. The
    /// model and the engine marks are kept, because a session sends them only once.
    pub fn begin_response(&mut self) {
        self.reading.begin_response();
    }

    /// Ends the body. Emits the last event even if its blank line is missing. A truncated JSON text is emitted as
    /// [`StreamEvent::malformed`], with only the facts that are certain.
    pub fn finish(&mut self, each: &mut impl FnMut(&StreamEvent)) {
        self.finish_to(&mut |event, _| each(event));
    }

    /// Like [`ResponseDecoder::finish`]; `each` also receives the response metadata.
    pub fn finish_to(&mut self, each: &mut impl FnMut(&StreamEvent, &ResponseInfo<'_>)) {
        if self.text.is_some_and(|text| text.has_words()) {
            let event = StreamEvent { channels: Channels::CONTENT, ..StreamEvent::default() };
            each(&event, &self.info());
        }
        let is_open = match self.framing {
            Framing::Sse => self.framer.finish(),
            Framing::Json | Framing::Ndjson | Framing::Messages => true,
            // A truncated message yields no event.
            Framing::Grpc | Framing::Text => false,
        };
        if is_open && self.root != Place::Unread {
            self.end_event_as(true, each);
        }
    }

    /// Prefetches the memory that the next event needs.
    pub fn warm(&self) {
        black_box((self.framing, self.framer, self.grpc.is_some(), self.kept.is_some(), self.scanner.position()));
        self.prediction.warm();
        self.reading.warm();
    }

    /// The response metadata known so far.
    pub fn info(&self) -> ResponseInfo<'_> {
        ResponseInfo { reading: &self.reading, framing: self.framing }
    }

    /// Determines the framing from the first byte of the body. Returns the body from this byte on: white space and the
    /// bytes of a byte order mark are skipped.
    fn confirm<'a>(&mut self, route: Route, bytes: &'a [u8]) -> &'a [u8] {
        let is_skipped = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf);
        let start = bytes.iter().position(|byte| !is_skipped(byte)).unwrap_or(bytes.len());
        let bytes = bytes.get(start..).unwrap_or_default();
        let Some(first) = bytes.first() else { return bytes };
        self.unconfirmed = None;
        let framing = self.framing.of_body(*first);
        if framing != self.framing {
            let kept = self.kept.take().filter(|_| route.writes_text(framing));
            *self = Self { kept, ..Self::new(route, framing) };
        }
        bytes
    }

    /// Decodes a part of a JSON body. Another JSON object on the line after the first shows that the body is a sequence
    /// of events, unlike its `content-type`. The first event is emitted then.
    fn feed_json(&mut self, bytes: &[u8], each: &mut impl FnMut(&StreamEvent, &ResponseInfo<'_>)) {
        let mut rest = bytes;
        while let Some(piece) = next_piece(&mut rest) {
            match piece {
                Piece::Part(part) => {
                    let first = part.iter().position(|byte| !byte.is_ascii_whitespace());
                    let (space, line) = part.split_at_checked(first.unwrap_or(part.len())).unwrap_or((part, &[]));
                    self.scan(space);
                    if self.end == End::Line && line.first() == Some(&b'{') {
                        self.framing = Framing::Ndjson;
                        self.end_event(each);
                        self.scan(line);
                        return self.feed_to(rest, each);
                    }
                    if !line.is_empty() {
                        self.end = End::Other;
                    }
                    self.scan(line);
                }
                _ => {
                    self.scan(b"\n");
                    self.end = if self.scanner.is_done() { End::Line } else { End::Other };
                }
            }
        }
    }

    /// The first `id`, truncated to 128 bytes. `None` if it was empty or not Unicode.
    pub fn response_id(&self) -> Option<&str> {
        self.reading.id()
    }

    /// The first `model`, truncated to 128 bytes. `None` if it was empty or not Unicode.
    pub fn model(&self) -> Option<&str> {
        self.reading.model()
    }

    /// The engine marks found so far.
    pub fn engine(&self) -> EngineFacts {
        self.reading.engine()
    }

    /// True if the body has a text or a status of its API, possibly empty, or is plain text as expected.
    pub fn is_known(&self) -> bool {
        self.text.is_some() || self.reading.is_known()
    }

    /// The type of the first error event, truncated to 48 bytes: `error.type`, `error_type` (TGI), or `type` next to
    /// `object: "error"` (SGLang). Set once that event has been emitted.
    pub fn error_type(&self) -> Option<&str> {
        self.reading.error_type()
    }

    /// Processes the complete first line of an event's data.
    fn read_line(&mut self, line: &[u8]) {
        self.end = End::of(line);
        if DoneMark::matches(line) {
            self.done.set();
        } else {
            self.done.rule_out();
            match self.kept {
                None => self.prediction.scan_line(line, &mut self.scanner, &mut self.reading),
                Some(_) => self.scan(line),
            }
        }
    }

    /// Processes a part of an event's data.
    fn read_part(&mut self, part: &[u8]) {
        self.end = End::of(part);
        match self.done.take(part) {
            Verdict::Open | Verdict::Done => {}
            Verdict::NotDone(held_back, rest) => {
                self.scan(held_back);
                self.scan(rest);
            }
        }
    }

    fn scan(&mut self, bytes: &[u8]) {
        match &mut self.kept {
            None => self.scanner.feed(bytes, Pause::Never, &mut self.reading),
            Some(text) => {
                let keeping =
                    &mut TextKeeper { reading: &mut self.reading, text, whole: self.framing == Framing::Json };
                self.scanner.feed(bytes, Pause::Never, keeping)
            }
        };
    }

    fn end_event(&mut self, each: &mut impl FnMut(&StreamEvent, &ResponseInfo<'_>)) {
        self.end_event_as(false, each);
    }

    /// Ends the event. `last`: the body has ended too, so an incomplete event was truncated.
    fn end_event_as(&mut self, last: bool, each: &mut impl FnMut(&StreamEvent, &ResponseInfo<'_>)) {
        let is_error = self.framer.take_error();
        if self.done.is_set() {
            self.done = DoneMark::default();
            self.scanner.restart(self.root);
            self.reading.take(false);
            each(&StreamEvent { done: true, error: is_error, ..StreamEvent::default() }, &self.info());
            return;
        }
        self.scan(self.done.held_back());
        self.done = DoneMark::default();
        if self.scanner.is_untouched() {
            if is_error {
                each(&StreamEvent { error: true, ..StreamEvent::default() }, &self.info());
            }
            return;
        }
        self.scanner.finish(&mut self.reading);
        let is_whole = self.scanner.is_done();
        if self.end == End::Space && is_whole {
            self.reading.mark(EngineFacts::SPACE_BEFORE_END);
        }
        if self.framing == Framing::Json {
            self.reading.mark_body();
        }
        let is_ping = self.reading.is_ping();
        let mut event = self.reading.take(!is_whole);
        event.error |= is_error;
        let event = if last && !is_whole { event.beginning() } else { event };
        self.scanner.restart(self.root);
        if let Some(text) = &mut self.kept {
            text.settle(&event);
        }
        if !is_ping {
            each(&event, &self.info());
        }
    }
}
