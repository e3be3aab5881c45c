//! The engines whose metrics are scraped, and their addresses.

use std::time::Duration;

use crate::config::checked::Problems;
use crate::config::checked::size;
use crate::config::raw::PairScrape;
use crate::config::raw::Raw;
use tokometer_decode::Engine;
use tokometer_engine::scrape;
use tokometer_engine::scrape::Target;
use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::Pair;

pub(super) fn checked(
    raw: &Raw,
    pairs: &[Pair],
    engine: Option<&'static str>,
    problems: &mut Problems<'_>,
) -> scrape::Settings {
    let all = &raw.scrape;
    let targets = raw.pairs.iter().enumerate().map(|(index, own)| {
        let upstream = pairs.get(index).map(|pair| &pair.upstream);
        target(raw, index, &own.scrape, upstream, engine, problems)
    });
    scrape::Settings {
        targets: targets.collect(),
        interval: Duration::from_millis(all.interval_ms),
        timeout: Duration::from_millis(all.timeout_ms),
        page_bytes: size(all.page_bytes),
    }
}

fn target(
    raw: &Raw,
    index: usize,
    own: &PairScrape,
    upstream: Option<&Address>,
    engine: Option<&'static str>,
    problems: &mut Problems<'_>,
) -> Option<Target> {
    let all = &raw.scrape;
    let at = |is_own: bool, key: &str| {
        if is_own { format!("pairs[{index}].scrape.{key}") } else { format!("scrape.{key}") }
    };
    let enabled = own.enabled.or(all.enabled);
    let path = own.path.as_ref().or(all.path.as_ref());
    let path_at = at(own.path.is_some(), "path");
    if let Some(path) = path {
        check_path(path, &path_at, engine, problems);
    }
    let port = own.port_number.or(all.port_number).and_then(|port| u16::try_from(port).ok());
    if matches!(upstream, Some(Address::Unix(_))) && port.is_some() {
        problems.error(
            &at(own.port_number.is_some(), "port_number"),
            "the upstream is a Unix socket, which has no port; remove this key, or set `scrape.enabled: false` for this listener",
        );
    }
    if upstream == Some(&Address::OriginalDestination) {
        if enabled == Some(true) {
            problems.error(
                &at(own.enabled.is_some(), "enabled"),
                "with `original` the server's address is unknown, so its metrics cannot be scraped; write the server's address as the upstream, or remove this key",
            );
        }
        return None;
    }
    let page = engine.and_then(Engine::of_name).filter(|_| path.is_none()).map(|engine| engine.info().page);
    if enabled == Some(false) || page.is_some_and(|page| page.is_none()) {
        return None;
    }
    let own_port = page.flatten().and_then(|page| page.port);
    let port = port.or(own_port.filter(|_| matches!(upstream, Some(Address::Tcp { .. }))));
    Some(Target { path: path.cloned(), port, engine, draining: enabled == Some(true) })
}

fn check_path(path: &str, at: &str, engine: Option<&str>, problems: &mut Problems<'_>) {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if !path.starts_with('/') || !path.bytes().all(plain) {
        problems.error(at, format!("invalid path `{path}`; it must start with `/`, such as /metrics"));
    } else if engine == Some("tensorrt_llm") && path.trim_end_matches('/') == "/metrics" {
        problems.error(
            at,
            "scraping TensorRT-LLM's /metrics removes its values for other scrapers; write /prometheus/metrics, or null",
        );
    }
}
