//! The whole instrument: exporters, data path, access log and admin server, started and ended in their order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use std::time::Instant;

use crate::admin;
use crate::app::access_log;
use crate::app::access_log::AccessLog;
use crate::app::backlog::Backlog;
use crate::app::collector;
use crate::app::controlled::Controlled;
use crate::app::descriptors;
use crate::app::engines;
use crate::app::going_on;
use crate::app::intercepting::Intercepting;
use crate::app::judging::Judging;
use crate::app::live_page;
use crate::app::path;
use crate::app::path::{DataPath, Handles};
use crate::app::stats::Figures;
use crate::app::tee::Tee;
use crate::config::Settings;
use tokometer_engine::engine_spans;
use tokometer_engine::scrape::Scraper;
use tokometer_observe::measure::Labels;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_proxy::listen::Address;
use tokometer_telemetry::accounting;
use tokometer_telemetry::accounting::Ledger;
use tokometer_telemetry::export;
use tokometer_telemetry::export::Exporters;
use tokometer_telemetry::live::InFlight;
use tokometer_telemetry::slo;
use tokometer_telemetry::slo::Judge;
use tokometer_telemetry::tokenizer;
use tokometer_telemetry::tokenizer::Counting;
use tokometer_telemetry::tokenizer::Vocabularies;

/// After the grace period, connections that are closed by force get this long to be recorded.
const FORCED: Duration = Duration::from_millis(500);

/// Most time for the last telemetry.
pub(super) const LAST_TELEMETRY: Duration = Duration::from_millis(1500);

/// Most time for answers that wait to be counted, when all ends.
const LAST_COUNTS: Duration = Duration::from_millis(500);
/// Most time for passing on the last messages of the engine.
const LAST_SPANS: Duration = Duration::from_millis(500);

/// Why the instrument cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An exporter.
    #[error(transparent)]
    Export(#[from] export::Error),
    /// The access log.
    #[error(transparent)]
    AccessLog(#[from] access_log::Error),
    /// A vocabulary.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] accounting::Error),
    /// The thread that counts.
    #[error("cannot start the thread that counts tokens: {0}")]
    Counting(#[source] std::io::Error),
    /// The thread that tells what ended.
    #[error("cannot start the thread that records what ended: {0}")]
    Backlog(#[source] std::io::Error),
    /// Reading the engines' metrics.
    #[error(transparent)]
    Engines(#[from] engines::Error),
    /// The thread that keeps ended exchanges.
    #[error("cannot start the thread that keeps ended exchanges: {0}")]
    Live(#[source] std::io::Error),
    /// The thread that looks at who waits.
    #[error("cannot start the thread that judges who waits: {0}")]
    Judging(#[source] std::io::Error),
    /// The thread that looks at the ways to the server.
    #[error("cannot start the thread that looks at the ways to the server: {0}")]
    Intercepting(#[source] std::io::Error),
    /// The data path.
    #[error(transparent)]
    Path(#[from] path::Error),
    /// The receiver of the engine's spans.
    #[error(transparent)]
    Queue(#[from] engine_spans::Error),
    /// The admin server.
    #[error(transparent)]
    Admin(#[from] admin::Error),
}

impl Error {
    /// True when what the configuration names holds what cannot be used.
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Error::Export(error) => !matches!(error, export::Error::Runtime(_)),
            Error::Path(path::Error::Bind { source: error, .. } | path::Error::Listen(error))
            | Error::Engines(engines::Error::Listen(error)) => error.is_of_configuration(),
            Error::Admin(admin::Error::Bind { .. }) | Error::Queue(engine_spans::Error::Bind { .. }) => true,
            Error::AccessLog(_) | Error::Tokenizer(_) | Error::Ledger(_) => true,
            _ => false,
        }
    }
}

/// A running instrument.
#[derive(Debug)]
pub struct Instrument {
    path: DataPath,
    backlog: Arc<Backlog>,
    counting: Arc<Counting>,
    exporters: Arc<Exporters>,
    access_log: Option<Arc<AccessLog>>,
    judge: Arc<Judge>,
    judging: Judging,
    ledger: Arc<Ledger>,
    /// Looks until it is dropped.
    _intercepting: Intercepting,
    in_flight: Arc<InFlight>,
    spans: Option<engine_spans::Receiver>,
    control: Arc<Controlled>,
    admin: admin::Server,
    /// Reads until it is dropped.
    scraper: Scraper,
}

impl Instrument {
    /// Starts everything. `also` is told what the exporters are told; `config` makes the page of /config.
    ///
    /// # Errors
    /// When an address or file cannot be used; nothing runs then.
    pub fn start(
        settings: &Settings,
        also: Option<Arc<dyn Sink>>,
        config: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Result<Instrument, Error> {
        let vocabularies = Vocabularies::read(&settings.tokenizer)?;
        let judge = Arc::new(Judge::new(settings.slo.clone()));
        let scraper = engines::start(&settings.scrape, &settings.pairs)?;
        let ledger = Arc::new(Ledger::new(settings.ledger.clone())?);
        let figures = Figures::new(scraper.engines(), Arc::clone(&judge), Arc::clone(&ledger));
        let exporters = Exporters::start(&settings.export, Arc::new(figures.clone()))?;
        let objectives = Arc::clone(&judge);
        exporters.keep_when(move |record| objectives.is_broken_by(record));
        let access_log = settings.access_log.as_ref().map(AccessLog::open).transpose()?.map(Arc::new);
        if let Some(log) = &access_log {
            figures.attach_access_log(Arc::clone(log));
        }
        let mut sinks: Vec<Arc<dyn Sink>> =
            vec![Arc::clone(&exporters) as Arc<dyn Sink>, Arc::clone(&ledger) as Arc<dyn Sink>];
        sinks.extend(access_log.clone().map(|log| Arc::new(Written(log)) as Arc<dyn Sink>));
        sinks.extend(also);
        let threads = settings.threads.or_else(|| available_parallelism().ok().map(usize::from)).unwrap_or(1);
        let (relay, observe) = (settings.relay.clone(), settings.observe.clone());
        let mut sink = Tee::of(sinks);
        let spans = match &settings.queue {
            Some(queue) => {
                let collector = collector::of(&settings.export.traces)?;
                Some(engine_spans::Receiver::start(queue, Arc::clone(&sink), collector)?)
            }
            None => None,
        };
        if let Some(spans) = &spans {
            figures.attach_queue(spans.figures());
            sink = spans.stage();
        }
        let counting = Counting::start(sink, vocabularies, settings.tokenizer.queue_answers);
        let counting = Arc::new(counting.map_err(Error::Counting)?);
        // Judged at once, and not when more is known of an exchange.
        let sinks = vec![Arc::clone(&judge) as Arc<dyn Sink>, Arc::clone(&counting) as Arc<dyn Sink>];
        let unrecorded = Arc::clone(&exporters);
        let count = move |labels: &Labels, outcome, n| unrecorded.count_unrecorded(labels, outcome, n);
        let backlog = Backlog::start(Tee::of(sinks), settings.pairs.len(), Box::new(count)).map_err(Error::Backlog)?;
        let backlog = Arc::new(backlog);
        let names: Vec<String> = settings.pairs.iter().map(|pair| pair.name.clone()).collect();
        let started = Instant::now();
        let in_flight = InFlight::start(settings.live.clone(), &names, started).map_err(Error::Live)?;
        let window = Arc::new(slo::Window::new(started));
        let judging = Judging::start(Arc::clone(&judge), Arc::clone(&in_flight), Arc::clone(&window));
        let judging = judging.map_err(Error::Judging)?;
        let sink = in_flight.before(Arc::clone(&backlog) as Arc<dyn Sink>);
        let path = DataPath::start(&settings.pairs, relay, observe, sink, threads)?;
        let intercepting =
            Intercepting::start(settings.pairs.clone(), path.addresses().to_vec(), figures.interceptions());
        let intercepting = intercepting.map_err(Error::Intercepting)?;
        figures.attach(path.handles(), Arc::clone(&in_flight), Arc::clone(&counting), Arc::clone(&backlog));
        let sources = live_page::Sources {
            started,
            in_flight: Arc::clone(&in_flight),
            judge: Arc::clone(&judge),
            backlog: Arc::clone(&backlog),
            window,
            engines: scraper.engines(),
            handles: path.handles(),
        };
        let scraped = Arc::clone(&exporters);
        let (lame_duck, grace) = (settings.lame_duck, settings.grace_period);
        let control = Arc::new(Controlled::new(path.handles(), lame_duck, grace, Arc::clone(&exporters)));
        let pages = admin::Pages {
            metrics: Arc::new(move |accept| {
                let page = scraped.scrape(accept);
                (page.content_type.to_owned(), page.body)
            }),
            config,
            engine: going_on::engine(&in_flight),
            exchanges: going_on::exchanges(&in_flight),
            live: sources.snapshots(),
            control: Arc::clone(&control) as Arc<dyn admin::Control>,
        };
        let admin = admin::Server::start(&settings.admin, pages)?;
        // Last, when the descriptors that are open do not go with the connections.
        path.handles().relay.limit_connections(descriptors::connections(settings));
        Ok(Instrument {
            path,
            backlog,
            counting,
            exporters,
            access_log,
            judge,
            judging,
            ledger,
            _intercepting: intercepting,
            in_flight,
            spans,
            control,
            admin,
            scraper,
        })
    }

    /// Where it listens, by pair.
    pub fn addresses(&self) -> &[Address] {
        self.path.addresses()
    }

    /// Where the admin server listens.
    pub fn admin(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Where spans of the engine are received.
    pub fn receives_spans(&self) -> &[SocketAddr] {
        self.spans.as_ref().map_or(&[], engine_spans::Receiver::addresses)
    }

    /// Handles on the data path.
    pub fn handles(&self) -> Handles {
        self.path.handles()
    }

    /// Takes the settings over that can change while connections are open: all of them, or none.
    ///
    /// # Errors
    /// When a file that the settings name cannot be used, or the thread that counts tokens cannot be started; nothing has changed then.
    pub fn reload(&self, settings: &Settings) -> Result<(), Error> {
        let vocabularies = Vocabularies::read(&settings.tokenizer)?;
        let rules = accounting::Rules::new(settings.ledger.clone())?;
        // What has ended is still counted by the old settings.
        self.backlog.settle();
        self.counting.reload(vocabularies, settings.tokenizer.queue_answers).map_err(Error::Counting)?;
        // From here on nothing fails.
        self.ledger.reload(rules);
        self.judge.reload(settings.slo.clone());
        let handles = self.handles();
        handles.observatory.reload(settings.observe.clone());
        handles.relay.reload(settings.relay.clone());
        self.in_flight.reload(settings.live.clone());
        self.control.reload(settings.grace_period);
        Ok(())
    }

    /// Returns when a drain that was asked for over the admin server is complete.
    pub fn drained(&self) -> impl Future<Output = ()> + use<> {
        let control = Arc::clone(&self.control);
        async move { control.drained().await }
    }

    /// The exchanges in flight.
    pub fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Opens the access log's file anew, after it was rotated.
    pub fn reopen(&self) {
        if let Some(log) = &self.access_log
            && !log.reopen()
        {
            tracing::error!("The access log's file could not be opened anew; lines go to the old one.");
        }
    }

    /// Takes no new connection, closes idle ones, and lets the others go on for `grace` at most; telemetry of what has
    /// ended is sent meanwhile. `hurry` ends the wait early.
    pub async fn drain(&self, grace: Duration, hurry: impl Future<Output = ()>) {
        self.control.note("a signal");
        let relay = self.handles().relay;
        relay.drain().close_and_begin().await;
        tracing::info!(open = relay.drain().open(), grace_secs = grace.as_secs(), "Draining.");
        let exporters = Arc::clone(&self.exporters);
        // Telemetry may be slow, and the drain must not wait for it.
        drop(tokio::task::spawn_blocking(move || exporters.flush(LAST_TELEMETRY)));
        tokio::select! {
            () = relay.drain().emptied() => {}
            () = tokio::time::sleep(grace) => {
                tracing::warn!(open = relay.drain().open(), "The grace period is over: closing what is open.");
            }
            () = hurry => tracing::warn!(open = relay.drain().open(), "Told to hurry: closing what is open."),
        }
        relay.drain().force();
        tokio::time::timeout(FORCED, relay.drain().emptied()).await.ok();
    }

    /// Ends everything; the last telemetry gets 1.5 s at most.
    pub fn stop(self) {
        let Instrument { path, backlog, counting, exporters, access_log, judging, spans, admin, scraper, .. } = self;
        path.stop();
        drop(judging);
        backlog.stop();
        counting.stop(LAST_COUNTS);
        // What was read last goes out with the last telemetry.
        drop(scraper);
        if let Some(spans) = spans {
            spans.stop(LAST_SPANS);
        }
        if let Some(log) = access_log {
            log.flush(LAST_TELEMETRY);
        }
        exporters.shutdown(LAST_TELEMETRY);
        admin.stop();
    }
}

/// The access log as a sink: it has no use for what moves.
struct Written(Arc<AccessLog>);

impl Sink for Written {
    fn record(&self, record: &Record) {
        self.0.write(record);
    }
}
