//! One client's requests, one after the other.

use std::sync::Arc;

use tokio::net::TcpStream;

use crate::sim::server::answer;
use crate::sim::server::body;
use crate::sim::server::engine::Engine;
use crate::sim::server::exchange;
use crate::sim::server::exchange::After;
use crate::sim::server::http::Client;
use crate::sim::server::http::Ended;
use crate::sim::server::http::Head;
use crate::sim::server::job::Api;
use crate::sim::server::metrics;

/// What uvicorn answers to what is no HTTP.
const MALFORMED: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: \
close\r\n\r\nInvalid HTTP request received.";

/// Serves until either side is done with the connection.
pub(crate) async fn serve(stream: TcpStream, engine: Arc<Engine>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
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
    let plain = match head.path.as_str() {
        "/v1/chat/completions" if post => return exchange::generate(client, engine, head, Api::Chat, body).await,
        "/v1/completions" if post => return exchange::generate(client, engine, head, Api::Completions, body).await,
        "/v1/chat/completions" | "/v1/completions" => {
            let body = r#"{"detail":"Method Not Allowed"}"#;
            answer::whole(405, Some("application/json"), "allow: POST\r\n", body, head.close)
        }
        "/v1/models" if get => answer::json_body(200, &body::models(&engine.settings, answer::unix_time()), head.close),
        "/health" if get => answer::whole(200, None, "", "", head.close),
        "/metrics" if get => {
            let page = metrics::page(engine);
            answer::whole(200, Some("text/plain; version=1.0.0; charset=utf-8"), "", &page, head.close)
        }
        _ => answer::json_body(404, r#"{"detail":"Not Found"}"#, head.close),
    };
    // An answer to HEAD is a head (RFC 9110, 9.3.2).
    let end = match memchr::memmem::find(&plain, b"\r\n\r\n") {
        Some(at) if head.method == "HEAD" => at + 4,
        _ => plain.len(),
    };
    client.send(plain.get(..end).unwrap_or(&plain)).await?;
    Ok(if head.close { After::Close } else { After::KeepOpen })
}
