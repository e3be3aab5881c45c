//! A load generator: a client that opens many streams and measures each one on the client side.
//!
//! It shares no code with the relay's observer, and can therefore verify the observer's values.

mod api;
mod client;
mod connection;
mod events;
mod recorder;
mod request;
mod settings;
mod summary;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::load::client::Client;
use crate::load::connection::Connection;
use crate::load::events::Events;
use crate::load::recorder::Recorder;
use crate::load::request::Target;

pub use crate::load::api::Api;
pub use crate::load::recorder::Progress;
pub use crate::load::request::BadUrl;
pub use crate::load::settings::Settings;
pub use crate::load::summary::{End, Percentiles, Summary};

/// Why the load generator could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The target URL is not supported.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// A header or the model's name is not valid in a request.
    #[error("cannot build the request: {0}; check the headers and the model's name")]
    Request(#[from] http::Error),
    /// The target's host name does not resolve.
    #[error("cannot resolve the host of {url}: {source}; check the name or use an IP address")]
    Resolve {
        /// The target.
        url: String,
        /// The resolver's error.
        source: std::io::Error,
    },
}

/// Interval between two calls of the progress function.
const PROGRESS: Duration = Duration::from_secs(1);

/// State shared by all clients.
#[derive(Debug)]
struct Run {
    settings: Settings,
    recorder: Recorder,
    /// Requests started by all clients.
    begun: AtomicU64,
    ends: Option<Instant>,
}

impl Run {
    /// The number of the next request; `None` if no further request may start.
    fn next(&self) -> Option<u64> {
        if self.ends.is_some_and(|ends| Instant::now() >= ends) {
            return None;
        }
        let number = self.begun.fetch_add(1, Relaxed);
        self.settings.requests.is_none_or(|requests| number < requests).then_some(number)
    }
}

/// Generates load until the configured requests or duration are used up, and returns the measurements.
///
/// `progress` is called about once per second with the state so far. At the end of the duration, open streams are
/// aborted and counted as [`End::Unfinished`].
///
/// # Errors
/// If the target is not an `http://` URL or its host does not resolve. Failures of single requests are counted, not
/// returned.
pub async fn run(settings: Settings, mut progress: impl FnMut(Progress)) -> Result<Summary, Error> {
    let target: Target = settings.url.parse()?;
    let request = target.request(&settings)?;
    let description = target.api(&settings).description();
    let resolve = |source| Error::Resolve { url: settings.url.clone(), source };
    let address = tokio::net::lookup_host(target.address()).await.map_err(resolve)?.next();
    let address = address.ok_or_else(|| resolve(std::io::ErrorKind::NotFound.into()))?;

    let started = Instant::now();
    let ends = settings.duration.map(|duration| started + duration);
    let run = Arc::new(Run { settings, recorder: Recorder::new(started), begun: AtomicU64::new(0), ends });
    let settings = &run.settings;
    let clients = settings.concurrency.max(1);
    let mut tasks = JoinSet::new();
    let mut connection = Arc::new(Connection::new(address, settings.http2));
    for number in 0..clients {
        if !settings.http2 || number % connection::STREAMS == 0 {
            connection = Arc::new(Connection::new(address, settings.http2));
        }
        let client = Client {
            run: Arc::clone(&run),
            connection: Arc::clone(&connection),
            request: request.clone(),
            events: Events::new(description, settings.stamp.is_some()),
        };
        let delay = settings.ramp.mul_f64(number as f64 / clients as f64);
        tasks.spawn(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            client.work().await;
        });
    }
    let mut ticks = tokio::time::interval(PROGRESS);
    let over = async {
        match ends {
            Some(ends) => tokio::time::sleep_until(ends.into()).await,
            None => std::future::pending().await,
        }
    };
    let mut over = std::pin::pin!(over);
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::error!(%error, "load generator client panicked"),
                None => break,
            },
            _ = ticks.tick() => progress(run.recorder.progress()),
            () = &mut over => break,
        }
    }
    let wall = started.elapsed();
    tasks.shutdown().await;
    Ok(run.recorder.summary(wall))
}
