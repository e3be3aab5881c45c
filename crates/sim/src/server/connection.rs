//! The requests of one client connection.

use std::sync::Arc;

use crate::server::api::Api;
use crate::server::api::Imitation;
use crate::server::dialect;
use crate::server::engine::Engine;
use crate::server::exchange;
use crate::server::exchange::After;
use crate::server::front::Front;
use crate::server::front::unix_time;
use crate::server::http::Client;
use crate::server::http::Ended;
use crate::server::http::Head;
use crate::server::http::Wire;
use crate::server::http2;
use crate::server::metrics;
use crate::server::realtime;

/// uvicorn's response to malformed HTTP.
const MALFORMED: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: \
close\r\n\r\nInvalid HTTP request received.";

/// Serves a connection until either side closes it.
pub(crate) async fn serve(stream: Box<dyn Wire>, engine: Arc<Engine>) {
    if let Some(client) = answer_all(Client::new(stream), &engine).await {
        http2::serve(client.rewound(), engine).await;
    }
}

/// Serves HTTP/1.1 requests until either side closes the connection; returns the client if it uses HTTP/2.
pub(crate) async fn answer_all(mut client: Client, engine: &Engine) -> Option<Client> {
    let mut first = true;
    loop {
        let after = match client.request(engine.settings.idle_timeout).await {
            Ok((head, body)) => answer_one(&mut client, engine, &head, body).await,
            Err(Ended::Http2) if first => return Some(client),
            Err(Ended::Malformed | Ended::Http2) => client.send(MALFORMED).await.map(|()| After::Close),
            Err(gone) => Err(gone),
        };
        first = false;
        match after {
            Ok(After::KeepOpen) => {}
            Ok(After::Reset) => {
                client.reset();
                return None;
            }
            Ok(After::Close) | Err(_) => return None,
        }
    }
}

async fn answer_one(client: &mut Client, engine: &Engine, head: &Head, body: Vec<u8>) -> Result<After, Ended> {
    let (get, post) = (matches!(head.method.as_str(), "GET" | "HEAD"), head.method == "POST");
    let api = Api::at(&head.path);
    if let Some(api) = api.filter(|_| post) {
        return exchange::answer(client, engine, head, api, body).await;
    }
    if let Some(key) = head.websocket_key.as_deref().filter(|_| get && head.upgrades && head.path == realtime::PATH) {
        return realtime::serve(client, engine, head, key).await;
    }
    let front = Front::new(Imitation::Vllm, head.close);
    // vLLM's metrics page is a mounted app that ignores the method.
    let get = get || (head.method == "OPTIONS" && head.path == "/metrics");
    let page = if get { page(engine, head) } else { None };
    let plain = match (page, api) {
        (Some(page), _) => page,
        (None, Some(_)) => {
            let body = r#"{"detail":"Method Not Allowed"}"#;
            front.whole(405, Some("application/json"), "allow: POST\r\n", body)
        }
        (None, None) => front.json(404, "", r#"{"detail":"Not Found"}"#),
    };
    // A response to HEAD consists of headers only (RFC 9110, 9.3.2).
    let end = match memchr::memmem::find(&plain, b"\r\n\r\n") {
        Some(at) if head.method == "HEAD" => at + 4,
        _ => plain.len(),
    };
    client.send(plain.get(..end).unwrap_or(&plain)).await?;
    Ok(After::close_if(head.close))
}

/// The response to GET for paths other than the APIs.
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
