//! `/live`: the live page, its snapshots and its event stream.

use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode, header};

use crate::admin::feed::Feed;
use crate::admin::response::{self, Content, PageResponse};

/// The current snapshot.
pub(super) async fn snapshot(feed: Arc<Feed>) -> PageResponse {
    match feed.latest().await {
        Ok(snapshot) => response::respond(StatusCode::OK, "application/json", snapshot),
        Err(_) => response::not_rendered(),
    }
}

/// Sends a snapshot once a second, as server-sent events.
pub(super) async fn events(feed: Arc<Feed>) -> PageResponse {
    match feed.watch().await {
        Ok(Some(events)) => stream(Content::events(events)),
        Ok(None) => response::unavailable("the admin server is stopping"),
        Err(_) => response::not_rendered(),
    }
}

/// The response to `HEAD /live/events`.
pub(super) fn no_events() -> PageResponse {
    stream(Content::page(""))
}

fn stream(content: Content) -> PageResponse {
    let mut response = Response::new(content);
    response::finish(&mut response, "text/event-stream");
    // nginx would otherwise buffer events.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The scripts, in order of their dependencies.
const SCRIPTS: [&str; 6] = [
    include_str!("live/page/format.js"),
    include_str!("live/page/theme.js"),
    include_str!("live/page/bars.js"),
    include_str!("live/page/charts.js"),
    include_str!("live/page/timeline.js"),
    include_str!("live/page/main.js"),
];

/// The page and its Content-Security-Policy, which allows the page's script and style, and requests to this server.
static PAGE: LazyLock<(Bytes, String)> = LazyLock::new(|| {
    let style = include_str!("live/page/page.css");
    // The scripts are wrapped in a function, which keeps their names out of the global scope.
    let script = format!("\"use strict\";(() => {{\n{}}})();\n", SCRIPTS.concat());
    let page = include_str!("live/page/page.html").replacen("/*STYLE*/", style, 1).replacen("/*SCRIPT*/", &script, 1);
    // Model names are untrusted. Even if one were inserted as markup, the policy would block scripts in it.
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(&script),
        hash(style)
    );
    (Bytes::from(page), policy)
});

/// Hash of a script or style, in the format of the policy (Content Security Policy Level 3, section 2.3.1).
fn hash(text: &str) -> String {
    BASE64_STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()))
}

/// The page.
pub(super) fn page() -> PageResponse {
    let (page, policy) = &*PAGE;
    let mut response = response::respond(StatusCode::OK, "text/html; charset=utf-8", page.clone());
    let more = [(header::CONTENT_SECURITY_POLICY, policy.as_str()), (header::REFERRER_POLICY, "no-referrer")];
    let valid = |(name, value): (HeaderName, &str)| Some((name, HeaderValue::from_str(value).ok()?));
    response.headers_mut().extend(more.into_iter().filter_map(valid));
    response
}
