//! Values from headers: the tenant and latency targets of requests, the queue time, token counts and gRPC status of
//! responses.

use std::time::Duration;

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use serde_json::{Map, Value};

use crate::measure::{Targets, number_text};
use crate::observer::TargetHeaders;
use tokometer_decode::Counter;
use tokometer_wire::RequestHead;

/// Maximum length of a recorded id, in bytes.
const ID_BYTES: usize = 128;

/// Maximum bytes of a header value that are searched for an id.
const ID_VALUE_BYTES: usize = 1024;

/// Maximum size of a bearer token to parse, in bytes. Servers accept headers of about 8 KiB (nginx, Apache httpd); the
/// configured limit may be higher.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// base64url with optional padding: tokens must omit the padding (RFC 7515, section 2), but some implementations add
/// it.
const BASE64_URL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Request headers that are read from every request, in addition to [`TargetHeaders`].
const ALWAYS_READ: [&str; 6] =
    ["traceparent", "x-request-id", "content-type", "content-encoding", "x-body-compressed", "grpc-encoding"];

/// Headers with latency targets, priority class and rank, under their current and former names.
const TARGETS: [&str; 7] = [
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-data-parallel-rank",
];

impl TargetHeaders {
    /// True for a request header that the observer may read.
    pub(super) fn reads(&self, name: &str) -> bool {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let has_claim = self.claim.is_some() && is("authorization");
        has_claim || self.tenant.iter().any(|known| is(known)) || ALWAYS_READ.into_iter().chain(TARGETS).any(is)
    }

    /// Reads targets and tenant from request headers.
    pub(super) fn of(&self, head: &RequestHead<'_>) -> Option<Box<Targets>> {
        // llm-d-router renamed these headers in pull request 1161. Clients and older routers send the old names.
        let time = |names: [&str; 2]| {
            names.into_iter().filter(|_| self.speed).find_map(|name| Targets::milliseconds(head.header(name)?))
        };
        let targets = Targets {
            first_token: time(["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"]),
            per_token: time(["x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"]),
            tenant: self.tenant(|name| head.header(name)),
            priority_class: self.priority_class(|name| head.header(name)),
            data_parallel_rank: head.header("x-data-parallel-rank").and_then(Targets::rank),
        };
        targets.if_any()
    }

    /// Reads the tenant from the claim of the bearer token, otherwise from the first configured header that is present:
    /// the server may verify the token, but clients choose headers.
    fn tenant<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Box<str>> {
        let claimed = self.claim.as_deref().and_then(|name| claim(header("authorization")?, name));
        claimed.or_else(|| self.tenant.iter().find_map(|name| id(header(name))))
    }

    /// Reads the priority class, if tenants are configured. llm-d-router renamed this header too.
    fn priority_class<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Box<str>> {
        let names = ["x-llm-d-inference-objective", "x-gateway-inference-objective"];
        let is_read = !self.tenant.is_empty() || self.claim.is_some();
        names.into_iter().filter(|_| is_read).find_map(|name| id(header(name)))
    }
}

/// Reads a claim from the payload of a bearer token (RFC 6750, section 2.1) that is a signed JWT (RFC 7519, section
/// 3.1). The signature is not verified: only the server has the keys. No other part of the token is kept.
fn claim(authorization: &[u8], name: &str) -> Option<Box<str>> {
    let text = std::str::from_utf8(authorization).ok().filter(|text| text.len() <= MAX_TOKEN_BYTES)?;
    let (scheme, token) = text.trim().split_once(' ')?;
    let mut parts = token.trim().split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let claims: Map<String, Value> = serde_json::from_slice(&BASE64_URL.decode(payload).ok()?).ok()?;
    match find(&claims, name)? {
        Value::String(text) => id(Some(text.as_bytes())),
        // Integers only: other numbers have no single canonical text form.
        Value::Number(number) if !number.is_f64() => id(Some(number.to_string().as_bytes())),
        _ => None,
    }
}

/// Finds the claim with this name; `org.id` also matches `id` in the object `org`. A literal name with dots (RFC 7519,
/// section 4.2) takes precedence.
fn find<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        name.match_indices('.').find_map(|(at, _)| {
            let (object, rest) = (name.get(..at)?, name.get(at + 1..)?);
            find(claims.get(object)?.as_object()?, rest)
        })
    })
}

/// Reads an id from the start of a header value, truncated to the length recorded in spans.
pub(super) fn id(value: Option<&[u8]>) -> Option<Box<str>> {
    let value = value?;
    let text = match value.get(..ID_VALUE_BYTES) {
        // The last character may be incomplete.
        Some(start) => start.utf8_chunks().next()?.valid(),
        None => std::str::from_utf8(value).ok()?,
    };
    let text = text.trim();
    let end = (0..=text.len().min(ID_BYTES)).rev().find(|i| text.is_char_boundary(*i))?;
    text.get(..end).filter(|t| !t.is_empty()).map(Into::into)
}

/// Queue time and counts from the response headers of Text Generation Inference (router/src/server.rs, `generate`,
/// version 3.3; also on chats and completions). Only for non-streamed responses: a stream's headers are sent before
/// these values are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TgiHeaders {
    /// `x-queue-time`: from validation to batching. Whole milliseconds, rounded down.
    pub(super) queue: Option<Duration>,
    /// `x-prompt-tokens` and `x-generated-tokens`.
    pub(super) counter: Counter,
}

impl TgiHeaders {
    /// Reads these headers. `None` unless they are from TGI: `x-queue-time` alone is too generic.
    pub(super) fn parse<'a>(header: impl Fn(&str) -> Option<&'a [u8]>) -> Option<TgiHeaders> {
        header("x-compute-type")?;
        header("x-time-per-token")?;
        let whole = |name| number_text(header(name)?)?.parse::<u64>().ok();
        let counter =
            Counter { input: whole("x-prompt-tokens"), output: whole("x-generated-tokens"), ..Counter::default() };
        Some(TgiHeaders { queue: whole("x-queue-time").map(Duration::from_millis), counter })
    }
}

/// gRPC status codes in numeric order, with name and HTTP status according to google/rpc/code.proto.
const GRPC_CODES: [(&str, u16); 17] = [
    ("OK", 200),
    ("CANCELLED", 499),
    ("UNKNOWN", 500),
    ("INVALID_ARGUMENT", 400),
    ("DEADLINE_EXCEEDED", 504),
    ("NOT_FOUND", 404),
    ("ALREADY_EXISTS", 409),
    ("PERMISSION_DENIED", 403),
    ("RESOURCE_EXHAUSTED", 429),
    ("FAILED_PRECONDITION", 400),
    ("ABORTED", 409),
    ("OUT_OF_RANGE", 400),
    ("UNIMPLEMENTED", 501),
    ("INTERNAL", 500),
    ("UNAVAILABLE", 503),
    ("DATA_LOSS", 500),
    ("UNAUTHENTICATED", 401),
];

/// Name and HTTP status of a `grpc-status` value (gRPC over HTTP/2, "Responses"). Unknown codes are `UNKNOWN`.
pub(super) fn grpc_status(value: &[u8]) -> Option<(&'static str, u16)> {
    let code: u32 = number_text(value)?.parse().ok()?;
    GRPC_CODES.get(code as usize).or(GRPC_CODES.get(2)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(payload: &str) -> String {
        format!("Bearer {}.{}.c2ln", BASE64_URL.encode("{\"alg\":\"none\"}"), BASE64_URL.encode(payload))
    }

    fn tenant(payload: &str, name: &str) -> Option<String> {
        claim(bearer(payload).as_bytes(), name).map(String::from)
    }

    #[test]
    fn claim_is_found_by_name_or_path() {
        let payload = r#"{"sub":" acme ","org":{"id":7,"a.b":{"c":"deep"}},"https://x.example/team":"red","n":1.5,"l":["x"],"e":""}"#;
        for (name, expected) in [
            ("sub", Some("acme")),
            ("org.id", Some("7")),
            ("org.a.b.c", Some("deep")),
            ("https://x.example/team", Some("red")),
            ("org", None),
            ("n", None),
            ("l", None),
            ("e", None),
            ("missing", None),
            ("sub.x", None),
            ("", None),
        ] {
            assert_eq!(tenant(payload, name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn invalid_bearer_token_yields_no_tenant() {
        let good = bearer(r#"{"sub":"acme"}"#);
        assert_eq!(claim(good.as_bytes(), "sub").as_deref(), Some("acme"));
        let padded = format!("Bearer x.{}=.y", BASE64_URL.encode(r#"{"sub":"acm"}"#));
        assert_eq!(padded.matches('=').count(), 1);
        assert_eq!(claim(padded.as_bytes(), "sub").as_deref(), Some("acm"));
        assert_eq!(claim(good.replace("Bearer", "bEARER ").as_bytes(), "sub").as_deref(), Some("acme"));
        let long = format!("{good}{}", "A".repeat(MAX_TOKEN_BYTES));
        for bad in [
            good.replace("Bearer", "Basic"),
            good.replace("Bearer ", ""),
            good.rsplit_once('.').map(|(two, _)| two.to_owned()).unwrap(),
            format!("{good}.x.y"),
            "Bearer sk-0123456789".to_owned(),
            "Bearer a.!!!.c".to_owned(),
            "Bearer ..".to_owned(),
            bearer("[1]"),
            bearer("\u{0}"),
            long,
            String::new(),
        ] {
            assert_eq!(claim(bad.as_bytes(), "sub"), None, "{bad}");
        }
        assert_eq!(claim(b"Bearer \xff.\xff.\xff", "sub"), None);
    }

    #[test]
    fn token_claim_wins_over_tenant_headers() {
        let headers =
            TargetHeaders { speed: false, tenant: vec!["x-team".into(), "x-tenant".into()], claim: Some("sub".into()) };
        let (token, other) = (bearer(r#"{"sub":"token"}"#), bearer(r#"{"aud":"token"}"#));
        let tenant = |given: &[(&str, &str)]| {
            let named =
                headers.tenant(|name| given.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_bytes()));
            named.map(String::from)
        };
        assert_eq!(tenant(&[("x-tenant", "b"), ("x-team", "a")]).as_deref(), Some("a"));
        assert_eq!(tenant(&[("x-tenant", "b"), ("x-team", " ")]).as_deref(), Some("b"));
        assert_eq!(tenant(&[("authorization", &token), ("x-team", "a")]).as_deref(), Some("token"));
        assert_eq!(tenant(&[("authorization", &other), ("x-team", "a")]).as_deref(), Some("a"));
        assert_eq!(tenant(&[("authorization", &other)]), None);
    }

    #[test]
    fn only_the_start_of_a_long_id_is_read() {
        let read = |text: String| id(Some(text.as_bytes())).map(String::from);
        assert_eq!(read(" ".repeat(ID_VALUE_BYTES - 1) + "a"), Some("a".to_owned()));
        assert_eq!(read(" ".repeat(ID_VALUE_BYTES) + "a"), None);
        // A character of three bytes at the end of the start.
        assert_eq!(read("\u{2713}".repeat(100_000)), Some("\u{2713}".repeat(ID_BYTES / 3)));
        assert_eq!(id(Some(b"a\xff")), None);
    }

    fn tgi(headers: &[(&str, &'static str)]) -> Option<TgiHeaders> {
        TgiHeaders::parse(|wanted| headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_bytes()))
    }

    #[test]
    fn queue_time_and_counts_are_read_only_from_tgi() {
        let all = [
            ("x-compute-type", "1-nvidia-a10g"),
            ("x-compute-time", "0.532"),
            ("x-total-time", "532"),
            ("x-validation-time", "0"),
            ("x-queue-time", "120"),
            ("x-inference-time", "412"),
            ("x-time-per-token", "20"),
            ("x-prompt-tokens", "17"),
            ("x-generated-tokens", "20"),
        ];
        let counter = Counter { input: Some(17), output: Some(20), ..Counter::default() };
        assert_eq!(tgi(&all), Some(TgiHeaders { queue: Some(Duration::from_millis(120)), counter }));
        assert_eq!(tgi(&all[1..]), None, "not a TGI response");
        let streamed = [("x-compute-type", "cpu"), ("x-compute-characters", "9")];
        assert_eq!(tgi(&streamed), None, "headers of a stream have no values");
    }

    #[test]
    fn invalid_numbers_are_none() {
        let odd = [
            ("x-compute-type", "cpu"),
            ("x-time-per-token", "1"),
            ("x-queue-time", "1.5"),
            ("x-prompt-tokens", "-1"),
            ("x-generated-tokens", ""),
        ];
        assert_eq!(tgi(&odd), Some(TgiHeaders { queue: None, counter: Counter::default() }));
    }
}
