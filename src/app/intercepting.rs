//! Checks once a minute whether the server can be reached directly, bypassing tokometer.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::Interception;
use tokometer_proxy::listen::Pair;
use tokometer_proxy::listen::intercepts;

/// Time between checks.
const PERIOD: Duration = Duration::from_secs(60);

/// Time between checks while a server does not respond, as during startup, when it loads its model.
const SOON: Duration = Duration::from_secs(2);

/// Result per listener; `None` while its server does not respond.
pub(super) type Found = Arc<Mutex<Vec<Option<Interception>>>>;

/// The checking thread; dropping this stops it.
#[derive(Debug)]
pub(super) struct Intercepting {
    /// Dropping it ends the thread without waiting: its last connect may take a second.
    _stop: Sender<()>,
}

impl Intercepting {
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(pairs: Vec<Pair>, addresses: Vec<Address>, found: Found) -> io::Result<Intercepting> {
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new().name("interception".to_owned()).spawn(move || {
            let mut last: Vec<Option<Interception>> = vec![None; pairs.len()];
            loop {
                let look = |(pair, listen): (&Pair, &Address)| intercepts(listen, &pair.upstream, &addresses);
                let now: Vec<Option<Interception>> = pairs.iter().zip(&addresses).map(look).collect();
                for ((pair, now), last) in pairs.iter().zip(&now).zip(&last) {
                    if let (Some(now), true) = (now, now != last) {
                        tell(pair, now);
                    }
                }
                let period = if now.contains(&None) { SOON } else { PERIOD };
                last.clone_from(&now);
                *found.lock().unwrap_or_else(PoisonError::into_inner) = now;
                if stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Intercepting { _stop: stop })
    }
}

fn tell(pair: &Pair, Interception { mode, result }: &Interception) {
    let (name, upstream) = (&pair.name, &pair.upstream);
    match *result {
        "open" => {
            tracing::warn!(pair = %name, %upstream, mode, "The server can be reached directly: requests that bypass tokometer are not measured.")
        }
        result => {
            tracing::info!(pair = %name, %upstream, mode, result, "Checked how tokometer intercepts traffic to the server.")
        }
    }
}
