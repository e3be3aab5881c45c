//! Responses and their bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode, header};

use crate::admin::feed::Events;
use crate::admin::slots::PageSlot;

/// Bytes passed to the connection at a time. The next chunk follows when the previous one is written.
const CHUNK: usize = 16 * 1024;

/// A page, or a stream of events.
#[derive(Debug)]
pub(super) struct Content {
    source: Source,
    /// Keeps the slot of a limited page occupied until this body is dropped.
    held: Option<PageSlot>,
}

#[derive(Debug)]
enum Source {
    Page(Bytes),
    Events(Events),
}

impl Content {
    pub(super) fn page(bytes: impl Into<Bytes>) -> Content {
        Content { source: Source::Page(bytes.into()), held: None }
    }

    pub(super) fn events(events: Events) -> Content {
        Content { source: Source::Events(events), held: None }
    }

    pub(super) fn hold(&mut self, held: PageSlot) {
        self.held = Some(held);
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.source {
            Source::Events(events) => events.poll_next(cx).map(|event| event.map(|event| Ok(Frame::data(event)))),
            Source::Page(rest) if rest.is_empty() => Poll::Ready(None),
            Source::Page(rest) => {
                let chunk = rest.split_to(rest.len().min(CHUNK));
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.source, Source::Page(rest) if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Page(rest) => SizeHint::with_exact(rest.len() as u64),
            Source::Events(_) => SizeHint::default(),
        }
    }
}

pub(super) const JSON: &str = "application/json";
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

pub(super) type PageResponse = Response<Content>;

/// 503, and closes the connection to free its slot.
pub(super) fn unavailable(why: &str) -> PageResponse {
    let mut response = json(StatusCode::SERVICE_UNAVAILABLE, &error(why));
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

pub(super) fn not_rendered() -> PageResponse {
    json(StatusCode::INTERNAL_SERVER_ERROR, &error("the page could not be rendered; see the log"))
}

pub(super) fn error(message: &str) -> serde_json::Value {
    serde_json::json!({ "error": { "message": message } })
}

pub(super) fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

pub(super) fn json(status: StatusCode, body: &serde_json::Value) -> PageResponse {
    respond(status, JSON, format!("{body}\n"))
}

pub(super) fn respond(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> PageResponse {
    let mut response = Response::new(Content::page(body));
    *response.status_mut() = status;
    finish(&mut response, content_type);
    response
}

/// Sets the headers of every response.
pub(super) fn finish(response: &mut PageResponse, content_type: &str) {
    let headers = response.headers_mut();
    if let Ok(content_type) = HeaderValue::from_str(content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Probes and metrics must not be cached.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}
