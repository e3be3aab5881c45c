//! Both exporters behind the sink.

use std::sync::Arc;

use crate::export::Page;
use crate::export::ProcessStats;
use crate::export::Settings;
use crate::export::observed;
use crate::export::page::Content;
use crate::export::recorder::Recorder;
use crate::export::series::Families;
use crate::export::series::Forms;
use crate::export::telemetry::Telemetry;
use crate::measure::Detach;
use crate::measure::Labels;
use crate::measure::Live;
use crate::measure::Phase;
use crate::measure::Record;
use crate::measure::Sink;

/// Why the exporters cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {}

/// The Prometheus page, OTLP metrics and OTLP traces, fed by one sink.
pub struct Exporters {
    families: Arc<Families>,
    recorder: Recorder,
    telemetry: Arc<Telemetry>,
    process: Arc<dyn ProcessStats>,
    servers: Vec<(String, Option<u16>)>,
    resource: Vec<(String, String)>,
}

impl std::fmt::Debug for Exporters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporters").finish_non_exhaustive()
    }
}

impl Exporters {
    /// Starts what the settings ask for. Without an OTLP endpoint nothing of OpenTelemetry runs.
    pub fn start(settings: &Settings, process: Arc<dyn ProcessStats>) -> Result<Arc<Exporters>, Error> {
        let forms = Forms { native: settings.native_histograms, exemplars: settings.exemplars };
        let families = Arc::new(Families::new(settings.semconv, None, forms));
        let telemetry = Arc::new(Telemetry::default());
        let recorder = Recorder::new(Arc::clone(&families), Arc::clone(&telemetry), settings);
        Ok(Arc::new(Exporters {
            families,
            recorder,
            telemetry,
            process,
            servers: settings.servers.clone(),
            resource: settings.resource.iter().map(|(name, value)| (label(name), value.clone())).collect(),
        }))
    }

    /// The page for a scraper that sent this `Accept` header. Called from the admin's threads.
    pub fn scrape(&self, accept: Option<&str>) -> Page {
        let mut families = self.families.snapshot();
        let observations = observed::observe(&self.process.snapshot(), &self.telemetry, &self.servers);
        observed::join(&mut families, observations);
        Content { families, resource: self.resource.clone() }.write(accept)
    }
}

/// A resource attribute's name as a Prometheus label.
fn label(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("key_{name}") } else { name }
}

impl Sink for Exporters {
    fn in_flight(&self, pair: usize, phase: Phase, delta: i64) {
        self.recorder.in_flight(pair, phase, delta);
    }

    fn live(&self, labels: &Labels) -> Arc<dyn Live> {
        self.recorder.handles(labels, true).live()
    }

    fn record(&self, record: &Record) {
        self.recorder.record(record, None);
    }

    fn detached(&self, pair: usize, why: Detach) {
        self.recorder.detached(pair, why);
    }
}
