//! One connection from its first byte to its last: joins `wire`, `decode` and `measure`, and contains their faults.
//!
//! What it cannot follow it stops reading, counts why, and lets pass.

mod connection;
mod engine;
mod exchange;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::decode::Route;
use crate::measure::Detach;
use crate::measure::Sink;
use crate::measure::Thresholds;
use crate::observe::connection::ConnectionObserver;
use crate::observe::engine::LastSeen;
use crate::relay::Connection;
use crate::relay::Observe;
use crate::relay::Observer;
use crate::wire::Limits;

pub use settings::Settings;

/// Observes every connection of the process, and tells a [`Sink`] what it saw.
#[derive(Debug)]
pub struct Observatory {
    shared: Arc<Shared>,
}

/// What all observers share.
struct Shared {
    settings: Settings,
    thresholds: Thresholds,
    sink: Arc<dyn Sink>,
    engines: Vec<LastSeen>,
    observed: AtomicUsize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Observatory {
    /// Observes the connections of `pairs` listen -> upstream pairs.
    pub fn new(settings: Settings, pairs: usize, sink: Arc<dyn Sink>) -> Observatory {
        let thresholds = Thresholds {
            stall: settings.stall,
            min_rate_tokens: settings.min_rate_tokens,
            min_rate_span: settings.min_rate_span,
        };
        let engines = (0..pairs).map(|_| LastSeen::default()).collect();
        Observatory { shared: Arc::new(Shared { settings, thresholds, sink, engines, observed: AtomicUsize::new(0) }) }
    }

    /// Connections that are observed now.
    pub fn observed(&self) -> usize {
        self.shared.observed.load(Ordering::Relaxed)
    }
}

impl Observe for Observatory {
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>> {
        let shared = &self.shared;
        if !shared.settings.enabled {
            return None;
        }
        if shared.observed.fetch_add(1, Ordering::Relaxed) >= shared.settings.max_observed {
            shared.forget();
            shared.sink.detached(connection.pair, Detach::Shed);
            return None;
        }
        Some(Box::new(ConnectionObserver::new(connection, Arc::clone(shared))))
    }
}

impl Shared {
    fn limits(&self) -> Limits {
        Limits { head_bytes: self.settings.head_bytes, pipeline_depth: self.settings.pipeline_depth }
    }

    /// A connection is no longer observed.
    fn forget(&self) {
        self.observed.fetch_sub(1, Ordering::Relaxed);
    }

    /// The route of this request target, a configured prefix taken off.
    fn route(&self, target: &str) -> Route {
        let prefixes = &self.settings.path_prefixes;
        let rest = prefixes.iter().find_map(|prefix| target.strip_prefix(prefix.as_str()));
        Route::of_target(rest.unwrap_or(target))
    }

    fn recognised(&self, pair: usize, engine: &'static str) {
        if let Some(last) = self.engines.get(pair) {
            last.set(engine);
        }
    }

    fn last_engine(&self, pair: usize) -> Option<&'static str> {
        self.settings.engine.or_else(|| self.engines.get(pair)?.get())
    }
}
