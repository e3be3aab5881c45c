//! Access of the admin server to the data path: health and drain.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::admin;
use crate::admin::Draining;
use crate::app::data_path::Handles;
use crate::app::data_path::capturing::Captured;
use crate::app::monitors::ListenerStates;
use tokometer_proxy::relay;
use tokometer_telemetry::export::Exporters;

/// Maximum time for sending the last telemetry.
pub(in crate::app) const LAST_TELEMETRY: Duration = Duration::from_millis(1500);

/// Implements health and drain of the admin server for the data path.
#[derive(Debug)]
pub(in crate::app) struct ProgramControl {
    handles: Handles,
    listener_states: Arc<ListenerStates>,
    /// The packet capture, if one runs instead of the listeners.
    captured: Option<Captured>,
    /// Time for which connections are still accepted after a drain request.
    lame_duck: Duration,
    grace: ArcSwap<Duration>,
    exporters: Arc<Exporters>,
    draining: Mutex<Option<Draining>>,
    /// True when a requested drain is complete.
    drained: watch::Sender<bool>,
}

impl ProgramControl {
    pub(in crate::app) fn new(
        handles: Handles,
        listener_states: Arc<ListenerStates>,
        captured: Option<Captured>,
        lame_duck: Duration,
        grace: Duration,
        exporters: Arc<Exporters>,
    ) -> ProgramControl {
        ProgramControl {
            handles,
            listener_states,
            captured,
            lame_duck,
            grace: ArcSwap::from_pointee(grace),
            exporters,
            draining: Mutex::default(),
            drained: watch::Sender::new(false),
        }
    }

    /// Applies a new grace period.
    pub(in crate::app) fn reload(&self, grace: Duration) {
        self.grace.store(Arc::new(grace));
    }

    /// Records who started a drain; false if one was already running.
    pub(in crate::app) fn record_drain(&self, requested_by: &str) -> bool {
        let mut draining = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = draining.is_none();
        draining.get_or_insert_with(|| Draining { began: Instant::now(), requested_by: requested_by.to_owned() });
        is_first
    }

    /// Returns when a drain requested over the admin server is complete and its telemetry is sent.
    pub(in crate::app) async fn drained(&self) {
        // Cannot fail: `self` owns the sender.
        self.drained.subscribe().wait_for(|drained| *drained).await.ok();
    }

    fn phase(&self) -> relay::Phase {
        self.handles.relay.drain().phase()
    }
}

#[async_trait]
impl admin::Control for ProgramControl {
    fn begin_drain(&self, requested_by: &str) {
        if !self.record_drain(requested_by) {
            return;
        }
        let drain = self.handles.relay.drain().clone();
        tracing::info!(%requested_by, lame_duck_secs = self.lame_duck.as_secs(), open = drain.open(), "Draining; the process exits when all streams have ended.");
        let Ok(runtime) = Handle::try_current() else { return drain.begin() };
        let (lame_duck, exporters, drained) = (self.lame_duck, Arc::clone(&self.exporters), self.drained.clone());
        runtime.spawn(async move {
            tokio::time::sleep(lame_duck).await;
            drain.close_and_begin().await;
            drain.emptied().await;
            tracing::info!("Drained: no stream is open.");
            // The pod may be killed soon, so the telemetry is sent before the drain is reported as complete.
            tokio::task::spawn_blocking(move || exporters.flush(LAST_TELEMETRY)).await.ok();
            drained.send_replace(true);
        });
    }

    fn draining(&self) -> Option<Draining> {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn notes(&self) -> Vec<String> {
        let captured = self.captured.as_ref().map(Captured::notes);
        captured.unwrap_or_else(|| self.listener_states.closed())
    }

    fn grace_period(&self) -> Duration {
        **self.grace.load()
    }

    fn open_streams(&self) -> usize {
        // Until idle connections are closed, the open connections include them, so requests are counted instead.
        match self.phase() {
            relay::Phase::Running | relay::Phase::Closing => self.handles.observers.open(),
            // The capture itself counts as an open connection, so requests are counted here too.
            _ if self.captured.is_some() => self.handles.observers.open(),
            _ => self.handles.relay.drain().open(),
        }
    }

    async fn wait_until_idle(&self) {
        let drain = self.handles.relay.drain();
        drain.reached(relay::Phase::Draining).await;
        drain.emptied().await;
    }
}
