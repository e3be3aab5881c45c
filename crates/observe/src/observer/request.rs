//! One request of a connection: feeds its bodies to the decoders and the decoded events to `measure`.

use std::hint::black_box;
use std::time::Instant;

use crate::measure::Closing;
use crate::measure::Ending;
use crate::measure::Labels;
use crate::measure::Message;
use crate::measure::Parameters;
use crate::measure::Request as Measured;
use crate::measure::TraceParent;
use crate::measure::Unread;
use crate::observer::Shared;
use crate::observer::body::Bodies;
use crate::observer::engine::Recogniser;
use crate::observer::headers::GrpcStatus;
use crate::observer::headers::TgiHeaders;
use crate::observer::session::Begin;
use crate::observer::session::Session;
use tokometer_decode::EngineFacts;
use tokometer_decode::EventSink;
use tokometer_decode::Framing;
use tokometer_decode::RequestDecoder;
use tokometer_decode::ResponseDecoder;
use tokometer_decode::ResponseInfo;
use tokometer_decode::Route;
use tokometer_decode::StreamEvent;
use tokometer_wire::RequestHead;
use tokometer_wire::ResponseHead;
use tokometer_wire::Trailers;
use tokometer_wire::budget::Account;
use tokometer_wire::grpc::Event;

/// Maximum length of a recorded id, in bytes.
const ID_BYTES: usize = 128;

/// A request, its decoders while they are needed, and the values decoded from it.
#[derive(Debug)]
pub(super) struct OpenRequest {
    measured: Measured,
    recogniser: Recogniser,
    request_model: Option<Box<str>>,
    asked_stream: Option<bool>,
    request: Option<Box<RequestDecoder>>,
    response: Option<Box<ResponseDecoder>>,
    bodies: Bodies,
    streaming: bool,
    /// Status of a gRPC call that failed.
    call: Option<GrpcStatus>,
}

impl OpenRequest {
    pub(super) fn begin(connection: u64, sequence: u64, listener: usize, at: Instant) -> OpenRequest {
        OpenRequest {
            measured: Measured::begin(connection, sequence, listener, at),
            recogniser: Recogniser::default(),
            request_model: None,
            asked_stream: None,
            request: None,
            response: None,
            bodies: Bodies::default(),
            streaming: false,
            call: None,
        }
    }

    /// Prefetches the memory that the next event needs.
    pub(super) fn warm(&self) {
        self.measured.warm();
        if let Some(response) = &self.response {
            response.warm();
        }
        black_box((self.streaming, self.recogniser));
    }

    /// Sequence number on the connection.
    pub(super) fn number(&self) -> u64 {
        self.measured.sequence()
    }

    pub(super) fn request_head(&mut self, head: &RequestHead<'_>, account: &Account, shared: &Shared) {
        let route = shared.settings.route(head.method, head.target);
        self.recogniser = Recogniser::new(route, shared.settings.engine);
        let trace = head.header("traceparent").and_then(TraceParent::parse);
        self.measured.request_head(route, trace, id(head.header("x-request-id")), shared.sink.as_ref());
        self.measured.targets(shared.settings.targets.of(head));
        if !route.is_read() && route != Route::Invocations {
            return;
        }
        if route.is_rpc() {
            self.bodies.begin_messages(Message::Request, head.header("grpc-encoding"), account, shared);
            self.request = Some(Box::new(RequestDecoder::new(route)));
            return;
        }
        // SGLang uses its own header for compressed requests (0.5, `SGLANG_ENABLE_REQUEST_DECOMPRESSION`).
        let content = if head.header("content-encoding").is_some() { "content-encoding" } else { "x-body-compressed" };
        let codings = [content, "transfer-encoding"];
        let codings = codings.into_iter().flat_map(|name| head.values(name));
        match self.bodies.begin(Message::Request, codings, account, shared) {
            Ok(()) => {
                self.request = Some(Box::new(RequestDecoder::of_content_type(route, head.header("content-type"))))
            }
            Err(why) => self.unread(Message::Request, why, shared),
        }
    }

    pub(super) fn request_body(&mut self, bytes: &[u8], shared: &Shared) {
        self.measured.request_body(bytes.len());
        if let Some(decoder) = &mut self.request
            && let Err(why) = self.bodies.show(Message::Request, bytes, &mut |seen| match seen {
                Event::Data(bytes) => decoder.feed(bytes),
                Event::End => decoder.end_message(),
            })
        {
            self.unread(Message::Request, why, shared);
        }
    }

    /// A body cannot be parsed, or not to its end.
    fn unread(&mut self, of: Message, why: Unread, shared: &Shared) {
        if of == Message::Response {
            self.measured.response_unread();
        }
        shared.sink.unread(self.measured.listener(), of, why);
    }

    pub(super) fn request_end(&mut self, at: Instant, shared: &Shared) {
        self.tell_apart(shared);
        let parameters = self.parameters();
        self.measured.request_end(parameters, at);
        self.measured.announce(self.request_model.as_deref(), self.asked_stream);
    }

    /// On a path shared by several APIs, determines the API from the body received so far.
    fn tell_apart(&mut self, shared: &Shared) {
        if self.measured.route() == Route::Invocations
            && let Some(route) = self.request.as_ref().and_then(|decoder| decoder.facts().api)
        {
            self.measured.request_is(route, shared.sink.as_ref());
            self.recogniser.request_is(route);
        }
    }

    /// Returns the request parameters received so far and drops the decoder.
    fn parameters(&mut self) -> Parameters {
        let Some(decoder) = self.request.take() else { return Parameters::default() };
        let facts = decoder.facts();
        self.request_model = facts.model.map(Into::into);
        self.asked_stream = facts.stream;
        Parameters {
            n: facts.n,
            prompts: facts.prompts,
            max_tokens: facts.max_tokens,
            echo: facts.echo.unwrap_or(false),
        }
    }

    pub(super) fn response_head(&mut self, head: &ResponseHead<'_>, at: Instant, account: &Account, shared: &Shared) {
        self.tell_apart(shared);
        self.recogniser.head(head);
        let framing = head.header("content-type").and_then(Framing::of_content_type);
        let streams = match framing {
            Some(Framing::Grpc) => self.measured.route().streams_rpc(),
            framing => framing.is_some_and(Framing::is_stream),
        };
        self.streaming = self.measured.generates() && streams;
        let route = self.measured.route();
        if framing == Some(Framing::Grpc) && route.is_rpc() {
            self.bodies.begin_messages(Message::Response, head.header("grpc-encoding"), account, shared);
            self.response = Some(Box::new(ResponseDecoder::new(route, Framing::Grpc)));
        } else if let Some(framing) = framing.filter(|_| route.is_read()) {
            let codings = ["content-encoding", "transfer-encoding"];
            let codings = codings.into_iter().flat_map(|name| head.values(name));
            match self.bodies.begin(Message::Response, codings, account, shared) {
                Ok(()) => self.response = Some(self.decoder(framing, head.status, shared)),
                Err(why) => self.unread(Message::Response, why, shared),
            }
        }
        self.measured.response_head(head.status, self.streaming, id(head.header("x-request-id")), at);
        if !self.streaming
            && let Some(TgiHeaders { queue, counter }) = TgiHeaders::parse(|name| head.header(name))
        {
            self.measured.header_values(queue, counter);
        }
        // A response without messages has its trailers in its headers ("Trailers-Only").
        self.rpc_status(head.header("grpc-status"));
    }

    /// Creates the decoder of a response with this framing.
    fn decoder(&self, framing: Framing, status: u16, shared: &Shared) -> Box<ResponseDecoder> {
        let route = self.measured.route();
        let mut decoder = Box::new(ResponseDecoder::new(route, framing));
        if let Some(text) = shared.settings.text
            && status == 200
            && route.writes_text(framing)
        {
            decoder.keep_text(text.limits(), &shared.lasting.texts);
        }
        decoder
    }

    pub(super) fn response_trailers(&mut self, trailers: &Trailers<'_>) {
        self.rpc_status(trailers.field("grpc-status"));
    }

    fn rpc_status(&mut self, status: Option<&[u8]>) {
        if let Some(status) = status.and_then(GrpcStatus::of) {
            self.measured.rpc_status(status.as_http());
            self.call = Some(status).filter(|status| *status != GrpcStatus::OK);
        }
    }

    pub(super) fn response_body(&mut self, bytes: &[u8], at: Instant, shared: &Shared) {
        self.measured.response_body(bytes.len());
        self.decode(Some(bytes), at, shared);
    }

    /// Passes these bytes, or the end of the body, to the decoder.
    fn decode(&mut self, bytes: Option<&[u8]>, at: Instant, shared: &Shared) {
        let OpenRequest { measured, recogniser, request_model, response, bodies, streaming, .. } = self;
        let Some(decoder) = response else { return };
        let each = &mut Forward { measured, recogniser, request_model, streaming: *streaming, at, shared };
        match bytes {
            Some(bytes) if bodies.is_plain(Message::Response) => decoder.feed_to(bytes, each),
            Some(bytes) => {
                let shown = bodies.show(Message::Response, bytes, &mut |seen| match seen {
                    Event::Data(bytes) => decoder.feed_to(bytes, each),
                    Event::End => decoder.end_message_to(each),
                });
                if let Err(why) = shown {
                    self.unread(Message::Response, why, shared);
                }
            }
            // Do not report a body as truncated if its parsing was given up: the rest is unknown.
            None if bodies.is_unread(Message::Response) => {}
            None => decoder.finish_to(each),
        }
    }

    pub(super) fn blocked(&mut self, since: Instant, until: Instant) {
        self.measured.blocked(since, until);
    }

    pub(super) fn client_blocked(&mut self, at: Instant) {
        self.measured.client_blocked(at);
    }

    pub(super) fn resumed(&mut self, at: Instant) {
        self.measured.resumed(at);
    }

    pub(super) fn client_left(&mut self) {
        self.measured.client_left();
    }

    pub(super) fn end(self, ending: Ending, at: Instant, shared: &Shared) {
        drop(self.finish(ending, at, shared));
    }

    /// Ends the request and returns its decoder.
    fn finish(mut self, ending: Ending, at: Instant, shared: &Shared) -> Option<Box<ResponseDecoder>> {
        // Before the decoder runs: if it panics, the in-flight gauge would never be decremented.
        self.measured.leave(shared.sink.as_ref());
        if ending == Ending::Complete || (self.streaming && ending != Ending::Unobserved) {
            self.decode(None, at, shared);
        }
        if self.request.is_some() {
            let parameters = self.parameters();
            self.measured.parameters(parameters);
        }
        let mut facts = self.response.as_ref().map(|decoder| decoder.engine()).unwrap_or_default();
        if let (Some(asked), Some(id)) =
            (self.measured.request_id(), self.response.as_ref().and_then(|decoder| decoder.response_id()))
        {
            facts.insert(of_request(asked, id));
        }
        self.recogniser.body(facts);
        let engine = self.recogniser.name();
        let listener = self.measured.listener();
        if let Some(engine) = engine {
            shared.recognised(listener, engine);
        }
        if self.measured.route() == Route::Probe && !shared.settings.probes {
            self.abandon(shared);
            return None;
        }
        let closing = Closing {
            ending,
            labels: Labels {
                listener,
                route: self.measured.route(),
                engine: engine.or_else(|| shared.last_engine(listener)),
                request_model: self.request_model.take(),
                response_model: self.response.as_ref().and_then(|d| d.model()).map(Into::into),
                streaming: self.asked_stream,
            },
            response_id: self.response.as_ref().and_then(|d| d.response_id()).map(Into::into),
            error_type: self
                .response
                .as_ref()
                .and_then(|d| d.error_type())
                .or(self.call.map(GrpcStatus::name))
                .map(Into::into),
            profile: self.recogniser.profile(),
            text: self.response.as_mut().and_then(|d| d.take_text()),
        };
        self.measured.end(closing, at, &shared.thresholds, shared.sink.as_ref());
        self.response
    }

    /// The connection switches to another protocol after this handshake request. Returns the session if it can be
    /// parsed.
    pub(super) fn handshake(&mut self, connection: u64) -> Option<Session> {
        let route = self.measured.route();
        let session = self.measured.generates().then(|| {
            let next = self.measured.sequence() + 1;
            Session::new(connection, self.measured.listener(), next, route, self.recogniser)
                .of_tenant(self.measured.tenant())
        });
        self.measured.handshake();
        session
    }

    /// Starts a response of a session. `asked`: the client requested it, with the bytes read at `at`.
    pub(super) fn begin_in_session(session: &mut Session, asked: bool, at: Instant, shared: &Shared) -> OpenRequest {
        let Begin { connection, number, listener, route, recogniser } = session.begin();
        let mut request =
            OpenRequest { recogniser, streaming: true, ..OpenRequest::begin(connection, number, listener, at) };
        request.measured.request_head(route, None, None, shared.sink.as_ref());
        request.measured.targets(session.targets());
        if asked {
            request.measured.request_end(Parameters::default(), at);
            request.measured.announce(None, Some(true));
        }
        request.measured.in_session();
        request
    }

    /// Adds bytes of a session's messages.
    pub(super) fn message_bytes(&mut self, of: Message, bytes: usize) {
        match of {
            Message::Request => self.measured.request_body(bytes),
            Message::Response => self.measured.response_body(bytes),
        }
    }

    /// Processes a session message that `decoder` parsed.
    pub(super) fn message(&mut self, event: &StreamEvent, decoder: &ResponseDecoder, at: Instant, shared: &Shared) {
        let (listener, route) = (self.measured.listener(), self.measured.route());
        self.recogniser.body(decoder.engine());
        let (engine, profile) = (self.recogniser.name(), self.recogniser.profile());
        self.measured.event(event, at, profile, &shared.thresholds, shared.sink.as_ref(), || Labels {
            listener,
            route,
            engine: engine.or_else(|| shared.last_engine(listener)),
            request_model: None,
            response_model: decoder.model().map(Into::into),
            streaming: Some(true),
        });
    }

    /// The rest of the session's messages cannot be parsed.
    pub(super) fn messages_unread(&mut self) {
        self.measured.response_unread();
    }

    /// The server ended the session with a code that reports a failure.
    pub(super) fn fail(&mut self) {
        self.measured.fail();
    }

    /// Ends a response of a session and returns `decoder`.
    pub(super) fn end_in_session(
        mut self,
        decoder: Option<Box<ResponseDecoder>>,
        ending: Ending,
        at: Instant,
        shared: &Shared,
    ) -> Option<Box<ResponseDecoder>> {
        self.response = decoder;
        self.finish(ending, at, shared)
    }

    /// True if one of its bodies is decoded.
    pub(super) fn decodes(&self) -> bool {
        self.bodies.decodes()
    }

    /// Records the request as unobserved from `at` on, or from the latest recorded moment.
    pub(super) fn lose(self, at: Option<Instant>, shared: &Shared) {
        let at = at.unwrap_or_else(|| self.measured.latest());
        self.end(Ending::Unobserved, at, shared);
    }

    /// Drops the request without a record.
    fn abandon(self, shared: &Shared) {
        self.measured.abandon(shared.sink.as_ref());
    }
}

/// Passes decoded events to `measure`, all with the same time.
struct Forward<'a> {
    measured: &'a mut Measured,
    recogniser: &'a mut Recogniser,
    request_model: &'a Option<Box<str>>,
    streaming: bool,
    at: Instant,
    shared: &'a Shared,
}

impl EventSink for Forward<'_> {
    fn event(&mut self, event: &StreamEvent, info: &ResponseInfo<'_>) {
        if !self.streaming {
            self.measured.whole_response(event, self.at);
            return;
        }
        let shared = self.shared;
        let listener = self.measured.listener();
        let route = self.measured.route();
        self.recogniser.body(info.engine());
        let (recogniser, request_model) = (&*self.recogniser, self.request_model);
        let profile = recogniser.profile();
        self.measured.event(event, self.at, profile, &shared.thresholds, shared.sink.as_ref(), || Labels {
            listener,
            route,
            engine: recogniser.name().or_else(|| shared.last_engine(listener)),
            request_model: request_model.clone(),
            response_model: info.model().map(Into::into),
            streaming: Some(true),
        });
    }
}

/// Marks of a response whose id is derived from the request id: vLLM prefixes it with the kind of the response, and
/// appends the prompt's index for completions.
fn of_request(asked: &str, id: &str) -> EngineFacts {
    const KINDS: [&str; 7] = ["chatcmpl-", "cmpl-", "generate-tokens-", "embd-", "pooling-", "score-", "classify-"];
    let called = KINDS.iter().find_map(|kind| id.strip_prefix(kind)).and_then(|rest| rest.strip_prefix(asked));
    // A short id may be a prefix of a random one.
    let is_same = called.is_some_and(|rest| rest.is_empty() || rest == "-0") && asked.len() >= 4;
    let is_uuid = asked.len() == 36 && asked.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    match (is_same, is_uuid) {
        (false, _) => EngineFacts::NONE,
        (true, true) => EngineFacts::ID_OF_REQUEST,
        (true, false) => EngineFacts::ID_OF_REQUEST.and(EngineFacts::ID_NO_UUID),
    }
}

/// Reads an id from a header value, truncated to a length that a span may carry.
pub(super) fn id(value: Option<&[u8]>) -> Option<Box<str>> {
    let text = std::str::from_utf8(value?).ok()?.trim();
    let end = (0..=text.len().min(ID_BYTES)).rev().find(|i| text.is_char_boundary(*i))?;
    text.get(..end).filter(|t| !t.is_empty()).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_id_derived_from_request_id_is_recognised() {
        let uuid = "0b9a2f6e-1d5c-4d0e-9b55-6c7a1f1f7a11";
        let both = EngineFacts::ID_OF_REQUEST.and(EngineFacts::ID_NO_UUID);
        for (asked, id, facts) in [
            ("my-req-1", "chatcmpl-my-req-1", both),
            ("my-req-1", "cmpl-my-req-1-0", both),
            (uuid, &format!("embd-{uuid}"), EngineFacts::ID_OF_REQUEST),
            ("my-req-1", "chatcmpl-my-req-11", EngineFacts::NONE),
            ("my-req-1", "my-req-1", EngineFacts::NONE),
            ("520", "chatcmpl-520", EngineFacts::NONE),
            ("", "chatcmpl-", EngineFacts::NONE),
        ] {
            assert_eq!(of_request(asked, id), facts, "{asked} {id}");
        }
    }
}
