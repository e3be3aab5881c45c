//! The whole program: starts and stops exporters, data path, access log and admin server in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokometer_engine::engine_spans;
use tokometer_observe::measure::Sink;
use tokometer_proxy::listen::Address;

use crate::admin;
use crate::app::data_path::{self, DataPath, Handles, capacity, capturing};
use crate::app::monitors::{self, Watching};
use crate::app::pages;
use crate::app::pages::control::{LAST_TELEMETRY, ProgramControl};
use crate::app::recording::{self, Recording};
use crate::config::Settings;

/// Time for force-closed connections to be recorded after the grace period.
const FORCED: Duration = Duration::from_millis(500);

/// Why the program cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A receiver of request records cannot start.
    #[error(transparent)]
    Recording(#[from] recording::Error),
    /// A monitor cannot start.
    #[error(transparent)]
    Monitors(#[from] monitors::Error),
    /// The data path cannot start.
    #[error(transparent)]
    Path(#[from] data_path::Error),
    /// The admin server cannot start.
    #[error(transparent)]
    Admin(#[from] admin::Error),
}

impl Error {
    /// True if a configured address or the content of a configured file is invalid.
    pub fn is_config_error(&self) -> bool {
        match self {
            Error::Recording(error) => error.is_config_error(),
            Error::Path(data_path::Error::Bind { source: error, .. } | data_path::Error::Listen(error))
            | Error::Monitors(monitors::Error::Listen(error)) => error.is_config_error(),
            Error::Path(data_path::Error::Capture(error)) => !matches!(error, capturing::Error::Thread(_)),
            Error::Admin(admin::Error::Bind { .. }) => true,
            _ => false,
        }
    }
}

/// The running program.
#[derive(Debug)]
pub struct Instrument {
    path: DataPath,
    recording: Recording,
    watching: Watching,
    control: Arc<ProgramControl>,
    admin: admin::Server,
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
        let scraper = monitors::scrape(&settings.scrape, &settings.listeners)?;
        let recording = Recording::start(settings, also, scraper.engines())?;
        let mut path = DataPath::of(settings, recording.sink())?;
        let mut watching = Watching::start(settings, &recording, &mut path, scraper)?;
        let control = Arc::new(ProgramControl::new(
            path.handles(),
            Arc::clone(&watching.listener_states),
            path.captured(),
            settings.lame_duck,
            settings.grace_period,
            Arc::clone(&recording.exporters),
        ));
        let pages = pages::pages(&recording, &watching, &path, Arc::clone(&control), config);
        let admin = admin::Bound::new(&settings.admin)?;
        // Computed late: descriptors that are already open are not available for connections.
        if settings.tap.is_none() {
            let Handles { relay, observers } = path.handles();
            let (max, limit) = capacity::connections(settings, observers.budget().limit());
            relay.limit_connections(max, limit);
        }
        // The listeners open only after every step that can fail because of an invalid configuration; otherwise a
        // failed start would disconnect accepted clients. They open before probes are answered, because a process that
        // reports ready must not refuse clients.
        watching.open(&path.handles().relay)?;
        let admin = admin.serve(pages)?;
        Ok(Instrument { path, recording, watching, control, admin })
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
        self.recording.spans.as_ref().map_or(&[], engine_spans::Receiver::addresses)
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
        self.recording.reload(settings)?;
        // Nothing below this line can fail, so that either all settings are applied or none.
        let handles = self.handles();
        handles.observers.reload(settings.observe.clone());
        handles.relay.reload(settings.relay.clone());
        self.control.reload(settings.grace_period);
        Ok(())
    }

    /// Records whether the last reload succeeded, for the exporters.
    pub fn reloaded(&self, applied: bool) {
        self.watching.reloads.last(applied);
    }

    /// Returns when a drain requested over the admin server is complete.
    pub fn drained(&self) -> impl Future<Output = ()> + use<> {
        let control = Arc::clone(&self.control);
        async move { control.drained().await }
    }

    /// Reopens the access log after a rotation.
    pub fn reopen(&self) {
        if let Some(log) = &self.recording.access_log
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
        let exporters = Arc::clone(&self.recording.exporters);
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
        let Instrument { path, recording, watching, admin, .. } = self;
        path.stop();
        recording.stop(|| drop(watching));
        admin.stop();
    }
}
