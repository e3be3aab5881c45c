//! Attacks on the admin server: on its memory, its connections, and the process.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::CHAT;
use crate::attack::{Attack, Target, connect};
use crate::program::{get, page, status};
use crate::upstream::FAST;
use crate::{Outcome, wire};

/// How long the attackers stay connected.
const STAY: Duration = Duration::from_secs(2);

/// Maximum time for a single page.
const PAGE: Duration = Duration::from_secs(5);

/// Number of requests whose records fill the list of recent requests (4 MiB).
const RECORDS: usize = 4_000;

/// A website that makes a browser send requests to the admin server.
const EVIL: &str = "evil.example";

/// Pages with information about the program or its traffic.
const PRIVATE: [&str; 4] = ["/config", "/requests", "/live/snapshot", "/live"];

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        Attack::new("admin-slow-readers", 60, slow_readers),
        Attack::new("admin-half-headers", 300, |target| async move {
            crowd(target, 300, "GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ").await
        }),
        Attack::new("admin-silent", 1_000, |target| async move { crowd(target, 1_000, "").await }),
        Attack::new("admin-watchers", 1_000, |target| async move {
            crowd(target, 1_000, "GET /live/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await
        }),
        Attack::new("admin-foreign-drain", 1, foreign_drain),
        Attack::new("admin-rebinding", 1, rebinding),
    ]
}

/// Clients that request the largest page, read a few bytes, and then stop.
async fn slow_readers(target: Target) -> Outcome<()> {
    let requests = wire::post(CHAT, &[], br#"{"model":"m"}"#).repeat(20);
    let mut stream = target.connect().await?;
    for _ in 0..RECORDS / 20 {
        stream.ask(&requests, FAST.len() * 20).await?;
    }
    for at in 0..60 {
        let path = if at % 2 == 0 { "/requests?limit=1000000" } else { "/live/snapshot?limit=1000000" };
        let mut reader = connect(target.admin, Some(4096)).await?;
        reader.write_all(get(path, &target.admin.to_string()).as_bytes()).await?;
        let mut some = [0; 100];
        // A server that refuses the request closes the connection.
        tokio::time::timeout(PAGE, reader.read(&mut some)).await.ok();
        target.hold(reader);
    }
    tokio::time::sleep(STAY).await;
    Ok(())
}

/// Connections that send `request` and stay open.
async fn crowd(target: Target, count: usize, request: &str) -> Outcome<()> {
    let mut all = Vec::new();
    for _ in 0..count {
        // The admin server may refuse connections.
        let Ok(Ok(mut stream)) = tokio::time::timeout(PAGE, connect(target.admin, None)).await else { continue };
        stream.write_all(request.as_bytes()).await.ok();
        all.push(stream);
    }
    tokio::time::sleep(STAY).await;
    Ok(())
}

/// Requests that a browser sends for `<img src="http://127.0.0.1:9464/drain?wait">`, and similar ones.
async fn foreign_drain(target: Target) -> Outcome<()> {
    let own = target.admin.to_string();
    let origin = format!("origin: http://{EVIL}\r\nreferer: http://{EVIL}/\r\n");
    for path in ["/drain?wait", "/drain", "/drain/wait"] {
        for (method, host) in [("GET", EVIL), ("GET", &own), ("POST", EVIL), ("POST", &own)] {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{origin}content-length: 0\r\nconnection: close\r\n\r\n"
            );
            // `/drain/wait` may wait until the timeout. No request may succeed.
            let response = page(target.admin, &request, Duration::from_millis(300)).await.unwrap_or_default();
            target.expect(!matches!(status(&response), Some(200 | 202)), || {
                format!("{method} {path} with host {host} and a foreign origin: {:?}", response.lines().next())
            });
        }
    }
    let ready = page(target.admin, &get("/readyz", &own), PAGE).await?;
    target.expect(status(&ready) == Some(200), || "a foreign page drained the program".to_owned());
    let mut client = target.connect().await?;
    client.ask(&wire::post(CHAT, &[], b"{}"), FAST.len()).await.map(drop)
}

/// DNS rebinding: in the browser, the website's name resolves to the address of the admin server.
async fn rebinding(target: Target) -> Outcome<()> {
    let names = [EVIL.to_owned(), format!("{EVIL}:{}", target.admin.port()), "127.0.0.1.evil.example".to_owned()];
    for path in PRIVATE {
        for host in &names {
            let response = page(target.admin, &get(path, host), PAGE).await?;
            let refused = matches!(status(&response), Some(400..=499));
            target.expect(refused, || format!("{path} for host {host}: {:?}", response.lines().next()));
        }
        for host in own_names(target.admin) {
            let response = page(target.admin, &get(path, &host), PAGE).await?;
            target.expect(status(&response) == Some(200), || {
                format!("{path} for host {host}: {:?}", response.lines().next())
            });
        }
    }
    Ok(())
}

/// Host names that legitimate clients use.
fn own_names(admin: SocketAddr) -> [String; 3] {
    [admin.to_string(), admin.ip().to_string(), format!("localhost:{}", admin.port())]
}
