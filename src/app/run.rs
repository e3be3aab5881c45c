//! `tokometer run`: the instrument until a signal ends it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::descriptors;
use crate::app::instrument;
use crate::app::instrument::Instrument;
use crate::app::log;
use crate::app::path;
use crate::config;
use crate::config::Config;
use crate::config::Environment;
use crate::config::Flags;
use crate::config::Problem;

/// Why `run` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The instrument cannot start.
    #[error(transparent)]
    Start(#[from] instrument::Error),
    /// An address to listen on cannot be used; names the key and the place where it was set.
    #[error("{0}")]
    Listen(Problem),
    /// Signals cannot be caught.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] io::Error),
}

impl Error {
    /// True when the configuration names something that holds what cannot be used: a mend of it, and no other try, helps.
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Error::Start(error) => error.is_of_configuration(),
            Error::Listen(_) => true,
            Error::Signals(_) => false,
        }
    }

    fn of_start(error: instrument::Error, config: &Config) -> Error {
        match error {
            instrument::Error::Path(path::Error::Bind { pair, source }) if source.is_of_configuration() => {
                Error::Listen(config.problem(&format!("pairs[{pair}].listen"), source.to_string()))
            }
            error => Error::Start(error),
        }
    }
}

/// How long the process goes on after a drain that the admin server was asked for: hooks that wait for the drain end in this container,
/// and an engine that ends now still sends its last spans.
const AFTER_DRAIN: Duration = Duration::from_secs(10);

/// What a signal asks for.
enum Asked {
    Stop,
    Reload,
}

/// Runs until SIGTERM or SIGINT, then drains and sends the last telemetry. A second signal cuts the drain short. A drain that the
/// admin server was asked for ends the process too, so that what supervises it starts it again: a drain cannot be undone. SIGHUP
/// reads the configuration again and opens the access log anew; a configuration that cannot be used changes nothing.
///
/// # Errors
/// When something cannot start; a running instrument ends well.
pub fn run(config: Config, flags: &Flags, environment: &Environment, logs: &log::Handle) -> Result<(), Error> {
    descriptors::raise_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
    let inside = runtime.enter();
    let mut signals = Signals::new()?;
    let current = Arc::new(Mutex::new(config.clone()));
    let shown = Arc::clone(&current);
    let effective = Arc::new(move || shown.lock().unwrap_or_else(PoisonError::into_inner).effective_yaml());
    // Outside of anything asynchronous: what was started before the part that cannot start has runtimes of its own, and to drop one
    // in there is a panic.
    let instrument =
        Instrument::start(&config.settings, None, effective).map_err(|error| Error::of_start(error, &config))?;
    drop(inside);
    runtime.block_on(async {
        for (pair, address) in config.settings.pairs.iter().zip(instrument.addresses()) {
            tracing::info!(listen = %address, upstream = %pair.upstream, "Relaying.");
        }
        for address in instrument.receives_spans() {
            tracing::info!(%address, "Receiving the engine's spans: OTLP over gRPC and HTTP.");
        }
        tracing::info!(address = %instrument.admin(), "The admin server listens: /metrics, /live, /readyz, /engine/healthz, /exchanges, /drain.");
        let drained = instrument.drained();
        let mut drained = std::pin::pin!(async {
            drained.await;
            tokio::time::sleep(AFTER_DRAIN).await;
        });
        loop {
            let asked = tokio::select! {
                asked = signals.next() => asked,
                () = &mut drained => {
                    tracing::info!("The drain is complete: the process exits.");
                    Asked::Stop
                }
            };
            match asked {
                Asked::Stop => break,
                Asked::Reload => {
                    instrument.reopen();
                    reload(&current, flags, environment, &instrument, logs);
                }
            }
        }
        let grace = current.lock().unwrap_or_else(PoisonError::into_inner).settings.grace_period;
        instrument.drain(grace, signals.stop()).await;
        tracing::info!("Stopped.");
        tokio::task::spawn_blocking(move || instrument.stop()).await.ok();
        Ok(())
    })
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }

    /// The next signal that asks for an end.
    async fn stop(&mut self) {
        while !matches!(self.next().await, Asked::Stop) {}
    }
}

/// Takes over what can change while connections are open; the rest is reported to need a restart. A configuration of which any part cannot
/// be used changes nothing.
fn reload(
    current: &Mutex<Config>,
    flags: &Flags,
    environment: &Environment,
    instrument: &Instrument,
    logs: &log::Handle,
) {
    // Not held while files are read: `/config` shows it.
    let old = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let unusable = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "The new configuration cannot be used; the old one stays in force.");
    };
    let reloaded = match config::reload(&old, flags, environment) {
        Ok(reloaded) => reloaded,
        Err(error) => return unusable(&error),
    };
    // Changes that need a restart are not in effect; the next reload reports them again.
    let new = old.adopting(&reloaded.config);
    // Files that are named the same may hold other things now.
    if let Err(error) = instrument.reload(&new.settings) {
        return unusable(&error);
    }
    for change in &reloaded.changes {
        let (key, from, to) = (&change.path, &change.from, &change.to);
        if change.needs_restart {
            tracing::warn!(%key, %from, %to, "Changed, but takes effect only after a restart.");
        } else {
            tracing::info!(%key, %from, %to, "Changed.");
        }
    }
    if reloaded.changes.is_empty() {
        tracing::info!("The configuration was read again; nothing differs.");
    }
    logs.set_levels(&new.settings.log.levels);
    *current.lock().unwrap_or_else(PoisonError::into_inner) = new;
}
