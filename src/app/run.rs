//! `tokometer run`: runs until a signal or a drain ends the process.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokometer_proxy::listen;
use tokometer_settings::FileVersion;

use crate::app::data_path::capacity;
use crate::app::instrument::Instrument;
use crate::app::{data_path, instrument, probe_file};
use crate::config::{Config, Environment, Flags, Problem};
use crate::{config, logging, top};

/// Why `run` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program cannot start.
    #[error(transparent)]
    Start(#[from] instrument::Error),
    /// A listen address cannot be used. The message names the key and its origin.
    #[error("{0}")]
    Listen(Problem),
    /// The program cannot be copied.
    #[error("process.probe_file: cannot copy the program to {0}: {1}")]
    ProbeFile(PathBuf, #[source] io::Error),
    /// Signal handlers cannot be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] io::Error),
    /// Live requests cannot be shown.
    #[error(transparent)]
    Top(#[from] top::Error),
}

impl Error {
    /// True for a configuration error, which a retry cannot fix.
    pub fn is_config_error(&self) -> bool {
        match self {
            Error::Start(error) => error.is_config_error(),
            Error::Listen(_) => true,
            Error::ProbeFile(..) | Error::Signals(_) | Error::Top(_) => false,
        }
    }

    fn of_start(error: instrument::Error, config: &Config) -> Error {
        match error {
            instrument::Error::Path(data_path::Error::Bind { listener, source }) if source.is_config_error() => {
                let in_use = match &source {
                    listen::Error::Bind { address, .. } if source.is_address_in_use() => config.free_port(address),
                    _ => None,
                };
                let free = in_use.map(|port| format!("; port {port} is free")).unwrap_or_default();
                Error::Listen(config.problem(&format!("listeners[{listener}].listen"), format!("{source}{free}")))
            }
            error => Error::Start(error),
        }
    }
}

/// Time for which the process continues after a drain requested over the admin server. Hooks in this container that
/// wait for the drain can finish, and an engine that is shutting down can send its last spans.
const AFTER_DRAIN: Duration = Duration::from_secs(10);

/// Time between two updates of the display.
const REDRAW: Duration = Duration::from_secs(1);

/// Time between checks whether the configuration file has changed.
const FILE_CHECK: Duration = Duration::from_secs(1);

/// What a signal or a changed configuration file requests.
enum Action {
    Stop,
    Reload,
    /// As `Reload`; also reopens the access log.
    Hangup,
}

/// Runs until SIGTERM or SIGINT, then drains and sends the last telemetry. A second signal cuts the drain short. A
/// drain requested over the admin server also ends the process, so that its supervisor restarts it: a drain cannot be
/// undone. SIGHUP reloads the configuration and reopens the access log; a process that is attached to a terminal ends
/// instead, because its terminal was closed. A changed configuration file is reloaded without a signal; an invalid
/// configuration changes nothing.
///
/// With `display`, shows live requests in the terminal, and ends when the user closes the display.
///
/// # Errors
/// If a part cannot start, or the terminal cannot be used. Without a display, `run` returns `Ok` after a successful
/// start.
pub fn run(
    config: Config,
    flags: &Flags,
    environment: &Environment,
    logs: &logging::Handle,
    display: Option<top::Display>,
) -> Result<(), Error> {
    capacity::raise_limit();
    if let Some(path) = &config.settings.probe_file
        && let Err(error) = probe_file::write(path)
    {
        // An earlier copy still serves the probes.
        if !path.exists() {
            return Err(Error::ProbeFile(path.clone(), error));
        }
        tracing::warn!(path = %path.display(), %error, "Cannot replace the program for exec probes; keeping the old one.");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
    let inside = runtime.enter();
    let mut signals = Signals::new()?;
    let mut file = ConfigFile::of(&config);
    let current = Arc::new(Mutex::new(config.clone()));
    let shown = Arc::clone(&current);
    let effective = Arc::new(move || shown.lock().unwrap_or_else(PoisonError::into_inner).effective_yaml());
    // Not in an async context: if a part fails to start, the earlier parts are dropped, and dropping their runtimes in
    // an async context panics.
    let instrument =
        Instrument::start(&config.settings, None, effective).map_err(|error| Error::of_start(error, &config))?;
    drop(inside);
    runtime.block_on(async {
        match &config.settings.tap {
            Some(tap) => tracing::info!(ports = ?tap.ports, interface = %tap.interface, buffer_bytes = tap.buffer.0, "Capturing packets."),
            None => for (listener, address) in config.settings.listeners.iter().zip(instrument.addresses()) {
                tracing::info!(listen = %address, upstream = %listener.upstream, "Relaying.");
            },
        }
        for address in instrument.receives_spans() {
            tracing::info!(%address, "Receiving the engine's spans: OTLP over gRPC and HTTP.");
        }
        tracing::info!(address = %instrument.admin(), "The admin server is listening: /metrics, /live, /readyz, /engine/healthz, /requests, /drain.");
        let drained = instrument.drained();
        let mut drained = pin!(async {
            drained.await;
            tokio::time::sleep(AFTER_DRAIN).await;
        });
        let mut screen = pin!(show(display, instrument.admin()));
        let mut ended = None;
        loop {
            let action = tokio::select! {
                action = signals.next() => action,
                () = file.changed() => Action::Reload,
                end = &mut screen => {
                    ended = Some(end);
                    Action::Stop
                }
                () = &mut drained => {
                    tracing::info!("The drain is complete: the process exits.");
                    Action::Stop
                }
            };
            match action {
                Action::Stop => break,
                Action::Reload => {}
                Action::Hangup => {
                    file.loaded();
                    instrument.reopen();
                }
            }
            instrument.reloaded(reload(&current, flags, environment, &instrument, logs));
        }
        let grace = current.lock().unwrap_or_else(PoisonError::into_inner).settings.grace_period;
        // If the user has closed the display, the drain does not wait for open streams.
        let grace = if ended.is_some() { Duration::ZERO } else { grace };
        instrument.drain(grace, signals.stop()).await;
        tracing::info!("Stopped.");
        tokio::task::spawn_blocking(move || instrument.stop()).await.ok();
        if display.is_some_and(|display| display.has_screen()) {
            // After a signal, the process may end before the display's thread restores the terminal.
            ratatui::restore();
        }
        ended.unwrap_or(Ok(())).map_err(Error::Top)
    })
}

/// Shows live requests; returns when the user closes the display. Without a display it never returns.
async fn show(display: Option<top::Display>, mut admin: SocketAddr) -> Result<(), top::Error> {
    let Some(display) = display else { return std::future::pending().await };
    if admin.ip().is_unspecified() {
        admin.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let settings =
        top::Settings { admin: admin.into(), once: false, interval: REDRAW, end: None, hangup_ends: false, display };
    let (ended, end) = oneshot::channel();
    // Terminal reads cannot be interrupted: the thread ends with the process.
    thread::Builder::new().name("top".to_owned()).spawn(move || {
        // The receiver is dropped when a signal ends the process.
        ended.send(top::run(&settings, &mut io::stdout())).ok();
    })?;
    end.await.unwrap_or(Ok(()))
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// The process was started in a terminal, which sends SIGHUP when it is closed.
    in_terminal: bool,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            // `nohup` and service managers redirect all three.
            in_terminal: io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal(),
        })
    }

    async fn next(&mut self) -> Action {
        tokio::select! {
            _ = self.terminate.recv() => Action::Stop,
            _ = self.interrupt.recv() => Action::Stop,
            _ = self.hangup.recv() => if self.in_terminal { Action::Stop } else { Action::Hangup },
        }
    }

    /// Waits for the next SIGTERM or SIGINT. A second SIGHUP does not count, because the kernel and the shell each send
    /// one when a terminal is closed.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Watches the configuration file, which Kubernetes replaces when its ConfigMap changes.
struct ConfigFile {
    path: Option<PathBuf>,
    /// The last version that was loaded, successfully or not.
    version: Option<FileVersion>,
    /// The version at the last check.
    seen: Option<FileVersion>,
    due: Interval,
}

impl ConfigFile {
    fn of(config: &Config) -> ConfigFile {
        let mut due = interval(FILE_CHECK);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ConfigFile { path: config.file.clone(), version: config.version, seen: config.version, due }
    }

    /// True once for each new version of the file, when two consecutive checks have found that version. Thus a file is
    /// not loaded while it is being written.
    fn is_changed(&mut self) -> bool {
        let now = self.path.as_deref().and_then(FileVersion::of);
        let is_stable = std::mem::replace(&mut self.seen, now) == now;
        is_stable && std::mem::replace(&mut self.version, now) != now
    }

    /// Records that the current version of the file is loaded.
    fn loaded(&mut self) {
        self.version = self.path.as_deref().and_then(FileVersion::of);
        self.seen = self.version;
    }

    /// Returns when the file has changed. Cancel-safe: the future can be dropped and the function called again.
    async fn changed(&mut self) {
        loop {
            self.due.tick().await;
            if self.is_changed() {
                return;
            }
        }
    }
}

/// Applies the settings that can change while connections are open, and logs changed settings that need a restart. A
/// configuration with any invalid part changes nothing. Returns true if the configuration was applied.
fn reload(
    current: &Mutex<Config>,
    flags: &Flags,
    environment: &Environment,
    instrument: &Instrument,
    logs: &logging::Handle,
) -> bool {
    // A copy, because `/config` must not wait for the lock while files are read.
    let old = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let unusable = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "The new configuration is invalid; keeping the old one.");
        false
    };
    let reloaded = match config::reload(&old, flags, environment) {
        Ok(reloaded) => reloaded,
        Err(error) => return unusable(&error),
    };
    // `new` keeps the old values of keys that need a restart, so the next reload reports their changes again.
    let new = old.adopting(&reloaded.config);
    // Applied even if no key has changed, because the contents of files named in the configuration may have changed.
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
        tracing::info!("The configuration was reloaded; nothing changed.");
    }
    logs.set_levels(&new.settings.log.levels);
    *current.lock().unwrap_or_else(PoisonError::into_inner) = new;
    true
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn changed_file_is_loaded_once_when_two_checks_saw_the_same_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokometer.yaml");
        fs::write(&path, "a").unwrap();
        let version = FileVersion::of(&path);
        let mut file = ConfigFile { path: Some(path.clone()), version, seen: version, due: interval(FILE_CHECK) };
        assert!(!file.is_changed());
        // While the file is being written, each check finds another version.
        for part in ["aa", "aaa"] {
            fs::write(&path, part).unwrap();
            assert!(!file.is_changed());
        }
        assert_eq!([file.is_changed(), file.is_changed()], [true, false]);
        // A reload for another reason loads the latest version, even if only one check has found it.
        fs::write(&path, "aaaa").unwrap();
        assert!(!file.is_changed());
        file.loaded();
        assert!(!file.is_changed());
    }
}
