//! `/live`: the live page and its feed.

mod feed;
mod page;

use std::sync::Arc;

use hyper::Response;
use hyper::StatusCode;
use hyper::header::HeaderValue;

use crate::admin::content::Content;
use crate::admin::pages;
use crate::admin::pages::Answer;

pub(super) use feed::{Events, Feed};
pub(super) use page::page;

pub use feed::Snapshots;

/// The current snapshot.
pub(super) async fn snapshot(feed: Arc<Feed>) -> Answer {
    match feed.latest().await {
        Ok(snapshot) => pages::respond(StatusCode::OK, "application/json", snapshot),
        Err(_) => pages::not_rendered(),
    }
}

/// A snapshot once a second, as server-sent events.
pub(super) async fn events(feed: Arc<Feed>) -> Answer {
    match feed.watch().await {
        Ok(Some(events)) => stream(Content::events(events)),
        Ok(None) => pages::unavailable("the admin server is stopping"),
        Err(_) => pages::not_rendered(),
    }
}

/// The response to HEAD.
pub(super) fn no_events() -> Answer {
    stream(Content::page(""))
}

fn stream(content: Content) -> Answer {
    let mut answer = Response::new(content);
    pages::finish(&mut answer, "text/event-stream");
    // nginx would otherwise buffer events.
    answer.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}
