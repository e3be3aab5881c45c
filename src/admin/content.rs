//! The body of a response.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;

use bytes::Bytes;
use hyper::body::Body;
use hyper::body::Frame;
use hyper::body::SizeHint;

use crate::admin::live::Events;
use crate::admin::slots::PageSlot;

/// Bytes passed to the connection at a time: the next chunk follows when this one is written.
const CHUNK: usize = 16 * 1024;

/// A page, or a stream of events.
#[derive(Debug)]
pub(super) struct Content {
    source: Source,
    /// Keeps the slot of a limited page.
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
