//! The whole instrument: exporters, data path, access log and admin server, started and ended in their order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use async_trait::async_trait;

use crate::admin;
use crate::app::access_log;
use crate::app::access_log::AccessLog;
use crate::app::path;
use crate::app::path::{DataPath, Handles};
use crate::app::stats::Figures;
use crate::app::tee::{Tee, Unmoved};
use crate::config::Settings;
use crate::export;
use crate::export::Exporters;
use crate::listen::Address;
use crate::measure::Detach;
use crate::measure::Labels;
use crate::measure::Live;
use crate::measure::Message;
use crate::measure::Phase;
use crate::measure::Record;
use crate::measure::Sink;
use crate::measure::Unread;
use crate::relay;

/// After the grace period, connections that are closed by force get this long to be recorded.
const FORCED: Duration = Duration::from_millis(500);

/// Most time for the last telemetry.
const LAST_TELEMETRY: Duration = Duration::from_millis(1500);

/// Why the instrument cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An exporter.
    #[error(transparent)]
    Export(#[from] export::Error),
    /// The access log.
    #[error(transparent)]
    AccessLog(#[from] access_log::Error),
    /// The data path.
    #[error(transparent)]
    Path(#[from] path::Error),
    /// The admin server.
    #[error(transparent)]
    Admin(#[from] admin::Error),
}

/// A running instrument.
#[derive(Debug)]
pub struct Instrument {
    path: DataPath,
    exporters: Arc<Exporters>,
    access_log: Option<Arc<AccessLog>>,
    admin: admin::Server,
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
        let figures = Figures::default();
        let exporters = Exporters::start(&settings.export, Arc::new(figures.clone()))?;
        let access_log = settings.access_log.as_ref().map(AccessLog::open).transpose()?.map(Arc::new);
        let mut sinks: Vec<Arc<dyn Sink>> = vec![Arc::clone(&exporters) as Arc<dyn Sink>];
        sinks.extend(access_log.clone().map(|log| Arc::new(Written(log)) as Arc<dyn Sink>));
        sinks.extend(also);
        let threads = settings.threads.or_else(|| available_parallelism().ok().map(usize::from)).unwrap_or(1);
        let (relay, observe) = (settings.relay.clone(), settings.observe.clone());
        let path = DataPath::start(&settings.pairs, relay, observe, Tee::of(sinks), threads)?;
        figures.attach(path.handles());
        let scraped = Arc::clone(&exporters);
        let pages = admin::Pages {
            metrics: Arc::new(move |accept| {
                let page = scraped.scrape(accept);
                (page.content_type.to_owned(), page.body)
            }),
            config,
            control: Arc::new(Controlled(path.handles())),
        };
        let admin = admin::Server::start(&settings.admin, pages)?;
        Ok(Instrument { path, exporters, access_log, admin })
    }

    /// Where it listens, by pair.
    pub fn addresses(&self) -> &[Address] {
        self.path.addresses()
    }

    /// Where the admin server listens.
    pub fn admin(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Handles on the data path.
    pub fn handles(&self) -> Handles {
        self.path.handles()
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
        let relay = self.handles().relay;
        relay.drain().begin();
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
        let Instrument { path, exporters, access_log, admin } = self;
        path.stop();
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
    fn in_flight(&self, _pair: usize, _phase: Phase, _delta: i64) {}

    fn live(&self, _labels: &Labels) -> Arc<dyn Live> {
        Arc::new(Unmoved)
    }

    fn record(&self, record: &Record) {
        self.0.write(record);
    }

    fn detached(&self, _pair: usize, _why: Detach) {}

    fn unread(&self, _pair: usize, _of: Message, _why: Unread) {}
}

/// What the admin server may know and do.
struct Controlled(Handles);

#[async_trait]
impl admin::Control for Controlled {
    fn started(&self) -> Result<(), String> {
        // The admin server starts last.
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn begin_drain(&self) {
        self.0.relay.drain().begin();
    }

    fn is_draining(&self) -> bool {
        self.0.relay.drain().phase() != relay::Phase::Running
    }

    fn open_streams(&self) -> usize {
        if self.is_draining() { self.0.relay.drain().open() } else { self.0.observatory.open() }
    }

    async fn wait_until_idle(&self) {
        self.0.relay.drain().emptied().await;
    }
}
