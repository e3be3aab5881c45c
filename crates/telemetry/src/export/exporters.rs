//! The sink that feeds the Prometheus and OTLP exporters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::export::advice::Inexact;
use crate::export::collect::Owners;
use crate::export::collect::telemetry::{Listeners, Telemetry};
use crate::export::otlp::{Otlp, Setup};
use crate::export::page::Content;
use crate::export::recorder::Recorder;
use crate::export::series::Families;
use crate::export::series::histograms::Histograms;
use crate::export::trace::Tracer;
use crate::export::{Page, Settings};
use tokometer_engine::scrape;
use tokometer_metrics::{Collect, Servers, Values};
use tokometer_observe::measure::{Detach, Labels, Live, Message, Outcome, Phase, Record, Sink, Unread};

/// Reasons why the exporters cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The settings of an OTLP endpoint are invalid.
    #[error("the OTLP endpoint {address} cannot be used: {reason}")]
    Endpoint {
        /// Scheme, host and port of the endpoint's URL.
        address: String,
        /// The reason.
        reason: String,
    },
    /// A PEM file for an OTLP endpoint is invalid.
    #[error("{} cannot be used for OTLP over TLS: {reason}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The system could not provide a thread or runtime for OTLP.
    #[error("cannot start the OTLP thread: {0}")]
    Runtime(#[source] std::io::Error),
}

/// The Prometheus page, OTLP metrics and OTLP traces, fed by one sink.
pub struct Exporters {
    families: Arc<Families>,
    recorder: Arc<Recorder>,
    listeners: Arc<Listeners>,
    tracer: Tracer,
    otlp: Otlp,
    owners: Arc<Owners>,
    resource: Vec<(String, String)>,
    lower_bounds: Inexact,
}

impl std::fmt::Debug for Exporters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporters").finish_non_exhaustive()
    }
}

impl Exporters {
    /// Starts the configured exporters. Without an OTLP endpoint, no OpenTelemetry code runs.
    pub fn start(settings: &Settings) -> Result<Arc<Exporters>, Error> {
        let telemetry = Arc::new(Telemetry::default());
        let setup = Setup::new(settings, &telemetry)?;
        let servers = Servers::new(&settings.listeners);
        let tracer = Tracer::new(settings, servers.clone(), setup.spans.clone(), Arc::clone(&telemetry));
        let families = Arc::new(Families::new(settings));
        let owners = Arc::new(Owners::new(servers.clone()));
        let listeners = Arc::new(Listeners::new(settings.listeners.len()));
        owners.add(Arc::clone(&telemetry) as Arc<dyn Collect>);
        owners.add(Arc::clone(&listeners) as Arc<dyn Collect>);
        let recorder = Arc::new(Recorder::new(Arc::clone(&families), telemetry, servers, settings));
        let otlp = setup.run({
            let (owners, recorder, families) = (Arc::clone(&owners), Arc::clone(&recorder), Arc::clone(&families));
            Box::new(move || {
                let observed = observe(&owners, &families, &recorder);
                families.all(observed)
            })
        })?;
        let resource = info_labels(&settings.resource);
        let lower_bounds = Inexact::default();
        Ok(Arc::new(Exporters { families, recorder, listeners, tracer, otlp, owners, resource, lower_bounds }))
    }

    /// Keeps the trace of every request for which `evaluate` reports a missed objective, up to the cap on kept traces.
    /// `evaluate` is called while a request is recorded, so it must return quickly. Only the first call has an effect.
    pub fn keep_when(&self, evaluate: impl Fn(&Record) -> bool + Send + Sync + 'static) {
        self.tracer.evaluate.set(Box::new(evaluate)).ok();
    }

    /// Adds an owner whose values are exported from now on.
    pub fn add(&self, owner: Arc<dyn Collect>) {
        self.owners.add(owner);
    }

    /// Creates histograms with attributes chosen by their owner.
    pub fn histograms(&self) -> Histograms {
        Histograms::new(Arc::clone(&self.families))
    }

    /// Adds the engine's state to the spans of requests. `state` returns the state of a listener's engine at a given
    /// moment, and the age of that state. Only the first call has an effect.
    pub fn join_engine_state(
        &self,
        state: impl Fn(usize, Instant) -> Option<(Arc<scrape::State>, Duration)> + Send + Sync + 'static,
    ) {
        self.tracer.engine_state.set(Box::new(state)).ok();
    }

    /// Counts requests without a record, by listener, route and outcome.
    pub fn count_unrecorded(&self, labels: &Labels, outcome: Outcome, requests: u64) {
        self.recorder.count_unrecorded(labels, outcome, requests);
    }

    /// Exports pending OTLP data now; returns true when all of it was delivered within `limit`. Blocks the caller,
    /// never the data path.
    pub fn flush(&self, limit: Duration) -> bool {
        self.otlp.flush(limit)
    }

    /// Exports a last time and stops the OTLP exporters; returns true when everything was delivered. Waits for at most
    /// `limit` and never more than 1.5 s. The page can still be scraped afterwards.
    pub fn shutdown(&self, limit: Duration) -> bool {
        self.otlp.shutdown(limit)
    }

    /// The page for a scraper that sent this `Accept` header. Called from the admin threads.
    pub fn scrape(&self, accept: Option<&str>) -> Page {
        let families = self.families.page(observe(&self.owners, &self.families, &self.recorder));
        Content { families, resource: self.resource.clone() }.write(accept)
    }
}

/// Brings the series up to date; returns the values that have no series.
fn observe(owners: &Owners, families: &Families, recorder: &Recorder) -> Values {
    // Must be the first step, because it records all ended requests.
    let mut observed = owners.collect();
    families.observe(&mut observed);
    recorder.settle();
    observed
}

/// Resource attributes as labels of `target_info`. If several names map to one label, their values are joined with `;`,
/// as the OpenTelemetry specification requires (compatibility/prometheus_and_openmetrics.md): label names must be
/// unique.
fn info_labels(resource: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> = Vec::with_capacity(resource.len());
    for (name, value) in resource {
        let label = label(name);
        match labels.iter_mut().find(|(known, _)| *known == label) {
            Some((_, joined)) => {
                joined.push(';');
                joined.push_str(value);
            }
            None => labels.push((label, value.to_owned())),
        }
    }
    labels
}

/// Converts an attribute name to a Prometheus label. A label must not start with a digit. Prometheus reserves names
/// that start with two underscores (`__name__` would rename the metric).
fn label(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let reserved = name.starts_with(|c: char| c.is_ascii_digit()) || name.starts_with("__");
    if reserved { format!("key_{name}") } else { name }
}

impl Sink for Exporters {
    fn in_flight(&self, listener: usize, phase: Phase, delta: i64) {
        self.listeners.in_flight(listener, phase, delta);
    }

    fn live(&self, labels: &Labels) -> Option<Arc<dyn Live>> {
        Some(self.recorder.sets.live(labels))
    }

    fn record(&self, record: &Arc<Record>) {
        let exemplar = self.tracer.trace(record);
        self.recorder.record(record, exemplar);
        if record.late_tokens() > 0 {
            self.recorder.sets.live(&record.labels).reconcile(record.late_tokens());
        }
        self.lower_bounds.note(record);
    }

    fn detached(&self, listener: usize, why: Detach) {
        self.listeners.detached(listener, why);
    }

    fn unparsed(&self, listener: usize, of: Message, bytes: usize) {
        self.listeners.unparsed(listener, of, bytes);
    }

    fn unread(&self, listener: usize, of: Message, why: Unread) {
        self.listeners.unread(listener, of, why);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tokometer_metrics::Listener;
    use tokometer_observe::measure::{Count, CountSource, Gap};

    fn listener() -> Listener {
        Listener { name: "one".to_owned(), address: "127.0.0.1".to_owned(), port: None }
    }

    #[test]
    fn data_path_takes_no_lock_of_recording_or_scraping() {
        let settings = Settings { listeners: vec![listener()], ..Settings::default() };
        let exporters = Exporters::start(&settings).unwrap();
        let use_it = |model: &str| {
            let labels = Labels { response_model: Some(model.into()), ..Labels::default() };
            let live = exporters.live(&labels).unwrap();
            live.progress(&[Gap { gap: Duration::from_millis(9), tokens: Some(1) }], 2);
            live.stalled();
            live.reconcile(3);
            exporters.in_flight(0, Phase::Streaming, 1);
            exporters.detached(0, Detach::Panic);
            exporters.unread(0, Message::Response, Unread::Corrupt);
        };
        use_it("known");
        exporters.scrape(None);
        // This thread holds the locks. If the data path took one of them, the test would hang.
        exporters.recorder.while_locked(|| {
            use_it("known");
            use_it("new");
        });
        let page = String::from_utf8(exporters.scrape(None).body).unwrap();
        let tokens = page.lines().filter(|line| line.starts_with("tokometer_live_tokens_total{"));
        let tokens: f64 = tokens.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        assert_eq!(tokens, 15.0, "{page}");
    }

    #[test]
    fn live_tokens_are_corrected_by_a_count_that_is_known_later() {
        let settings = Settings { listeners: vec![listener()], ..Settings::default() };
        let exporters = Exporters::start(&settings).unwrap();
        let labels = Labels { response_model: Some("m".into()), ..Labels::default() };
        let live_tokens = || {
            let page = String::from_utf8(exporters.scrape(None).body).unwrap();
            let line = page.lines().find(|line| line.starts_with("tokometer_live_tokens_total{")).map(str::to_owned);
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        };
        exporters.live(&labels).unwrap().progress(&[], 5);
        let record = |live_tokens, tokens, source| {
            Record::new(labels.clone(), Instant::now(), Outcome::Ok, Duration::ZERO).with(|r| {
                r.tokens.live = live_tokens;
                r.tokens.output = Some(Count { tokens, source });
            })
        };
        exporters.record(&Arc::new(record(Some(5), 8, CountSource::EngineSpan)));
        assert_eq!(live_tokens(), Some(8.0));
        exporters.record(&Arc::new(record(Some(5), 4, CountSource::EngineSpan)));
        exporters.record(&Arc::new(record(None, 7, CountSource::Tokenizer)));
        assert_eq!(live_tokens(), Some(8.0), "nothing is taken away, and nothing is added without live counts");
    }

    #[test]
    fn resource_attributes_with_equal_labels_are_joined() {
        let entry = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let resource = [("2nd", "x"), ("__name__", "up"), ("_a", "y"), ("a.b", "1"), ("a_b", "3")].map(entry);
        let labels = [("key_2nd", "x"), ("key___name__", "up"), ("_a", "y"), ("a_b", "1;3")].map(entry);
        assert_eq!(info_labels(&resource.into()), labels);
    }
}
