//! The whole program: starts and stops exporters, data path, access log and admin server in order.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tokometer_engine::engine_spans::{self, Collector};
use tokometer_engine::scrape::Scraper;
use tokometer_metrics::Collect;
use tokometer_observe::measure::{Labels, Sink};
use tokometer_proxy::listen::Address;
use tokometer_proxy::relay::Phase;
use tokometer_telemetry::accounting::{self, Accounting};
use tokometer_telemetry::backlog::Backlog;
use tokometer_telemetry::export::{self, CollectorClient, Exporters, Process};
use tokometer_telemetry::live::{InFlight, Signs};
use tokometer_telemetry::slo::{self, Evaluator};
use tokometer_telemetry::tokenizer::{self, Counting, Vocabularies};

use crate::admin;
use crate::app::access_log::{self, AccessLog};
use crate::app::data_path::{self, DataPath, Handles, Opening, capacity, capturing};
use crate::app::monitors::{self, ListenerStates, ListenerStats, Monitor, Reloads};
use crate::app::pages::control::{LAST_TELEMETRY, ProgramControl};
use crate::app::pages::{requests, snapshot};
use crate::app::tee::Tee;
use crate::config::Settings;

/// Time for force-closed connections to be recorded after the grace period.
const FORCED: Duration = Duration::from_millis(500);

/// Maximum time for counting the tokens of waiting responses at shutdown.
const LAST_COUNTS: Duration = Duration::from_millis(500);
/// Maximum time for forwarding the engine's last span messages.
const LAST_SPANS: Duration = Duration::from_millis(500);

/// Why the program cannot start.
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
    /// Scraping of the engines' metrics cannot start.
    #[error(transparent)]
    Engines(#[from] monitors::Error),
    /// The data path cannot start.
    #[error(transparent)]
    Path(#[from] data_path::Error),
    /// The receiver of the engine's spans cannot start.
    #[error(transparent)]
    Queue(#[from] engine_spans::Error),
    /// The admin server cannot start.
    #[error(transparent)]
    Admin(#[from] admin::Error),
}

impl Error {
    /// True if a configured address or the content of a configured file is invalid.
    pub fn is_config_error(&self) -> bool {
        match self {
            Error::Export(error) => !matches!(error, export::Error::Runtime(_)),
            Error::Path(data_path::Error::Bind { source: error, .. } | data_path::Error::Listen(error))
            | Error::Engines(monitors::Error::Listen(error)) => error.is_config_error(),
            Error::Path(data_path::Error::Capture(error)) => !matches!(error, capturing::Error::Thread(_)),
            Error::Admin(admin::Error::Bind { .. }) | Error::Queue(engine_spans::Error::Bind { .. }) => true,
            Error::AccessLog(_) | Error::Tokenizer(_) | Error::Accounting(_) => true,
            _ => false,
        }
    }
}

/// The running program.
#[derive(Debug)]
pub struct Instrument {
    path: DataPath,
    backlog: Arc<Backlog>,
    counting: Arc<Counting>,
    exporters: Arc<Exporters>,
    access_log: Option<Arc<AccessLog>>,
    evaluator: Arc<Evaluator>,
    accounting: Arc<Accounting>,
    monitors: Vec<Monitor>,
    in_flight: Arc<InFlight>,
    spans: Option<engine_spans::Receiver>,
    control: Arc<ProgramControl>,
    reloads: Arc<Reloads>,
    admin: admin::Server,
    /// Scrapes until it is dropped.
    scraper: Scraper,
}

impl Instrument {
    /// Starts everything. `also` is an additional sink; `config` renders /config.
    ///
    /// # Errors
    /// If an address or file cannot be used; nothing runs then.
    pub fn start(
        settings: &Settings,
        also: Option<Arc<dyn Sink>>,
        config: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Result<Instrument, Error> {
        let thread = |what| move |error| Error::Thread(what, error);
        let vocabularies = Vocabularies::read(&settings.tokenizer)?;
        let evaluator = Arc::new(Evaluator::new(settings.slo.clone()));
        let scraper = monitors::scrape(&settings.scrape, &settings.listeners)?;
        let accounting = Arc::new(Accounting::new(settings.accounting.clone())?);
        let exporters = Exporters::start(&settings.export)?;
        accounting.record_latencies_in(exporters.histograms());
        let engines = scraper.engines();
        exporters.join_engine_state(move |listener, moment| engines.at(listener, moment));
        let objectives = Arc::clone(&evaluator);
        exporters.keep_when(move |record| objectives.is_broken_by(record));
        let access_log = settings.access_log.as_ref().map(AccessLog::open).transpose()?.map(Arc::new);
        let mut sinks: Vec<Arc<dyn Sink>> =
            vec![Arc::clone(&exporters) as Arc<dyn Sink>, Arc::clone(&accounting) as Arc<dyn Sink>];
        sinks.extend(access_log.clone().map(|log| log as Arc<dyn Sink>));
        sinks.extend(also);
        let mut sink = Tee::of(sinks);
        let spans = match &settings.queue {
            Some(queue) => {
                let collector = settings.export.traces.endpoint.as_ref().map(CollectorClient::new).transpose()?;
                let collector = collector.map(|collector| Arc::new(collector) as Arc<dyn Collector>);
                Some(engine_spans::Receiver::start(queue, Arc::clone(&sink), collector)?)
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
        let started = Instant::now();
        let in_flight = InFlight::start(settings.live.clone(), &names, started);
        let in_flight = in_flight.map_err(thread("keeps ended requests"))?;
        let window = Arc::new(slo::Window::new(started));
        let objectives = monitors::objectives(Arc::clone(&evaluator), Arc::clone(&in_flight), Arc::clone(&window));
        let objectives = objectives.map_err(thread("evaluates waiting requests"))?;
        let sink = Tee::of(vec![Arc::clone(&in_flight) as Arc<dyn Sink>, Arc::clone(&backlog) as Arc<dyn Sink>]);
        let threads = settings.threads.or_else(|| available_parallelism().ok().map(usize::from)).unwrap_or(1);
        let (relay, observe) = (settings.relay.clone(), settings.observe.clone());
        // The listeners open when their servers accept connections. In a pod, an address in use is held by another
        // container of the pod. tokometer then waits: exiting would keep the pod from becoming ready.
        let opening = Opening::Later { awaited: settings.in_pod };
        let mut path = match &settings.tap {
            Some(tap) => DataPath::capture(&settings.listeners, relay, observe, sink, tap)?,
            None => DataPath::open(&settings.listeners, relay, observe, sink, threads, opening)?,
        };
        let captured = path.captured();
        let Handles { relay, observers } = path.handles();
        let observers_limit = observers.budget().limit();
        // A weak reference avoids a cycle: the relay owns `in_flight` through its observers.
        let threads = Arc::downgrade(&relay);
        in_flight.set_overdue(move |now| threads.upgrade().map_or(Duration::ZERO, |relay| relay.overdue(now)));
        let gates = path.take_gates();
        let listener_states = ListenerStates::new(&settings.listeners, path.addresses(), gates);
        let listener_states = listener_states.map_err(monitors::Error::Listen)?;
        let (servers, engines) = (Arc::clone(&listener_states), scraper.engines());
        let drain = relay.drain().clone();
        in_flight.set_signs_source(Box::new(move |listener, now| Signs {
            // During a drain, the server may stop too: this is not an outage.
            reach: servers
                .status(listener)
                .filter(|_| drain.phase() == Phase::Running)
                .map(|status| status.reach(now))
                .unwrap_or_default(),
            still: engines.still(listener, now),
        }));
        let listeners = Arc::new(ListenerStats {
            relay: Arc::clone(&relay),
            listener_states: Arc::clone(&listener_states),
            interceptions: Mutex::default(),
        });
        let mut monitors = vec![objectives];
        let listeners: Arc<dyn Collect> = match &captured {
            // A capture forwards nothing: the metrics of the listeners would be zero.
            Some(captured) => Arc::clone(&captured.stats) as Arc<dyn Collect>,
            None => {
                let (all, addresses) = (settings.listeners.clone(), path.addresses().to_vec());
                let interception = monitors::interception(all, addresses, Arc::clone(&listeners));
                monitors.push(interception.map_err(thread("checks for direct access to the server"))?);
                listeners
            }
        };
        let reloads = Arc::new(Reloads::default());
        let owners: [Arc<dyn Collect>; 10] = [
            Arc::new(Process),
            Arc::clone(&reloads) as Arc<dyn Collect>,
            Arc::new(scraper.engines()),
            Arc::clone(&evaluator) as Arc<dyn Collect>,
            Arc::clone(&accounting) as Arc<dyn Collect>,
            listeners,
            observers,
            Arc::clone(&in_flight) as Arc<dyn Collect>,
            Arc::clone(&counting) as Arc<dyn Collect>,
            Arc::clone(&backlog) as Arc<dyn Collect>,
        ];
        owners.into_iter().for_each(|owner| exporters.add(owner));
        spans.iter().for_each(|spans| exporters.add(spans.measurements()));
        access_log.iter().for_each(|log| exporters.add(Arc::clone(log) as Arc<dyn Collect>));
        let sources = snapshot::Sources {
            started,
            in_flight: Arc::clone(&in_flight),
            evaluator: Arc::clone(&evaluator),
            backlog: Arc::clone(&backlog),
            window,
            engines: scraper.engines(),
            handles: path.handles(),
            listener_states: Arc::clone(&listener_states),
        };
        let scraped = Arc::clone(&exporters);
        let (lame_duck, grace) = (settings.lame_duck, settings.grace_period);
        let control = ProgramControl::new(
            path.handles(),
            Arc::clone(&listener_states),
            captured,
            lame_duck,
            grace,
            Arc::clone(&exporters),
        );
        let control = Arc::new(control);
        let pages = admin::Pages {
            metrics: Arc::new(move |accept| {
                let page = scraped.scrape(accept);
                (page.content_type.to_owned(), page.body)
            }),
            config,
            engine: requests::engine_health(&in_flight, &listener_states),
            requests: requests::requests(&in_flight),
            live: sources.snapshots(),
            control: Arc::clone(&control) as Arc<dyn admin::Control>,
        };
        let admin = admin::Bound::new(&settings.admin)?;
        // Computed late: descriptors that are already open are not available for connections.
        if settings.tap.is_none() {
            let (max, limit) = capacity::connections(settings, observers_limit);
            relay.limit_connections(max, limit);
        }
        // The listeners open only after every step that can fail because of an invalid configuration; otherwise a
        // failed start would disconnect accepted clients. They open before probes are answered, because a process that
        // reports ready must not refuse clients.
        monitors
            .extend(listener_states.watch(&relay).map_err(thread("checks whether the servers accept connections"))?);
        let admin = admin.serve(pages)?;
        Ok(Instrument {
            path,
            backlog,
            counting,
            exporters,
            access_log,
            evaluator,
            accounting,
            monitors,
            in_flight,
            spans,
            control,
            reloads,
            admin,
            scraper,
        })
    }

    /// Listen addresses, by listener.
    pub fn addresses(&self) -> &[Address] {
        self.path.addresses()
    }

    /// Sentences that describe the packet capture; empty if connections are forwarded.
    pub fn captured(&self) -> Vec<String> {
        self.path.captured().map(|captured| captured.notes()).unwrap_or_default()
    }

    /// Address of the admin server.
    pub fn admin(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Addresses of the engine span receiver.
    pub fn receives_spans(&self) -> &[SocketAddr] {
        self.spans.as_ref().map_or(&[], engine_spans::Receiver::addresses)
    }

    /// Handles to the data path.
    pub fn handles(&self) -> Handles {
        self.path.handles()
    }

    /// Applies the settings that can change while connections are open: all of them or none.
    ///
    /// # Errors
    /// If a file named in the settings cannot be used, or the thread that counts tokens cannot be started; nothing has
    /// changed then.
    pub fn reload(&self, settings: &Settings) -> Result<(), Error> {
        let vocabularies = Vocabularies::read(&settings.tokenizer)?;
        let rules = accounting::Rules::new(settings.accounting.clone())?;
        // Requests that have ended are counted with the old settings.
        self.backlog.settle();
        let counting = self.counting.reload(vocabularies, settings.tokenizer.queue_responses);
        counting.map_err(|error| Error::Thread("counts tokens", error))?;
        // Nothing below this line can fail, so that either all settings are applied or none.
        self.accounting.reload(rules);
        self.evaluator.reload(settings.slo.clone());
        let handles = self.handles();
        handles.observers.reload(settings.observe.clone());
        handles.relay.reload(settings.relay.clone());
        self.in_flight.reload(settings.live.clone());
        self.control.reload(settings.grace_period);
        Ok(())
    }

    /// Records whether the last reload succeeded, for the exporters.
    pub fn reloaded(&self, applied: bool) {
        self.reloads.last(applied);
    }

    /// Returns when a drain requested over the admin server is complete.
    pub fn drained(&self) -> impl Future<Output = ()> + use<> {
        let control = Arc::clone(&self.control);
        async move { control.drained().await }
    }

    /// Reopens the access log after a rotation.
    pub fn reopen(&self) {
        if let Some(log) = &self.access_log
            && !log.reopen()
        {
            tracing::error!("The access log's file could not be reopened; writing to the old one.");
        }
    }

    /// Stops accepting, closes idle connections, and lets all others continue for at most `grace`. Meanwhile the
    /// telemetry of ended requests is sent. `hurry` ends the wait early.
    pub async fn drain(&self, grace: Duration, hurry: impl Future<Output = ()>) {
        self.control.record_drain("a signal");
        let relay = self.handles().relay;
        relay.drain().close_and_begin().await;
        tracing::info!(open = relay.drain().open(), grace_secs = grace.as_secs(), "Draining.");
        let exporters = Arc::clone(&self.exporters);
        // Sending telemetry may be slow, and the drain must not wait for it.
        drop(tokio::task::spawn_blocking(move || exporters.flush(LAST_TELEMETRY)));
        tokio::select! {
            () = relay.drain().emptied() => {}
            () = tokio::time::sleep(grace) => {
                tracing::warn!(open = relay.drain().open(), "The grace period is over: closing open connections.");
            }
            () = hurry => tracing::warn!(open = relay.drain().open(), "Second signal: closing open connections."),
        }
        relay.drain().force();
        tokio::time::timeout(FORCED, relay.drain().emptied()).await.ok();
    }

    /// Stops everything; spends at most 1.5 s on sending the last telemetry.
    pub fn stop(self) {
        let Instrument { path, backlog, counting, exporters, access_log, monitors, spans, admin, scraper, .. } = self;
        path.stop();
        drop(monitors);
        backlog.stop();
        counting.stop(LAST_COUNTS);
        // Dropped before the exporters shut down, so that they send the result of the last scrape.
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
