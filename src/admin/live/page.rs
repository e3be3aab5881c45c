//! The `/live` page: a single document with inline style and scripts.

use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header;
use hyper::header::HeaderName;
use hyper::header::HeaderValue;

use crate::admin::pages;
use crate::admin::pages::Answer;

/// The scripts, in order of their dependencies.
const SCRIPTS: [&str; 6] = [
    include_str!("page/format.js"),
    include_str!("page/theme.js"),
    include_str!("page/bars.js"),
    include_str!("page/charts.js"),
    include_str!("page/timeline.js"),
    include_str!("page/main.js"),
];

/// The document, and a policy that restricts the browser to displaying it.
static PAGE: LazyLock<(Bytes, String)> = LazyLock::new(|| {
    let style = include_str!("page/page.css");
    // A separate scope.
    let script = format!("\"use strict\";(() => {{\n{}}})();\n", SCRIPTS.concat());
    let page = include_str!("page/page.html").replacen("/*STYLE*/", style, 1).replacen("/*SCRIPT*/", &script, 1);
    // Model names come from the network. If one ever got into the document as markup, the policy would still block it
    // as script.
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(&script),
        hash(style)
    );
    (Bytes::from(page), policy)
});

/// Hash in the format of a policy (Content Security Policy Level 3, section 2.3.1).
fn hash(text: &str) -> String {
    BASE64_STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()))
}

/// The page.
pub(in crate::admin) fn page() -> Answer {
    let (page, policy) = &*PAGE;
    let mut answer = pages::respond(StatusCode::OK, "text/html; charset=utf-8", page.clone());
    let more = [(header::CONTENT_SECURITY_POLICY, policy.as_str()), (header::REFERRER_POLICY, "no-referrer")];
    let valid = |(name, value): (HeaderName, &str)| Some((name, HeaderValue::from_str(value).ok()?));
    answer.headers_mut().extend(more.into_iter().filter_map(valid));
    answer
}
