//! Everything that receives request records: exporters, objectives, accounting, live state, the access log and the
//! engine's spans.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer_engine::engine_spans::{self, Collector};
use tokometer_engine::scrape::Engines;
use tokometer_metrics::Collect;
use tokometer_observe::measure::{Labels, Sink};
use tokometer_telemetry::accounting::{self, Accounting};
use tokometer_telemetry::backlog::Backlog;
use tokometer_telemetry::export::{self, CollectorClient, Exporters};
use tokometer_telemetry::live::InFlight;
use tokometer_telemetry::slo::Evaluator;
use tokometer_telemetry::tokenizer::{self, Counting, Vocabularies};

use crate::app::access_log::{self, AccessLog};
use crate::app::pages::control::LAST_TELEMETRY;
use crate::app::tee::Tee;
use crate::config::Settings;

/// Maximum time for counting the tokens of waiting responses at shutdown.
const LAST_COUNTS: Duration = Duration::from_millis(500);
/// Maximum time for forwarding the engine's last span messages.
const LAST_SPANS: Duration = Duration::from_millis(500);

/// Why the receivers cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An exporter cannot start.
    #[error(transparent)]
    Export(#[from] export::Error),
    /// The access log cannot be opened.
    #[error(transparent)]
    AccessLog(#[from] access_log::Error),
    /// A vocabulary cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// The key file of the tenants cannot be used.
    #[error(transparent)]
    Accounting(#[from] accounting::Error),
    /// A thread cannot be started.
    #[error("cannot start the thread that {0}: {1}")]
    Thread(&'static str, #[source] std::io::Error),
    /// The receiver of the engine's spans cannot start.
    #[error(transparent)]
    EngineSpans(#[from] engine_spans::Error),
}

impl Error {
    /// True if a configured address or the content of a configured file is invalid.
    pub(super) fn is_config_error(&self) -> bool {
        match self {
            Error::Export(error) => !matches!(error, export::Error::Runtime(_)),
            Error::EngineSpans(error) => matches!(error, engine_spans::Error::Bind { .. }),
            Error::AccessLog(_) | Error::Tokenizer(_) | Error::Accounting(_) => true,
            Error::Thread(..) => false,
        }
    }
}

/// The running receivers of request records.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) exporters: Arc<Exporters>,
    pub(super) access_log: Option<Arc<AccessLog>>,
    pub(super) spans: Option<engine_spans::Receiver>,
    pub(super) evaluator: Arc<Evaluator>,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) backlog: Arc<Backlog>,
    accounting: Arc<Accounting>,
    counting: Arc<Counting>,
}

impl Recording {
    /// Starts the receivers. `also` is an additional sink; `engines` are the scraped engines.
    pub(super) fn start(
        settings: &Settings,
        also: Option<Arc<dyn Sink>>,
        engines: Engines,
    ) -> Result<Recording, Error> {
        let thread = |what| move |error| Error::Thread(what, error);
        let vocabularies = Vocabularies::read(&settings.tokenizer)?;
        let evaluator = Arc::new(Evaluator::new(settings.slo.clone()));
        let accounting = Arc::new(Accounting::new(settings.accounting.clone())?);
        let exporters = Exporters::start(&settings.export)?;
        accounting.record_latencies_in(exporters.histograms());
        exporters.join_engine_state(move |listener, moment| engines.at(listener, moment));
        let objectives = Arc::clone(&evaluator);
        exporters.keep_when(move |record| objectives.is_broken_by(record));
        let access_log = settings.access_log.as_ref().map(AccessLog::open).transpose()?.map(Arc::new);
        let mut sinks: Vec<Arc<dyn Sink>> =
            vec![Arc::clone(&exporters) as Arc<dyn Sink>, Arc::clone(&accounting) as Arc<dyn Sink>];
        sinks.extend(access_log.clone().map(|log| log as Arc<dyn Sink>));
        sinks.extend(also);
        let mut sink = Tee::of(sinks);
        let spans = match &settings.engine_spans {
            Some(receiver) => {
                let collector = settings.export.traces.endpoint.as_ref().map(CollectorClient::new).transpose()?;
                let collector = collector.map(|collector| Arc::new(collector) as Arc<dyn Collector>);
                Some(engine_spans::Receiver::start(receiver, Arc::clone(&sink), collector)?)
            }
            None => None,
        };
        if let Some(spans) = &spans {
            sink = spans.stage();
        }
        let counting = Counting::start(sink, vocabularies, settings.tokenizer.queue_responses);
        let counting = Arc::new(counting.map_err(thread("counts tokens"))?);
        // The evaluator is called before the token counting, so that requests are evaluated without delay.
        let sinks = vec![Arc::clone(&evaluator) as Arc<dyn Sink>, Arc::clone(&counting) as Arc<dyn Sink>];
        let unrecorded = Arc::clone(&exporters);
        let count = move |labels: &Labels, outcome, n| unrecorded.count_unrecorded(labels, outcome, n);
        let backlog = Backlog::start(Tee::of(sinks), settings.listeners.len(), Box::new(count));
        let backlog = Arc::new(backlog.map_err(thread("records ended requests"))?);
        let names: Vec<String> = settings.listeners.iter().map(|listener| listener.name.clone()).collect();
        let in_flight = InFlight::start(settings.live.clone(), &names, Instant::now());
        let in_flight = in_flight.map_err(thread("keeps ended requests"))?;
        let owners: [Arc<dyn Collect>; 5] = [
            Arc::clone(&evaluator) as Arc<dyn Collect>,
            Arc::clone(&accounting) as Arc<dyn Collect>,
            Arc::clone(&in_flight) as Arc<dyn Collect>,
            Arc::clone(&counting) as Arc<dyn Collect>,
            Arc::clone(&backlog) as Arc<dyn Collect>,
        ];
        owners.into_iter().for_each(|owner| exporters.add(owner));
        spans.iter().for_each(|spans| exporters.add(spans.measurements()));
        access_log.iter().for_each(|log| exporters.add(Arc::clone(log) as Arc<dyn Collect>));
        Ok(Recording { exporters, access_log, spans, evaluator, in_flight, backlog, accounting, counting })
    }

    /// The sink of the observers.
    pub(super) fn sink(&self) -> Arc<dyn Sink> {
        Tee::of(vec![Arc::clone(&self.in_flight) as Arc<dyn Sink>, Arc::clone(&self.backlog) as Arc<dyn Sink>])
    }

    /// Applies new settings: all of them or none.
    pub(super) fn reload(&self, settings: &Settings) -> Result<(), Error> {
        let vocabularies = Vocabularies::read(&settings.tokenizer)?;
        let rules = accounting::Rules::new(settings.accounting.clone())?;
        // Requests that have ended are counted with the old settings.
        self.backlog.settle();
        let counting = self.counting.reload(vocabularies, settings.tokenizer.queue_responses);
        counting.map_err(|error| Error::Thread("counts tokens", error))?;
        // Nothing below this line can fail, so that either all settings are applied or none.
        self.accounting.reload(rules);
        self.evaluator.reload(settings.slo.clone());
        self.in_flight.reload(settings.live.clone());
        Ok(())
    }

    /// Records what has ended, and sends the last telemetry. `before_last` is called before the last metrics are sent.
    pub(super) fn stop(self, before_last: impl FnOnce()) {
        let Recording { exporters, access_log, spans, backlog, counting, .. } = self;
        backlog.stop();
        counting.stop(LAST_COUNTS);
        before_last();
        if let Some(spans) = spans {
            spans.stop(LAST_SPANS);
        }
        if let Some(log) = access_log {
            log.flush(LAST_TELEMETRY);
        }
        exporters.shutdown(LAST_TELEMETRY);
    }
}
