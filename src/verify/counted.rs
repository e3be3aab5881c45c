//! Counters of the admin server, read from its metrics page.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::client::Caller;
use crate::verify::canary;
use crate::verify::settings::Settings;
use tokometer_engine::scrape::exposition::{Parser, Sample};

/// Maximum wait until finished requests are counted: a request may wait for its text to be tokenized, or for the
/// engine's span.
const SETTLE: Duration = Duration::from_secs(5);

/// Polling interval.
const POLL: Duration = Duration::from_millis(50);

/// Sources of output token counts that are not the engine's own.
const INEXACT: [&str; 2] = ["deltas_lower_bound", "tokenizer"];

/// A counter that a verification increases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counter {
    /// Finished requests, by recognised engine.
    Requests,
    /// Output tokens, by source.
    Tokens,
    /// Requests with a queue time, by source.
    Queue,
    /// Accepted connections.
    Connections,
}

impl Counter {
    /// The counter with this name, and the label whose values are read.
    fn named(name: &[u8]) -> Option<(Counter, &'static [u8])> {
        match name {
            b"tokometer_requests_total" => Some((Counter::Requests, b"gen_ai_provider_name")),
            b"tokometer_output_tokens_total" => Some((Counter::Tokens, b"source")),
            b"tokometer_queue_time_seconds_count" => Some((Counter::Queue, b"source")),
            b"tokometer_connections_opened_total" => Some((Counter::Connections, b"")),
            _ => None,
        }
    }
}

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
            if let Some((counter, label)) = Counter::named(sample.name).filter(|_| !known || of_port(sample)) {
                let label = String::from_utf8_lossy(sample.labels.get(label).unwrap_or_default()).into_owned();
                *counted.0.entry((counter, label)).or_default() += sample.value;
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

    /// Output tokens with an exact count.
    pub(super) fn exact_tokens(&self) -> f64 {
        self.by_label(Counter::Tokens).filter(|(source, _)| !INEXACT.contains(source)).map(|(_, value)| value).sum()
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
pub(super) fn scrape(settings: &Settings, admin: &mut Caller) -> Result<Counted, String> {
    let bare = Settings { headers: Vec::new(), ..settings.clone() };
    let request = canary::get(&bare, &settings.admin, "/metrics", "text/plain;version=0.0.4");
    let response = admin.ask(&request).map_err(|failure| failure.to_string())?;
    let body = response.body();
    if response.status() != 200 || !body.windows(10).any(|word| word == b"tokometer_") {
        return Err(format!("returned status {} for /metrics, without tokometer metrics", response.status()));
    }
    Ok(Counted::read(&body, settings.upstream.port()))
}

/// Polls until `requests` more requests than in `before` are counted, or until [`SETTLE`] has passed.
///
/// # Errors
/// As [`scrape`].
pub(super) fn settled(
    settings: &Settings,
    admin: &mut Caller,
    before: &Counted,
    requests: u64,
) -> Result<Counted, String> {
    let begun = Instant::now();
    loop {
        let gained = scrape(settings, admin)?.since(before);
        if gained.total(Counter::Requests) >= requests as f64 || begun.elapsed() > SETTLE {
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
        let totals = (counted.total(Counter::Requests), counted.exact_tokens(), counted.total(Counter::Connections));
        assert_eq!(totals, (6.0, 160.0, 3.0));
        assert_eq!(counted.by_label(Counter::Requests).collect::<Vec<_>>(), [("", 1.0), ("vllm", 5.0)]);
        // The proxy may reach the server at another port. In that case all series count.
        assert_eq!(Counted::read(PAGE.as_bytes(), 1234).total(Counter::Requests), 76.0);
    }

    #[test]
    fn since_returns_the_increase() {
        let (before, now) = (Counted::default(), Counted::read(PAGE.as_bytes(), 8001));
        assert_eq!(now.since(&before).by_label(Counter::Queue).collect::<Vec<_>>(), [("in_band", 5.0)]);
        assert_eq!(now.since(&now), Counted::default());
    }
}
