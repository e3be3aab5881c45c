//! One open request: passes its bodies to the decoders, and the decoded events to `measure`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::measure::{
    Closing, Ending, Labels, Message, Outcome, Parameters, Record, Request as Measured, RequestValues, Server,
    TraceParent, Unread,
};
use crate::observer::Shared;
use crate::observer::body::Bodies;
use crate::observer::engine::Recogniser;
use crate::observer::headers::{TgiHeaders, grpc_status, id};
use crate::observer::session::Session;
use tokometer_decode::{
    Engine, EngineFacts, Framing, RequestDecoder, ResponseDecoder, ResponseInfo, Route, StreamEvent,
};
use tokometer_wire::budget::Account;
use tokometer_wire::grpc::Event;
use tokometer_wire::{RequestHead, ResponseHead, Trailers};

/// A request, its decoders while needed, and the decoded values.
#[derive(Debug)]
pub(super) struct OpenRequest {
    /// The connection's observer also sets values here directly (network, blocked times).
    pub(super) measured: Measured,
    recogniser: Recogniser,
    request: Option<Box<RequestDecoder>>,
    response: Option<Box<ResponseDecoder>>,
    bodies: Bodies,
    /// Status name of a failed gRPC call.
    rpc_error: Option<&'static str>,
}

impl OpenRequest {
    /// Starts a request. Boxed, because requests are large and are moved.
    pub(super) fn begin(connection: u64, sequence: u64, listener: usize, at: Instant) -> Box<OpenRequest> {
        Box::new(OpenRequest {
            measured: Measured::begin(connection, sequence, listener, at),
            recogniser: Recogniser::default(),
            request: None,
            response: None,
            bodies: Bodies::default(),
            rpc_error: None,
        })
    }

    /// Records a request that is not observed, from its headers if they are known. Clients can send many such requests, so
    /// this must be cheap and allocate nothing except the record.
    pub(super) fn record_skipped(
        connection: u64,
        sequence: u64,
        listener: usize,
        head: Option<&RequestHead<'_>>,
        at: Instant,
        shared: &Shared,
    ) {
        let route = head.map_or(Route::Other, |head| shared.settings.route(head.method, head.target));
        if route == Route::Probe && !shared.settings.probes {
            return;
        }
        let labels = Labels { listener, route, engine: shared.last_engine(listener), ..Labels::default() };
        shared.sink.record(&Arc::new(Record {
            connection,
            sequence,
            request: RequestValues {
                id: head.and_then(|head| id(head.header("x-request-id"))),
                trace: head.and_then(trace),
                targets: head.and_then(|head| shared.settings.targets.of(head)),
                choices: 1,
                ..RequestValues::default()
            },
            ..Record::new(labels, at, Outcome::Unobserved, Duration::ZERO)
        }));
    }

    /// Prefetches the memory that the next event needs.
    pub(super) fn warm(&self) {
        self.measured.warm();
        if let Some(response) = &self.response {
            response.warm();
        }
        black_box(self.recogniser);
    }

    /// Sequence number on the connection.
    pub(super) fn number(&self) -> u64 {
        self.measured.sequence()
    }

    pub(super) fn request_head(&mut self, head: &RequestHead<'_>, account: &Account, shared: &Shared) {
        let route = shared.settings.route(head.method, head.target);
        let route = if route == Route::Other { websocket_route(head, shared) } else { route };
        let engine = shared.last_engine(self.measured.listener()).and_then(Engine::of_name);
        self.recogniser = Recogniser::new(route, shared.settings.engine.0, engine);
        let targets = shared.settings.targets.of(head);
        self.measured.request_head(route, trace(head), id(head.header("x-request-id")), targets, shared.sink.as_ref());
        if !route.is_read() && !matches!(route, Route::Invocations | Route::Abort) {
            return;
        }
        if route.is_rpc() {
            self.bodies.begin_messages(Message::Request, head.header("grpc-encoding"), account, shared);
            self.request = Some(Box::new(RequestDecoder::new(route).of_engine(engine)));
            return;
        }
        // SGLang 0.5 has its own header for compressed requests (`SGLANG_ENABLE_REQUEST_DECOMPRESSION`).
        let content = if head.header("content-encoding").is_some() { "content-encoding" } else { "x-body-compressed" };
        let codings = [content, "transfer-encoding"];
        let codings = codings.into_iter().flat_map(|name| head.values(name));
        match self.bodies.begin(Message::Request, codings, account, shared) {
            Ok(()) => {
                let decoder = RequestDecoder::of_content_type(route, head.header("content-type")).of_engine(engine);
                self.request = Some(Box::new(decoder.of_target(head.target)));
            }
            Err(why) => self.unread(Message::Request, why, shared),
        }
    }

    pub(super) fn request_body(&mut self, bytes: &[u8], shared: &Shared) {
        self.measured.request_body(bytes.len());
        if let Some(decoder) = &mut self.request
            && let Err(why) = self.bodies.feed(Message::Request, bytes, &mut |seen| match seen {
                Event::Data(bytes) => decoder.feed(bytes),
                Event::End => decoder.end_message(),
            })
        {
            self.unread(Message::Request, why, shared);
        }
    }

    /// Records that a body could not be parsed to its end.
    fn unread(&mut self, of: Message, why: Unread, shared: &Shared) {
        if of == Message::Response {
            self.measured.response_unread();
        }
        shared.sink.unread(self.measured.listener(), of, why);
    }

    pub(super) fn request_end(&mut self, at: Instant, shared: &Shared) {
        self.determine_api(shared);
        if self.bodies.is_waiting(Message::Request) {
            self.unread(Message::Request, Unread::Ratio, shared);
        }
        if let Some(aborted) = self.request.as_ref().and_then(|decoder| decoder.aborted())
            && let Some(aborts) = shared.lasting.aborts.get(self.measured.listener())
        {
            aborts.add(self.id(), aborted, at);
        }
        let parameters = self.parameters();
        self.measured.request_end(parameters, at, shared.sink.as_ref());
    }

    /// Connection and sequence number.
    fn id(&self) -> (u64, u64) {
        (self.measured.connection(), self.measured.sequence())
    }

    /// On a path shared by several APIs, determines the API from the body received so far. Also recognises prefill
    /// requests (another engine decodes). The recogniser keeps the original route of a prefill request, because the
    /// response has the marks of that route.
    fn determine_api(&mut self, shared: &Shared) {
        let Some(facts) = self.request.as_ref().map(|decoder| decoder.facts()) else { return };
        let route = self.measured.route();
        if let Some(api) = facts.api.filter(|_| route == Route::Invocations) {
            self.measured.request_is(api, shared.sink.as_ref());
            self.recogniser.request_is(api);
        } else if facts.prefill_leg && matches!(route, Route::Chat | Route::Completions) && self.response.is_none() {
            self.measured.request_is(Route::Prefill, shared.sink.as_ref());
        }
    }

    /// Returns the request parameters received so far and drops the decoder.
    fn parameters(&mut self) -> Parameters {
        let Some(decoder) = self.request.take() else { return Parameters::default() };
        let facts = decoder.facts();
        Parameters {
            model: facts.model.map(Into::into),
            // Servers may read more of an invalid body, and find another value there.
            stream: facts.stream.filter(|_| facts.complete),
            n: facts.n,
            prompts: facts.prompts,
            max_tokens: facts.max_tokens,
            limit: decoder.output_limit(),
            echo: facts.echo.unwrap_or(false),
            context_only: facts.context_only,
        }
    }

    pub(super) fn response_head(&mut self, head: &ResponseHead<'_>, at: Instant, account: &Account, shared: &Shared) {
        self.determine_api(shared);
        self.recogniser.head(head);
        let framing = head.header("content-type").and_then(Framing::of_content_type);
        let route = self.measured.route();
        if route == Route::Abort
            && !(200..300).contains(&head.status)
            && let Some(aborts) = shared.lasting.aborts.get(self.measured.listener())
        {
            aborts.remove(self.id());
        }
        let streaming = match framing {
            Some(Framing::Grpc) => route.generates() && route.streams_rpc(),
            framing => framing.is_some_and(Framing::is_stream),
        };
        if framing == Some(Framing::Grpc) && route.is_rpc() {
            self.bodies.begin_messages(Message::Response, head.header("grpc-encoding"), account, shared);
            self.response = Some(Box::new(ResponseDecoder::new(route, Framing::Grpc)));
        } else if route.is_read() && head.status != 204 && framing != Some(Framing::Grpc) {
            let codings = ["content-encoding", "transfer-encoding"];
            let codings = codings.into_iter().flat_map(|name| head.values(name));
            match self.bodies.begin(Message::Response, codings, account, shared) {
                Ok(()) => self.response = Some(self.decoder(framing, head.status, shared)),
                Err(why) => self.unread(Message::Response, why, shared),
            }
        }
        self.measured.response_head(head.status, streaming, id(head.header("x-request-id")), at, shared.sink.as_ref());
        if !streaming && let Some(TgiHeaders { queue, counter }) = TgiHeaders::parse(|name| head.header(name)) {
            self.measured.header_values(queue, counter);
        }
        // A gRPC response without messages has its trailers in the headers ("Trailers-Only").
        self.rpc_status(head.header("grpc-status"));
    }

    /// Creates the decoder of a response with this declared framing.
    fn decoder(&self, framing: Option<Framing>, status: u16, shared: &Shared) -> Box<ResponseDecoder> {
        let route = self.measured.route();
        let mut decoder = Box::new(ResponseDecoder::of_declared(route, framing));
        if let Some(text) = shared.settings.text
            && status == 200
            && framing.is_some_and(|framing| route.writes_text(framing))
        {
            decoder.keep_text(text, &shared.lasting.texts);
        }
        decoder
    }

    pub(super) fn response_trailers(&mut self, trailers: &Trailers<'_>) {
        self.rpc_status(trailers.field("grpc-status"));
    }

    fn rpc_status(&mut self, status: Option<&[u8]>) {
        if let Some((name, http_status)) = status.and_then(grpc_status) {
            self.measured.rpc_status(http_status);
            self.rpc_error = Some(name).filter(|_| http_status != 200);
        }
    }

    pub(super) fn response_body(&mut self, bytes: &[u8], at: Instant, shared: &Shared) {
        self.measured.response_body(bytes.len());
        self.decode(Some(bytes), at, shared);
    }

    /// Passes these bytes, or the end of the body, to the decoder.
    fn decode(&mut self, bytes: Option<&[u8]>, at: Instant, shared: &Shared) {
        let OpenRequest { measured, recogniser, response, bodies, .. } = self;
        let Some(decoder) = response else { return };
        // Bytes that waited are decoded now: the delay is not the server's.
        if let Some(since) = bodies.note_waiting(at) {
            measured.late(at.saturating_duration_since(since));
        }
        let each = &mut |event: &StreamEvent, info: &ResponseInfo<'_>| {
            if let Some(streams) = info.streams()
                && streams != measured.is_streaming()
                && measured.generates()
            {
                measured.response_streams(streams, shared.sink.as_ref());
            }
            if measured.is_streaming() {
                stream_event(measured, recogniser, event, info, at, shared);
            } else {
                measured.whole_response(event, at);
            }
        };
        match bytes {
            Some(bytes) if bodies.is_plain(Message::Response) => decoder.feed_to(bytes, each),
            Some(bytes) => {
                let result = bodies.feed(Message::Response, bytes, &mut |seen| match seen {
                    Event::Data(bytes) => decoder.feed_to(bytes, each),
                    Event::End => decoder.end_message_to(each),
                });
                bodies.note_waiting(at);
                if let Err(why) = result {
                    self.unread(Message::Response, why, shared);
                }
            }
            // If the body was not parsed to its end, its decoder must not report it as truncated.
            None if bodies.is_unread(Message::Response) => {}
            None if bodies.is_waiting(Message::Response) => self.unread(Message::Response, Unread::Ratio, shared),
            None => decoder.finish_to(each),
        }
    }

    pub(super) fn end(self: Box<Self>, ending: Ending, at: Instant, shared: &Shared) {
        drop(self.finish(ending, at, shared));
    }

    /// Ends the request and returns its response decoder.
    fn finish(mut self: Box<Self>, ending: Ending, at: Instant, shared: &Shared) -> Option<Box<ResponseDecoder>> {
        // Call this before the decoder runs: if the decoder panicked first, the in-flight gauge would never be
        // decremented.
        self.measured.leave(shared.sink.as_ref());
        if ending == Ending::Complete || (self.measured.is_streaming() && ending != Ending::Unobserved) {
            self.decode(None, at, shared);
        }
        if self.request.is_some() {
            let parameters = self.parameters();
            self.measured.parameters(parameters);
        }
        let response = self.response.as_deref();
        let mut facts = response.map(ResponseDecoder::engine).unwrap_or_default();
        if let (Some(asked), Some(id)) = (self.measured.request_id(), response.and_then(ResponseDecoder::response_id)) {
            facts.insert(marks_of_request_id(asked, id));
        }
        self.recogniser.body(facts);
        if self.measured.is_context_only()
            && self.measured.generates()
            && self.recogniser.engine() == Some(Engine::TensorrtLlm)
        {
            self.measured.was_prefill();
        }
        if let Some(engine) = self.recogniser.engine() {
            shared.recognised(self.measured.listener(), engine);
        }
        if self.measured.route() == Route::Probe && !shared.settings.probes {
            self.measured.abandon(shared.sink.as_ref());
            return None;
        }
        let error_type = response.and_then(ResponseDecoder::error_type).or(self.rpc_error);
        let closing = Closing {
            ending,
            server: server(
                &self.recogniser,
                self.measured.listener(),
                response.and_then(ResponseDecoder::model),
                shared,
            ),
            response_id: response.and_then(ResponseDecoder::response_id).map(Into::into),
            error_type: error_type.map(Into::into),
            habits: self.recogniser.habits(),
            aborted: self.measured.is_aborted()
                && shared.lasting.aborts.get(self.measured.listener()).is_some_and(|aborts| {
                    aborts.cover(response.and_then(ResponseDecoder::response_id), self.measured.started(), at)
                }),
            known: response.is_some_and(ResponseDecoder::is_known),
            text: self.response.as_mut().and_then(|decoder| decoder.take_text()),
        };
        self.measured.end(closing, at, &shared.thresholds, shared.sink.as_ref());
        self.response
    }

    /// Marks the request as a handshake, after which the connection switches to another protocol. Returns a session if
    /// that protocol can be parsed.
    pub(super) fn handshake(&mut self) -> Option<Session> {
        let measured = &mut self.measured;
        let session = measured.generates().then(|| Session::new(measured, self.recogniser));
        measured.handshake();
        session
    }

    /// Starts a response in a session. `asked`: when the client requested it.
    pub(super) fn begin_in_session(
        session: &mut Session,
        asked: Option<Instant>,
        at: Instant,
        shared: &Shared,
    ) -> Box<OpenRequest> {
        let Session { connection, listener, next, route, recogniser, .. } = *session;
        session.next += 1;
        let mut request = OpenRequest::begin(connection, next, listener, at);
        request.recogniser = recogniser;
        request.measured.begin_in_session(route, session.targets.clone(), asked, shared.sink.as_ref());
        request
    }

    /// Processes a session message that was parsed by `decoder`.
    pub(super) fn message(&mut self, event: &StreamEvent, decoder: &ResponseDecoder, at: Instant, shared: &Shared) {
        stream_event(&mut self.measured, &mut self.recogniser, event, &decoder.info(), at, shared);
    }

    /// Ends a response in a session, and prepares the session for the next response.
    pub(super) fn end_in_session(
        mut self: Box<Self>,
        session: &mut Session,
        ending: Ending,
        at: Instant,
        shared: &Shared,
    ) {
        self.response = session.server.take();
        session.server = self.finish(ending, at, shared);
        if let Some(server) = &mut session.server {
            server.begin_response();
        }
    }

    /// True if this body is decoded.
    pub(super) fn decodes(&mut self, of: Message) -> bool {
        self.bodies.decodes(of)
    }

    /// Records the request as unobserved from `at` on.
    pub(super) fn lose(self: Box<Self>, at: Instant, shared: &Shared) {
        self.end(Ending::Unobserved, at, shared);
    }
}

/// Parses the caller's `traceparent`.
fn trace(head: &RequestHead<'_>) -> Option<TraceParent> {
    head.header("traceparent").and_then(TraceParent::parse)
}

/// The route of a WebSocket handshake on the path of the Responses API (OpenAI): its messages are the events of this API.
fn websocket_route(head: &RequestHead<'_>, shared: &Shared) -> Route {
    let is_websocket = head.method == "GET"
        && head.header("upgrade").is_some_and(|to| to.trim_ascii().eq_ignore_ascii_case(b"websocket"));
    let route = if is_websocket { shared.settings.route("POST", head.target) } else { Route::Other };
    if route == Route::Responses { route } else { Route::Other }
}

/// Passes an event of a stream to `measure`.
fn stream_event(
    measured: &mut Measured,
    recogniser: &mut Recogniser,
    event: &StreamEvent,
    info: &ResponseInfo<'_>,
    at: Instant,
    shared: &Shared,
) {
    recogniser.body(info.engine());
    let (listener, recogniser) = (measured.listener(), &*recogniser);
    measured.event(event, at, recogniser.habits(), &shared.thresholds, shared.sink.as_ref(), || {
        server(recogniser, listener, info.model(), shared)
    });
}

/// The server of a response. If the response does not identify the engine, the engine that was last recognised behind
/// the listener when the request began is used, or else, until now.
fn server(recogniser: &Recogniser, listener: usize, model: Option<&str>, shared: &Shared) -> Server {
    Server {
        engine: recogniser.likely_engine().map(Engine::as_str).or_else(|| shared.last_engine(listener)),
        model: model.map(Into::into),
    }
}

/// Engine marks of a response id that is derived from the request id `asked`. vLLM prefixes the request id with the
/// response type, and appends the prompt index for completions.
fn marks_of_request_id(asked: &str, id: &str) -> EngineFacts {
    const KINDS: [&str; 7] = ["chatcmpl-", "cmpl-", "generate-tokens-", "embd-", "pooling-", "score-", "classify-"];
    let called = KINDS.iter().find_map(|kind| id.strip_prefix(kind)).and_then(|rest| rest.strip_prefix(asked));
    // A short request id may match a random id by chance.
    let is_same = called.is_some_and(|rest| rest.is_empty() || rest == "-0") && asked.len() >= 4;
    let is_uuid = asked.len() == 36 && asked.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    match (is_same, is_uuid) {
        (false, _) => EngineFacts::NONE,
        (true, true) => EngineFacts::ID_OF_REQUEST,
        (true, false) => EngineFacts::ID_OF_REQUEST.and(EngineFacts::ID_NO_UUID),
    }
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
            assert_eq!(marks_of_request_id(asked, id), facts, "{asked} {id}");
        }
    }
}
