//! The HTTP proxy of one listener on one thread, as pingora filters.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, header};
use pingora::apps::{HttpServerApp, HttpServerOptions, ServerApp};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::proxy::{FailToProxy, HttpProxy, ProxyHttp, ProxyWarnLogContext, Session, http_proxy};
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType, Result};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::body::strip_usage::StripUsage;
use crate::body::{Body, RATIO};
use crate::client::{Client, Connection, SMALL_HEADERS, connection};
use crate::deferred::DeferredInput;
use crate::framing::{ambiguous, content_length, size};
use crate::message::Messages;
use crate::request::{COPY, REQUEST, RESPONSE, RequestBody, RequestState};
use crate::settings::Settings;
use crate::trace;
use crate::upstream::{Peers, UNREACHABLE, UPSTREAM, cause, ended_by, logged, status, unreached};
use tokometer_observe::input::{Close, Direction, Side};
use tokometer_proxy::listen::{self, Handler, Server};
use tokometer_proxy::relay::{Guard, Outcome, Phase, Relay, Rewrite, Stream, Unreachable, Unreached, error_body};
use tokometer_wire::budget::{Account, Budget, Exhausted};

/// Size of pingora's buffer for resending a request's body. If the whole body was read before the headers were sent,
/// pingora sends only the contents of this buffer.
const RETRY_BUFFER_BYTES: usize = 64 * 1024;

/// After this many pieces of a request's body, the thread serves its other connections.
const PIECES_AT_ONCE: u32 = 16;

/// Serves connections. There is one per listener and thread, so that a pooled connection stays on its thread.
pub(crate) struct Proxy {
    http: Arc<HttpProxy<Filters>>,
    relay: Arc<Relay>,
    settings: Arc<Settings>,
    deferred: Arc<DeferredInput>,
    drains: watch::Sender<bool>,
}

/// See [`ProxyHttp`].
struct Filters {
    settings: Arc<Settings>,
    relay: Arc<Relay>,
    listener: usize,
    peers: Peers,
    deferred: Arc<DeferredInput>,
    budget: Budget,
}

/// Passes all deferred items when a connection has ended during a drain, so that the final export contains its requests.
struct FlushAtDrain<'a>(&'a Proxy);

impl Drop for FlushAtDrain<'_> {
    fn drop(&mut self) {
        if self.0.relay.drain().phase() != Phase::Running {
            self.0.deferred.flush();
        }
    }
}

impl Proxy {
    pub(crate) fn new(settings: &Arc<Settings>, relay: &Arc<Relay>, listener: usize, server: Arc<dyn Server>) -> Proxy {
        let conf = ServerConf {
            // Number of attempts, including the first.
            max_retries: settings.upstream_retries as usize + 1,
            threads: 1,
            ..ServerConf::default()
        };
        let deferred = Arc::default();
        let filters = Filters {
            settings: Arc::clone(settings),
            relay: Arc::clone(relay),
            listener,
            peers: Peers::new(server, Arc::clone(relay)),
            deferred: Arc::clone(&deferred),
            budget: relay.budget(),
        };
        let mut http = http_proxy(&Arc::new(conf), filters);
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        options.h2_idle_timeout = Some(settings.client_idle_timeout);
        http.server_options = Some(options);
        let (relay, settings) = (Arc::clone(relay), Arc::clone(settings));
        Proxy { http: Arc::new(http), relay, settings, deferred, drains: watch::Sender::new(false) }
    }

    /// Waits for a client's first bytes; pingora would wait without a limit.
    async fn begin_connection(
        &self,
        stream: Stream,
        connection: Connection,
        drains: &mut watch::Receiver<bool>,
    ) -> Option<pingora::protocols::Stream> {
        let mut client = Client::new(stream, Arc::clone(&self.relay), Arc::clone(&self.deferred), connection);
        let begun = tokio::select! {
            biased;
            begun = timeout(self.settings.client_idle_timeout, client.begins()) => begun,
            _ = drains.wait_for(|drains| *drains) => return None,
        };
        matches!(begun, Ok(Ok(true))).then(|| Box::new(client) as pingora::protocols::Stream)
    }
}

#[async_trait]
impl Handler for Proxy {
    async fn serve(self: Arc<Self>, stream: Stream, client: listen::Client) {
        let connection = Connection::new(client);
        let _flush = FlushAtDrain(&self);
        let mut drains = self.drains.subscribe();
        // Boxed to keep the future, which lives as long as the connection, small.
        let mut next = Box::pin(self.begin_connection(stream, connection, &mut drains)).await;
        while let Some(stream) = next {
            next = ServerApp::process_new(&self.http, stream, &drains).await;
        }
    }

    async fn drain(&self) {
        self.drains.send_replace(true);
        self.http.http_cleanup().await;
    }
}

impl Filters {
    fn count(&self, rewrite: Rewrite, outcome: Outcome) {
        self.relay.stats_of(self.listener).rewrites.add(rewrite, outcome);
    }

    /// Reads the whole body if its length is known, because the headers must contain the length of the changed body.
    async fn read_body(&self, session: &mut Session, ctx: &mut RequestState) -> Result<()> {
        let length = content_length(&session.req_header().headers).filter(|length| *length > 0);
        let Some(length) = length else { return Ok(()) };
        let mut body = self.body(session, ctx);
        let mut fits = body.accepts(length);
        let expects = session.req_header().headers.contains_key(header::EXPECT);
        // pingora later sends the body only if its retry buffer contains bytes and did not overflow, so only the last
        // reads are buffered. An earlier read cannot be the last: it is smaller than the remaining bytes.
        while fits && !session.is_body_done() {
            let rest = length.saturating_sub(body.len());
            if rest <= RETRY_BUFFER_BYTES && ctx.shares[COPY].is_none() {
                // With buffered bytes, pingora would send an unmodified body twice: from here on, there must be room.
                let Ok(copy) = body.reserve_twice(rest) else {
                    fits = false;
                    break;
                };
                ctx.shares[COPY] = Some(copy);
                session.enable_retry_buffering();
            }
            if expects && !std::mem::replace(&mut ctx.is_begun, true) {
                session.downstream_session.write_continue_response().await?;
            }
            // pingora has no read timeout for HTTP/2.
            let piece = timeout(self.settings.client_read_timeout, session.read_request_body()).await;
            let Ok(piece) = piece else {
                return Err(Error::new(ErrorType::ReadTimedout).into_down());
            };
            let Some(piece) = piece.map_err(|error| error.into_down())? else { break };
            fits = body.add(&piece);
            ctx.messages(|messages| messages.body(Direction::Request, &piece, false));
        }
        if !fits {
            self.count(Rewrite::IncludeUsage, Outcome::TooLarge);
            ctx.is_begun |= body.len() > 0;
            ctx.body = RequestBody::TooLarge(body);
            return Ok(());
        }
        ctx.messages(|messages| messages.body(Direction::Request, &[], true));
        if session.get_retry_buffer().is_none() {
            return Error::e_explain(ErrorType::HTTPStatus(400), "the body is shorter than announced");
        }
        let coded = body.is_coded();
        let (bytes, outcome) = body.edited().await;
        self.count(Rewrite::IncludeUsage, outcome);
        ctx.injected = outcome == Outcome::Changed;
        ctx.body = RequestBody::Read { bytes, decoded: coded && ctx.injected };
        Ok(())
    }

    /// Collects the body of this request.
    fn body(&self, session: &Session, ctx: &mut RequestState) -> Body {
        let account = self.account(ctx);
        Body::new(&session.req_header().headers, self.settings.max_body.0 as usize, account)
    }

    fn account(&self, ctx: &mut RequestState) -> Account {
        let peer = ctx.connection.as_ref().and_then(|connection| connection.peer);
        let new = || self.budget.account(peer.map(|peer| peer.ip()), RATIO);
        ctx.account.get_or_insert_with(new).clone()
    }

    /// Charges large headers to the budget.
    fn charge(&self, headers: &HeaderMap, part: usize, ctx: &mut RequestState) -> Result<(), Exhausted> {
        let size = size(headers);
        if size <= SMALL_HEADERS {
            return Ok(());
        }
        let mut share = self.account(ctx).share();
        share.hold(2 * size)?;
        ctx.shares[part] = Some(share);
        Ok(())
    }

    fn begin(&self, session: &mut Session, ctx: &mut RequestState) {
        let Some(connection) = ctx.connection.clone() else { return };
        let guard = Guard::of_request(&self.relay, self.listener, Arc::clone(&connection.upstream), connection.peer);
        let has_body = !session.is_body_empty();
        let head = session.req_header();
        let mut added = Vec::new();
        if self.settings.request_id {
            let has_id = head.headers.contains_key("x-request-id");
            self.count(Rewrite::RequestId, if has_id { Outcome::Asked } else { Outcome::Changed });
            ctx.request_id = (!has_id).then(trace::request_id);
            added.extend(ctx.request_id.as_deref().map(|id| ("x-request-id", id)));
        }
        let mut messages = Messages::new(&self.deferred, guard, connection.requests.begin());
        messages.request_head(head, &added, has_body);
        if self.settings.traceparent {
            let (context, continued) = trace::context(head);
            self.count(Rewrite::Traceparent, if continued { Outcome::Asked } else { Outcome::Changed });
            messages.sent_trace(context);
            ctx.trace = Some((context, !continued));
        }
        if !has_body {
            messages.body(Direction::Request, &[], true);
        }
        let method = head.method.as_str();
        let target = String::from_utf8_lossy(head.raw_path());
        if self.settings.include_usage && has_body && self.relay.reports_usage_on_request(method, &target) {
            ctx.body = RequestBody::Candidate;
        }
        if session.as_http1().is_some() {
            connection.begin(messages.id());
        }
        ctx.messages = Some(messages);
    }
}

fn is_grpc(head: &RequestHeader) -> bool {
    head.headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

#[async_trait]
impl ProxyHttp for Filters {
    /// Boxed, because pingora's futures contain it several times.
    type CTX = Box<RequestState>;

    fn new_ctx(&self) -> Box<RequestState> {
        Box::default()
    }

    /// Adds none: pingora's default is a disabled compression module, which is called for every event.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, ctx: &mut Box<RequestState>) -> Result<()> {
        let is_http1 = session.as_http1().is_some();
        if is_http1 && let Some(why) = ambiguous(session.req_header(), &session.to_h1_raw()) {
            self.count(Rewrite::Framing, Outcome::Rejected);
            return Error::e_explain(ErrorType::HTTPStatus(400), why);
        }
        session.set_read_timeout(Some(self.settings.client_read_timeout));
        if session.get_keepalive().is_some() {
            session.set_keepalive(Some(self.settings.client_idle_timeout.as_secs()));
        }
        ctx.connection = connection(session.digest());
        if !is_http1 && self.charge(&session.req_header().headers, REQUEST, ctx).is_err() {
            return Error::e_explain(ErrorType::HTTPStatus(431), "no memory is free for large request headers");
        }
        self.begin(session, ctx);
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Box<RequestState>) -> Result<bool> {
        if matches!(ctx.body, RequestBody::Candidate) {
            self.read_body(session, ctx).await?;
            // The length is unknown, so the headers are sent before the body is changed. A compressed body is not changed,
            // because it would be sent uncompressed and the headers announce the coding.
            if matches!(ctx.body, RequestBody::Candidate) && self.body(session, ctx).is_coded() {
                self.count(Rewrite::IncludeUsage, Outcome::Encoded);
                ctx.body = RequestBody::Unchanged;
            }
        }
        Ok(false)
    }

    async fn upstream_peer(&self, session: &mut Session, ctx: &mut Box<RequestState>) -> Result<Box<HttpPeer>> {
        let Some(connection) = ctx.connection.clone() else {
            return Error::e_explain(ErrorType::InternalError, "not a connection of this listener");
        };
        // A new attempt begins.
        (ctx.connected, ctx.passed) = (false, 0);
        if let RequestBody::Candidate | RequestBody::Collected(_) = ctx.body {
            (ctx.body, ctx.injected) = (RequestBody::Collected(self.body(session, ctx)), false);
        }
        let http2 = session.as_http2().is_some() && is_grpc(session.req_header());
        Ok(self.peers.peer(&connection, http2, &self.settings))
    }

    async fn upstream_request_filter(
        &self,
        _: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Box<RequestState>,
    ) -> Result<()> {
        if let Some((context, is_new)) = ctx.trace {
            request.insert_header("traceparent", trace::header(context))?;
            if is_new {
                request.remove_header("tracestate");
            }
        }
        if let Some(id) = &ctx.request_id {
            request.insert_header("x-request-id", id.as_str())?;
        }
        if let RequestBody::Read { bytes, decoded } = &ctx.body {
            request.insert_header(header::CONTENT_LENGTH, bytes.len())?;
            if *decoded {
                request.remove_header(&header::CONTENT_ENCODING);
            }
        }
        if ctx.is_begun || matches!(ctx.body, RequestBody::Read { .. }) {
            request.remove_header(&header::EXPECT);
        }
        // Counts cannot be removed from a compressed response.
        if ctx.injected || matches!(ctx.body, RequestBody::Collected(_)) {
            request.remove_header(&header::ACCEPT_ENCODING);
        }
        Ok(())
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        ctx: &mut Box<RequestState>,
    ) -> Result<()> {
        if let RequestBody::Read { bytes, .. } = &mut ctx.body {
            // `read_body` read the whole body and passed it to the observer. A retry sends the same body again.
            *body = end.then(|| bytes.clone());
            if self.settings.upstream_retries == 0 {
                *bytes = Bytes::new();
            }
            return Ok(());
        }
        ctx.pieces = ctx.pieces.wrapping_add(1);
        if ctx.pieces.is_multiple_of(PIECES_AT_ONCE) {
            // A read may contain thousands of small chunks, which pingora passes here without yielding.
            tokio::task::yield_now().await;
        }
        let piece = body.clone().unwrap_or_default();
        let end_of_message = end && !session.was_upgraded();
        let new = piece.slice((ctx.shown - ctx.passed).min(piece.len())..);
        ctx.passed += piece.len();
        ctx.shown = ctx.shown.max(ctx.passed);
        ctx.messages(|messages| messages.body(Direction::Request, &new, end_of_message));
        let collected = match &mut ctx.body {
            RequestBody::Collected(collected) => collected,
            RequestBody::TooLarge(begun) if begun.len() > 0 => {
                begun.add(&piece);
                *body = Some(begun.take());
                ctx.body = RequestBody::Unchanged;
                return Ok(());
            }
            _ => {
                if end && piece.is_empty() {
                    *body = None;
                }
                return Ok(());
            }
        };
        let outcome = if !collected.add(&piece) {
            *body = Some(collected.take());
            Outcome::TooLarge
        } else if end {
            let (bytes, outcome) = collected.edited().await;
            // pingora would send an empty piece as a second end of the chunked body.
            *body = Some(bytes).filter(|bytes| !bytes.is_empty());
            outcome
        } else {
            *body = Some(Bytes::new());
            return Ok(());
        };
        (ctx.injected, ctx.body) = (outcome == Outcome::Changed, RequestBody::Candidate);
        if !std::mem::replace(&mut ctx.counted, true) {
            self.count(Rewrite::IncludeUsage, outcome);
        }
        Ok(())
    }

    async fn connected_to_upstream(
        &self,
        _: &mut Session,
        reused: bool,
        _: &HttpPeer,
        _: std::os::fd::RawFd,
        _: Option<&pingora::protocols::Digest>,
        ctx: &mut Box<RequestState>,
    ) -> Result<()> {
        ctx.connected = true;
        if !reused {
            self.relay.stats_of(self.listener).connected.add(1);
        }
        Ok(())
    }

    /// Without retries, pingora makes one attempt, whatever this function returns.
    fn error_while_proxy(
        &self,
        _: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        ctx: &mut Box<RequestState>,
        reused: bool,
    ) -> Box<Error> {
        let whole = !session.as_ref().retry_buffer_truncated() && !ctx.is_begun && session.response_written().is_none();
        error.set_retry(reused && whole && *error.esource() == ErrorSource::Upstream);
        error
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Box<RequestState>,
    ) -> Result<()> {
        if self.charge(&response.headers, RESPONSE, ctx).is_err() {
            return Err(Error::explain(ErrorType::InvalidHTTPHeader, "no memory is free for large headers").into_up());
        }
        let to_head = session.req_header().method == http::Method::HEAD;
        ctx.messages(|messages| messages.response_head(response, to_head));
        ctx.upgraded = response.status == http::StatusCode::SWITCHING_PROTOCOLS;
        if response.status.is_informational() {
            return Ok(());
        }
        if let Some(id) = ctx.request_id.as_deref().filter(|_| !response.headers.contains_key("x-request-id")) {
            response.insert_header("x-request-id", id)?;
        }
        let value = |name| response.headers.get(name).map(|value| value.as_bytes());
        let is_stream = value(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream")));
        if ctx.injected && is_stream {
            if value(header::CONTENT_ENCODING).is_some_and(|coding| coding != b"identity") {
                self.count(Rewrite::IncludeUsage, Outcome::NotRemoved);
            } else {
                ctx.strip = Some(StripUsage::new(&self.account(ctx)));
                response.remove_header(&header::CONTENT_LENGTH);
            }
        }
        // pingora flushes headers of responses without a length.
        let flushes = is_stream && !response.headers.contains_key(header::CONTENT_LENGTH);
        if flushes
            && matches!(ctx.body, RequestBody::Read { .. })
            && session.as_http1().is_some()
            && let Some(connection) = &ctx.connection
        {
            connection.join_headers();
        }
        Ok(())
    }

    /// HTTP/1.0 has no chunks: the end of the connection delimits the body.
    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        _: &mut Box<RequestState>,
    ) -> Result<()> {
        let has_chunks = session.as_http1().is_none() || session.req_header().version >= http::Version::HTTP_11;
        if !has_chunks && response.remove_header(&header::TRANSFER_ENCODING).is_some() {
            session.set_keepalive(None);
        }
        Ok(())
    }

    fn upstream_response_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        ctx: &mut Box<RequestState>,
    ) -> Result<Option<std::time::Duration>> {
        let piece = body.as_deref().unwrap_or_default();
        ctx.messages(|messages| messages.body(Direction::Response, piece, end));
        if let Some(strip) = &mut ctx.strip {
            let mut out = strip.feed(body.take().unwrap_or_default());
            if end {
                let rest = strip.end();
                if !rest.is_empty() {
                    out = [&out[..], &rest[..]].concat().into();
                }
            }
            *body = (!out.is_empty()).then_some(out);
        }
        Ok(None)
    }

    fn upstream_response_trailer_filter(
        &self,
        _: &mut Session,
        trailers: &mut HeaderMap,
        ctx: &mut Box<RequestState>,
    ) -> Result<()> {
        let all = trailers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        ctx.messages(|messages| messages.trailers(all));
        Ok(())
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, ctx: &mut Box<RequestState>) -> FailToProxy {
        let (code, kind) = status(error, ctx.connected);
        let reset = self.relay.settings().unreachable == Unreachable::Reset;
        if code == 0 || (kind == UNREACHABLE && reset) {
            return FailToProxy { error_code: 0, can_reuse_downstream: false };
        }
        let upstream = ctx.connection.as_ref().map_or("", |connection| &connection.upstream);
        let message = match kind {
            UNREACHABLE => format!("tokometer: cannot reach the inference server at {upstream}: {}", cause(error)),
            UPSTREAM => {
                format!("tokometer: the inference server at {upstream} sent no valid response: {}", cause(error))
            }
            _ => format!("tokometer: invalid request: {}", cause(error)),
        };
        if let Err(error) = respond(session, code, kind, &message, ctx.request_id.as_deref()).await {
            tracing::debug!(error = logged(&error), "The client did not get the error response.");
        }
        FailToProxy { error_code: code, can_reuse_downstream: false }
    }

    async fn logging(&self, _: &mut Session, error: Option<&Error>, ctx: &mut Box<RequestState>) {
        let close = match error {
            None => Close::Finished { first: if ctx.upgraded { Side::Server } else { Side::Client } },
            // The drain closed the connection.
            Some(_) if self.relay.drain().phase() == Phase::Forced => Close::Drained,
            Some(error) => {
                tracing::debug!(error = logged(error), "A request failed.");
                ended_by(error, ctx.connected)
            }
        };
        match (close, error) {
            (Close::ConnectTimeout, _) => self.relay.note_unreached(self.listener, Unreached::Timeout),
            (Close::Refused, Some(error)) => self.relay.note_unreached(self.listener, unreached(error)),
            _ => {}
        }
        if let Some(connection) = &ctx.connection {
            connection.end();
        }
        let upgraded = ctx.upgraded;
        ctx.messages(|messages| {
            if error.is_none() && !upgraded {
                messages.body(Direction::Response, &[], true);
            } else if close == (Close::Finished { first: Side::Server }) {
                messages.finished();
            }
            messages.close(close);
        });
    }

    fn suppress_error_log(&self, _: &Session, _: &Box<RequestState>, _: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _: &Session,
        _: &Box<RequestState>,
        error: &Error,
        context: ProxyWarnLogContext,
    ) -> bool {
        if matches!(context, ProxyWarnLogContext::UpstreamRetry) {
            tracing::warn!(error = logged(error), "Sending a request to the server again.");
        }
        true
    }
}

async fn respond(session: &mut Session, code: u16, kind: &str, message: &str, id: Option<&str>) -> Result<()> {
    let body = error_body(code, kind, message);
    let mut response = ResponseHeader::build(code, Some(4))?;
    response.insert_header(header::CONTENT_TYPE, "application/json")?;
    response.insert_header(header::CONTENT_LENGTH, body.len())?;
    if let Some(id) = id {
        response.insert_header("x-request-id", id)?;
    }
    if code == 503 {
        response.insert_header(header::RETRY_AFTER, "1")?;
    }
    session.write_error_response(response, body.into()).await
}
