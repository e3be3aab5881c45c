//! Tenants from request headers and tokens, valid or garbage.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use tokometer::replay::{Recording, replay};
use tokometer_observe::input::{Close, Side};
use tokometer_observe::observer::{Settings, TargetHeaders};

use crate::endings::Wire;
use crate::websocket::observed;

fn settings() -> Settings {
    let targets = TargetHeaders { tenant: vec!["x-tenant".into()], claim: Some("org.id".into()), speed: true };
    Settings { targets, ..Settings::default() }
}

/// The tenant of a request with this `Authorization` header. Asserts that it is one complete request.
fn tenant(authorization: &str) -> Option<String> {
    let body = r#"{"model":"m","messages":[]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: {authorization}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let response = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let reads = vec![(Duration::from_millis(5), response.to_vec())];
    let recording = Recording { path: "written".into(), request: request.into_bytes(), reads, end: None };
    let replayed = replay(&recording, &settings());
    assert_eq!((replayed.records.len(), replayed.detached.len()), (1, 0), "{authorization:?}");
    let record = &replayed.records[0];
    assert!(!format!("{record:?}").contains("never-kept"), "only the claim may be kept");
    record.request.targets.as_ref()?.tenant.as_deref().map(str::to_owned)
}

fn token(payload: &str) -> String {
    format!("Bearer eyJhbGciOiJub25lIn0.{}.never-kept", URL_SAFE_NO_PAD.encode(payload))
}

#[test]
fn token_claim_names_the_tenant() {
    assert_eq!(tenant(&token(r#"{"org":{"id":"acme"},"sub":"never-kept"}"#)).as_deref(), Some("acme"));
    assert_eq!(tenant(&token(r#"{"org":{"id":4711}}"#)).as_deref(), Some("4711"));
    assert_eq!(tenant(&token(r#"{"sub":"never-kept"}"#)), None);
    assert_eq!(tenant("Bearer never-kept"), None);
}

#[test]
fn session_responses_belong_to_the_handshakes_tenant() {
    let handshake = String::from_utf8(observed::HANDSHAKE.to_vec()).unwrap();
    let handshake = handshake.replace("Host: x\r\n", "Host: x\r\nX-Tenant: acme\r\n");
    let wire = Wire::open_by(settings()).client(handshake.as_bytes()).server(observed::SWITCHED);
    let asked = r#"{"type":"input_audio_buffer.commit","final":true}"#;
    let done = r#"{"type":"transcription.done","text":"a","usage":{"prompt_tokens":38,"completion_tokens":3}}"#;
    let wire = wire.client(&observed::of_client(asked)).server(&observed::of_server(done));
    let replayed = wire.close(Close::Finished { first: Side::Client });
    let tenants: Vec<Option<&str>> =
        replayed.records.iter().map(|record| record.request.targets.as_ref()?.tenant.as_deref()).collect();
    assert_eq!(tenants, [Some("acme"), Some("acme")]);
}

proptest! {
    #[test]
    fn claim_text_is_returned_unchanged(name in "[^\\p{C}\\p{Z}]{1,40}") {
        let payload = serde_json::json!({"org": {"id": name}}).to_string();
        prop_assert_eq!(tenant(&token(&payload)), Some(name));
    }

    #[test]
    fn garbage_gives_no_tenant_or_a_short_one(
        scheme in "(Bearer|bearer|Basic|)",
        parts in proptest::collection::vec("[A-Za-z0-9_=+/-]{0,60}", 0..6),
    ) {
        let reported = tenant(&format!("{scheme} {}", parts.join(".")));
        prop_assert!(reported.is_none_or(|tenant| tenant.len() <= 128));
    }

    #[test]
    fn broken_payloads_do_no_harm(
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        cut in 0..60_usize,
    ) {
        let encoded = URL_SAFE_NO_PAD.encode(&payload);
        tenant(&format!("Bearer a.{encoded}.c"));
        let good = token(r#"{"org":{"id":"acme"},"more":[{"deep":[[[1]]]}]}"#);
        let kept: String = good.chars().take(good.len() - cut).collect();
        let reported = tenant(&kept);
        prop_assert!(reported.is_none_or(|tenant| tenant == "acme"));
    }
}
