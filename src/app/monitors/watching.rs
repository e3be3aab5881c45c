//! The running monitors of a program, and what they know.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokometer_engine::scrape::Scraper;
use tokometer_metrics::Collect;
use tokometer_proxy::relay::{Phase, Relay};
use tokometer_telemetry::export::Process;
use tokometer_telemetry::live::Signs;
use tokometer_telemetry::slo::Window;

use crate::app::data_path::{DataPath, Handles};
use crate::app::monitors::{self, Error, ListenerStates, ListenerStats, Monitor, Reloads};
use crate::app::recording::Recording;
use crate::config::Settings;

/// The monitors. They stop when they are dropped.
#[derive(Debug)]
pub(in crate::app) struct Watching {
    monitors: Vec<Monitor>,
    pub(in crate::app) listener_states: Arc<ListenerStates>,
    pub(in crate::app) reloads: Arc<Reloads>,
    pub(in crate::app) scraper: Scraper,
    /// Evaluated requests of the last minutes.
    pub(in crate::app) window: Arc<Window>,
    pub(in crate::app) started: Instant,
}

impl Watching {
    /// Starts the monitors, except those that open the listeners, and exports what they know.
    pub(in crate::app) fn start(
        settings: &Settings,
        recording: &Recording,
        path: &mut DataPath,
        scraper: Scraper,
    ) -> Result<Watching, Error> {
        let thread = |what| move |error| Error::Thread(what, error);
        let started = Instant::now();
        let (in_flight, evaluator) = (&recording.in_flight, &recording.evaluator);
        let window = Arc::new(Window::new(started));
        let objectives = monitors::objectives(Arc::clone(evaluator), Arc::clone(in_flight), Arc::clone(&window));
        let mut all = vec![objectives.map_err(thread("evaluates waiting requests"))?];
        let Handles { relay, observers } = path.handles();
        // A weak reference avoids a cycle: the relay owns `in_flight` through its observers.
        let threads = Arc::downgrade(&relay);
        in_flight.set_overdue(move |now| threads.upgrade().map_or(Duration::ZERO, |relay| relay.overdue(now)));
        let gates = path.take_gates();
        let listener_states = ListenerStates::new(&settings.listeners, path.addresses(), gates);
        let listener_states = listener_states.map_err(Error::Listen)?;
        let (servers, engines, drain) = (Arc::clone(&listener_states), scraper.engines(), relay.drain().clone());
        in_flight.set_signs_source(Box::new(move |listener, now| Signs {
            // During a drain, the server may stop too: this is not an outage.
            reach: servers
                .status(listener)
                .filter(|_| drain.phase() == Phase::Running)
                .map(|status| status.reach(now))
                .unwrap_or_default(),
            still: engines.still(listener, now),
        }));
        let traffic: Arc<dyn Collect> = match path.captured() {
            // A capture forwards nothing: the metrics of the listeners would be zero.
            Some(captured) => captured.stats,
            None => {
                let listener_states = Arc::clone(&listener_states);
                let listeners = Arc::new(ListenerStats { relay, listener_states, interceptions: Mutex::default() });
                let (listening, addresses) = (settings.listeners.clone(), path.addresses().to_vec());
                let interception = monitors::interception(listening, addresses, Arc::clone(&listeners));
                all.push(interception.map_err(thread("checks for direct access to the server"))?);
                listeners
            }
        };
        let reloads = Arc::new(Reloads::default());
        let owners: [Arc<dyn Collect>; 5] = [
            Arc::new(Process),
            Arc::clone(&reloads) as Arc<dyn Collect>,
            Arc::new(scraper.engines()),
            traffic,
            observers,
        ];
        owners.into_iter().for_each(|owner| recording.exporters.add(owner));
        Ok(Watching { monitors: all, listener_states, reloads, scraper, window, started })
    }

    /// Starts to check the servers; each listener opens when its server accepts connections.
    pub(in crate::app) fn open(&mut self, relay: &Arc<Relay>) -> Result<(), Error> {
        let opened = self.listener_states.watch(relay);
        let opened = opened.map_err(|error| Error::Thread("checks whether the servers accept connections", error))?;
        self.monitors.extend(opened);
        Ok(())
    }
}
