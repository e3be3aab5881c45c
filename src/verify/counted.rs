//! Counters of the admin server, read from its metrics page.

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

use crate::client::Caller;
use crate::verify::canary;
use crate::verify::settings::Settings;
use tokometer_engine::scrape::exposition::Parser;
use tokometer_engine::scrape::exposition::Sample;

/// Maximum wait until finished requests are counted: a request may wait for its text to be tokenized, or for the
/// engine's span.
const SETTLE: Duration = Duration::from_secs(5);

/// Polling interval.
const LOOK: Duration = Duration::from_millis(50);

/// Sources of output token counts that are not the engine's own.
const INEXACT: &[&[u8]] = &[b"deltas_lower_bound", b"tokenizer"];

/// The counters of one server that a verification increases.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// Finished requests.
    pub(super) requests: f64,
    /// Output tokens with an exact count.
    pub(super) exact_tokens: f64,
    /// Output tokens by source.
    pub(super) tokens: BTreeMap<String, f64>,
    /// Requests with a queue time, by source.
    pub(super) queue: BTreeMap<String, f64>,
    /// Accepted connections.
    pub(super) connections: f64,
    /// Requests by recognised engine.
    pub(super) engines: BTreeMap<String, f64>,
}

impl Counted {
    /// Parses a metrics page. If any series is labelled with `port`, only those series count.
    pub(super) fn read(page: &[u8], port: u16) -> Counted {
        let port = port.to_string();
        let of_port = |sample: &Sample<'_>| sample.labels.get(b"server_port") == Some(port.as_bytes());
        let mut known = false;
        each(page, |sample| known |= of_port(sample));
        let mut counted = Counted::default();
        each(page, |sample| {
            if known && !of_port(sample) {
                return;
            }
            let label = |name: &[u8]| String::from_utf8_lossy(sample.labels.get(name).unwrap_or_default()).into_owned();
            match sample.name {
                b"tokometer_requests_total" => {
                    counted.requests += sample.value;
                    *counted.engines.entry(label(b"gen_ai_provider_name")).or_default() += sample.value;
                }
                b"tokometer_output_tokens_total" => {
                    let source = sample.labels.get(b"source").unwrap_or_default();
                    if !INEXACT.contains(&source) {
                        counted.exact_tokens += sample.value;
                    }
                    *counted.tokens.entry(label(b"source")).or_default() += sample.value;
                }
                b"tokometer_queue_time_seconds_count" => {
                    *counted.queue.entry(label(b"source")).or_default() += sample.value;
                }
                b"tokometer_connections_opened_total" => counted.connections += sample.value,
                _ => {}
            }
        });
        counted
    }

    /// The increase since `before`.
    pub(super) fn since(&self, before: &Counted) -> Counted {
        let less = |now: &BTreeMap<String, f64>, then: &BTreeMap<String, f64>| {
            let gained = |(name, value): (&String, &f64)| (name.clone(), value - then.get(name).unwrap_or(&0.0));
            now.iter().map(gained).filter(|(_, value)| *value > 0.0).collect()
        };
        Counted {
            requests: self.requests - before.requests,
            exact_tokens: self.exact_tokens - before.exact_tokens,
            tokens: less(&self.tokens, &before.tokens),
            queue: less(&self.queue, &before.queue),
            connections: self.connections - before.connections,
            engines: less(&self.engines, &before.engines),
        }
    }
}

fn each(page: &[u8], mut found: impl FnMut(&Sample<'_>)) {
    let mut parser = Parser::default();
    parser.feed(page, &mut found);
    parser.finish(&mut found);
}

/// Reads the admin server's metrics page.
///
/// # Errors
/// The reason, as the rest of a sentence that begins with "the admin server at ...".
pub(super) fn look(settings: &Settings, admin: &mut Caller) -> Result<Counted, String> {
    let bare = Settings { headers: Vec::new(), ..settings.clone() };
    let request = canary::get(&bare, &settings.admin, "/metrics", "text/plain;version=0.0.4");
    let response = admin.ask(&request).map_err(|failure| failure.to_string())?;
    let body = response.body();
    if response.status() != 200 || !body.windows(10).any(|word| word == b"tokometer_") {
        return Err(format!("answers /metrics with status {}, without tokometer metrics", response.status()));
    }
    Ok(Counted::read(&body, settings.upstream.port()))
}

/// Polls until `requests` more requests than in `before` are counted, or until [`SETTLE`] has passed.
///
/// # Errors
/// As [`look`].
pub(super) fn settled(
    settings: &Settings,
    admin: &mut Caller,
    before: &Counted,
    requests: u64,
) -> Result<Counted, String> {
    let begun = Instant::now();
    loop {
        let gained = look(settings, admin)?.since(before);
        if gained.requests >= requests as f64 || begun.elapsed() > SETTLE {
            return Ok(gained);
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# TYPE tokometer_requests counter
tokometer_requests_total{gen_ai_provider_name=\"vllm\",server_port=\"8001\",outcome=\"ok\"} 5
tokometer_requests_total{gen_ai_provider_name=\"\",server_port=\"8001\",outcome=\"http_4xx\"} 1
tokometer_requests_total{gen_ai_provider_name=\"vllm\",server_port=\"9001\",outcome=\"ok\"} 70
tokometer_output_tokens_total{server_port=\"8001\",source=\"usage\"} 160
tokometer_output_tokens_total{server_port=\"8001\",source=\"deltas_lower_bound\"} 30
tokometer_output_tokens_total{server_port=\"8001\",source=\"tokenizer\"} 9
tokometer_queue_time_seconds_count{server_port=\"8001\",source=\"in_band\"} 5
tokometer_connections_opened_total{server_port=\"8001\"} 3
";

    #[test]
    fn only_series_of_the_server_port_count() {
        let counted = Counted::read(PAGE.as_bytes(), 8001);
        assert_eq!((counted.requests, counted.exact_tokens, counted.connections), (6.0, 160.0, 3.0));
        assert_eq!(counted.engines["vllm"], 5.0);
        // The proxy may know the server under another port: then all series count.
        assert_eq!(Counted::read(PAGE.as_bytes(), 1234).requests, 76.0);
    }

    #[test]
    fn since_returns_the_increase() {
        let (before, now) = (Counted::default(), Counted::read(PAGE.as_bytes(), 8001));
        assert_eq!(now.since(&before).queue, BTreeMap::from([("in_band".to_owned(), 5.0)]));
        let none = now.since(&now);
        assert_eq!((none.requests, none.exact_tokens), (0.0, 0.0));
        assert!(none.queue.is_empty() && none.tokens.is_empty() && none.engines.is_empty());
    }
}
