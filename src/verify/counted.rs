//! Counters of the admin server, read from its metrics page.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Method, header};

use crate::client::Caller;
use tokometer_engine::scrape::exposition::{Parser, Sample};

/// Maximum wait until finished requests are counted: a request may wait for its text to be tokenized, or for the
/// engine's span.
const SETTLE: Duration = Duration::from_secs(5);

/// Polling interval.
const POLL: Duration = Duration::from_millis(50);

/// Sources of output token counts that are not the engine's own.
const INEXACT: [&str; 2] = ["deltas_lower_bound", "tokenizer"];

/// A counter that a verification increases: its name, and the label whose values are read.
pub(super) type Counter = (&'static str, &'static str);

/// Finished requests, by recognised engine.
pub(super) const REQUESTS: Counter = ("tokometer_requests_total", "gen_ai_provider_name");
/// Output tokens, by source.
const TOKENS: Counter = ("tokometer_output_tokens_total", "source");
/// Requests with a queue time, by source.
pub(super) const QUEUE: Counter = ("tokometer_queue_time_seconds_count", "source");
/// Accepted connections.
pub(super) const CONNECTIONS: Counter = ("tokometer_connections_opened_total", "");

/// The counters of one server, by label value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted(BTreeMap<(Counter, String), f64>);

impl Counted {
    /// Parses a metrics page. If any series is labelled with `port`, only those series count.
    pub(super) fn read(page: &[u8], port: u16) -> Counted {
        let port = port.to_string();
        let of_port = |sample: &Sample<'_>| sample.labels.get(b"server_port") == Some(port.as_bytes());
        let mut known = false;
        each(page, |sample| known |= of_port(sample));
        let mut counted = Counted::default();
        each(page, |sample| {
            let counters = [REQUESTS, TOKENS, QUEUE, CONNECTIONS].into_iter();
            for counter in counters.filter(|(name, _)| sample.name == name.as_bytes() && (!known || of_port(sample))) {
                let label = String::from_utf8_lossy(sample.labels.get(counter.1.as_bytes()).unwrap_or_default());
                *counted.0.entry((counter, label.into_owned())).or_default() += sample.value;
            }
        });
        counted
    }

    /// The increase since `before`.
    pub(super) fn since(&self, before: &Counted) -> Counted {
        let gained = self.0.iter().map(|(key, value)| (key.clone(), value - before.0.get(key).unwrap_or(&0.0)));
        Counted(gained.filter(|(_, value)| *value > 0.0).collect())
    }

    /// The values of a counter, by label.
    pub(super) fn by_label(&self, counter: Counter) -> impl Iterator<Item = (&str, f64)> {
        let of_counter = self.0.iter().filter(move |((known, _), _)| *known == counter);
        of_counter.map(|((_, label), value)| (label.as_str(), *value))
    }

    pub(super) fn total(&self, counter: Counter) -> f64 {
        self.by_label(counter).map(|(_, value)| value).sum()
    }

    /// Output tokens by source.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (&str, f64)> {
        self.by_label(TOKENS)
    }

    /// Output tokens with an exact count.
    pub(super) fn exact_tokens(&self) -> f64 {
        self.tokens().filter(|(source, _)| !INEXACT.contains(source)).map(|(_, value)| value).sum()
    }
}

fn each(page: &[u8], mut found: impl FnMut(&Sample<'_>)) {
    let mut parser = Parser::default();
    parser.feed(page, &mut found);
    parser.finish(&mut found);
}

/// Reads the admin server's metrics page, for the server at this port.
///
/// # Errors
/// The reason, as the rest of a sentence that begins with "the admin server at ...".
pub(super) fn scrape(admin: &mut Caller, port: u16) -> Result<Counted, String> {
    let accept = (header::ACCEPT, HeaderValue::from_static("text/plain;version=0.0.4"));
    let agent = (header::USER_AGENT, HeaderValue::from_static("tokometer-verify"));
    let request = admin.target().request(Method::GET, "/metrics", [agent, accept], Bytes::new());
    let response = admin.ask(&request).map_err(|failure| failure.to_string())?;
    let body = response.body();
    if response.status() != 200 || memchr::memmem::find(body, b"tokometer_").is_none() {
        return Err(format!("returned status {} for /metrics, without tokometer metrics", response.status()));
    }
    Ok(Counted::read(body, port))
}

/// Polls until `requests` more requests than in `before` are counted, or until [`SETTLE`] has passed.
///
/// # Errors
/// As [`scrape`].
pub(super) fn settled(admin: &mut Caller, port: u16, before: &Counted, requests: u64) -> Result<Counted, String> {
    let begun = Instant::now();
    loop {
        let gained = scrape(admin, port)?.since(before);
        if gained.total(REQUESTS) >= requests as f64 || begun.elapsed() > SETTLE {
            return Ok(gained);
        }
        std::thread::sleep(POLL);
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
        let totals = (counted.total(REQUESTS), counted.exact_tokens(), counted.total(CONNECTIONS));
        assert_eq!(totals, (6.0, 160.0, 3.0));
        assert_eq!(counted.by_label(REQUESTS).collect::<Vec<_>>(), [("", 1.0), ("vllm", 5.0)]);
        // The proxy may reach the server at another port. In that case all series count.
        assert_eq!(Counted::read(PAGE.as_bytes(), 1234).total(REQUESTS), 76.0);
    }

    #[test]
    fn since_returns_the_increase() {
        let (before, now) = (Counted::default(), Counted::read(PAGE.as_bytes(), 8001));
        assert_eq!(now.since(&before).by_label(QUEUE).collect::<Vec<_>>(), [("in_band", 5.0)]);
        assert_eq!(now.since(&now), Counted::default());
    }
}
