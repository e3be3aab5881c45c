//! What the admin server may know of the data path and do with it: health, and the drain that is asked for.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;

use crate::admin;
use crate::app::instrument::LAST_TELEMETRY;
use crate::app::path::Handles;
use crate::export::Exporters;
use crate::relay;

/// The data path, as the admin server sees it.
pub(super) struct Controlled {
    handles: Handles,
    /// How long connections are taken after a drain was asked for.
    lame_duck: Duration,
    exporters: Arc<Exporters>,
    asked: AtomicBool,
}

impl Controlled {
    pub(super) fn new(handles: Handles, lame_duck: Duration, exporters: Arc<Exporters>) -> Controlled {
        Controlled { handles, lame_duck, exporters, asked: AtomicBool::new(false) }
    }

    fn phase(&self) -> relay::Phase {
        self.handles.relay.drain().phase()
    }
}

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
        if self.asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let drain = self.handles.relay.drain().clone();
        tracing::info!(lame_duck_secs = self.lame_duck.as_secs(), open = drain.open(), "Asked to drain.");
        let Ok(runtime) = Handle::try_current() else { return drain.begin() };
        let (lame_duck, exporters) = (self.lame_duck, Arc::clone(&self.exporters));
        runtime.spawn(async move {
            tokio::time::sleep(lame_duck).await;
            drain.close_and_begin().await;
            drain.emptied().await;
            tracing::info!("Drained: no stream is open.");
            // The pod may be killed soon: what is known by now is sent, whatever comes.
            tokio::task::spawn_blocking(move || exporters.flush(LAST_TELEMETRY)).await.ok();
        });
    }

    fn is_draining(&self) -> bool {
        self.asked.load(Ordering::Acquire) || self.phase() != relay::Phase::Running
    }

    fn open_streams(&self) -> usize {
        // Before that, connections may be open and idle.
        match self.phase() {
            relay::Phase::Running | relay::Phase::Closing => self.handles.observatory.open(),
            _ => self.handles.relay.drain().open(),
        }
    }

    async fn wait_until_idle(&self) {
        let drain = self.handles.relay.drain();
        drain.reached(relay::Phase::Draining).await;
        drain.emptied().await;
    }
}
