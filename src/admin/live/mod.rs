//! `/live`: the page that moves, and the feed that it is made of.

mod feed;
mod page;

use std::sync::Arc;

use http_body_util::Either;
use http_body_util::Full;
use hyper::Response;
use hyper::StatusCode;
use hyper::header;
use hyper::header::HeaderValue;

use crate::admin::live::feed::MOST_WATCHERS;
use crate::admin::pages;
use crate::admin::pages::Answer;

pub(super) use feed::{Events, Feed};
pub(super) use page::page;

pub use feed::Snapshots;

/// The state of this moment.
pub(super) async fn snapshot(feed: &Feed) -> Answer {
    match feed.latest().await {
        Ok(snapshot) => pages::respond(StatusCode::OK, "application/json", snapshot),
        Err(_) => unmade(),
    }
}

/// The same, once a second.
pub(super) async fn events(feed: &Arc<Feed>, head_only: bool) -> Answer {
    let events = match feed.watch().await {
        Ok(Some(events)) => events,
        Ok(None) => return full(),
        Err(_) => return unmade(),
    };
    // Who asks for the head alone gives its place back at once.
    let mut answer = Response::new(if head_only { Either::Left(Full::default()) } else { Either::Right(events) });
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would gather events until its buffer is full.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

fn full() -> Answer {
    let why = format!("{MOST_WATCHERS} watch already: close one, or ask /live/snapshot\n");
    let mut answer = pages::respond(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", why);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    answer
}

fn unmade() -> Answer {
    let message = "the snapshot could not be made; the log tells more";
    pages::json(StatusCode::INTERNAL_SERVER_ERROR, &pages::error(message))
}
