//! One client's requests, one after the other.

use std::sync::Arc;

use crate::sim::server::api::Api;
use crate::sim::server::api::Imitation;
use crate::sim::server::dialect;
use crate::sim::server::engine::Engine;
use crate::sim::server::exchange;
use crate::sim::server::exchange::After;
use crate::sim::server::front::Front;
use crate::sim::server::front::unix_time;
use crate::sim::server::http::Client;
use crate::sim::server::http::Ended;
use crate::sim::server::http::Head;
use crate::sim::server::http::Wire;
use crate::sim::server::metrics;

/// What uvicorn answers to what is no HTTP.
const MALFORMED: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: \
close\r\n\r\nInvalid HTTP request received.";

/// Serves until either side is done with the connection.
pub(crate) async fn serve(stream: Box<dyn Wire>, engine: Arc<Engine>) {
    let mut client = Client::new(stream);
    loop {
        let after = match client.request(engine.settings.idle_timeout).await {
            Ok((head, body)) => answer_one(&mut client, &engine, &head, body).await,
            Err(Ended::Malformed) => client.send(MALFORMED).await.map(|()| After::Close),
            Err(gone) => Err(gone),
        };
        match after {
            Ok(After::KeepOpen) => {}
            Ok(After::Reset) => return client.reset(),
            Ok(After::Close) | Err(_) => return,
        }
    }
}

async fn answer_one(client: &mut Client, engine: &Engine, head: &Head, body: Vec<u8>) -> Result<After, Ended> {
    let (get, post) = (matches!(head.method.as_str(), "GET" | "HEAD"), head.method == "POST");
    let api = Api::at(&head.path);
    if let Some(api) = api.filter(|_| post) {
        return exchange::answer(client, engine, head, api, body).await;
    }
    let front = Front::new(Imitation::Vllm, head.close);
    let page = if get { page(engine, head) } else { None };
    let plain = match (page, api) {
        (Some(page), _) => page,
        (None, Some(_)) => {
            let body = r#"{"detail":"Method Not Allowed"}"#;
            front.whole(405, Some("application/json"), "allow: POST\r\n", body)
        }
        (None, None) => front.json(404, "", r#"{"detail":"Not Found"}"#),
    };
    // An answer to HEAD is a head (RFC 9110, 9.3.2).
    let end = match memchr::memmem::find(&plain, b"\r\n\r\n") {
        Some(at) if head.method == "HEAD" => at + 4,
        _ => plain.len(),
    };
    client.send(plain.get(..end).unwrap_or(&plain)).await?;
    Ok(After::close_if(head.close))
}

/// What can be looked at.
fn page(engine: &Engine, head: &Head) -> Option<Vec<u8>> {
    let settings = &engine.settings;
    let (vllm, ollama) = (Front::new(Imitation::Vllm, head.close), Front::new(Imitation::Ollama, head.close));
    Some(match head.path.as_str() {
        "/v1/models" => vllm.json(200, "", &dialect::models(settings, unix_time().as_secs())),
        "/health" => vllm.whole(200, None, "", ""),
        "/metrics" => vllm.whole(200, Some("text/plain; version=1.0.0; charset=utf-8"), "", &metrics::page(engine)),
        "/" => ollama.whole(200, Some("text/plain; charset=utf-8"), "", "Ollama is running"),
        "/api/version" => ollama.json(200, "", r#"{"version":"0.17.4"}"#),
        "/api/tags" => ollama.json(200, "", &dialect::tags(settings)),
        _ => return None,
    })
}
