//! A load generator: a client that opens many streams and measures each one on the client side.
//!
//! It has its own lightweight HTTP/1.1 and SSE parsers, so that its times are wire times. It shares no code with the
//! relay's observer and can therefore check the observer's values.

mod api;
mod client;
mod events;
mod http1;
mod http2;
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
use crate::load::recorder::Recorder;
use crate::load::request::{Request, Url};

pub use crate::load::api::{Api, UnknownApi};
pub use crate::load::recorder::Progress;
pub use crate::load::request::BadUrl;
pub use crate::load::settings::{Inspect, Settings};
pub use crate::load::summary::{End, Percentiles, Summary};

/// Why the load generator could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The target URL is not supported.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The target's host name does not resolve.
    #[error("cannot resolve the host of {url}: {source}; check the name or use an IP address")]
    Resolve {
        /// The target.
        url: String,
        /// The resolver's error.
        source: std::io::Error,
    },
}

/// State shared by all clients.
#[derive(Debug)]
struct Run {
    settings: Settings,
    /// Requests started, over all clients.
    begun: AtomicU64,
    ends: Option<Instant>,
}

impl Run {
    /// The number of the next request, if another one may start.
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
/// `progress` is called about once every [`Settings::progress_every`] with the state so far. At the end of the
/// duration, open streams are aborted and counted as [`End::Unfinished`].
///
/// # Errors
/// If the target is not an `http://` URL or its host does not resolve. Failures of single requests are counted, not
/// returned.
pub async fn run(settings: Settings, mut progress: impl FnMut(Progress)) -> Result<Summary, Error> {
    let url: Url = settings.url.parse()?;
    let resolve = |source| Error::Resolve { url: settings.url.clone(), source };
    let address = tokio::net::lookup_host((url.host.as_str(), url.port)).await.map_err(resolve)?.next();
    let address = address.ok_or_else(|| resolve(std::io::ErrorKind::NotFound.into()))?;

    let started = Instant::now();
    let ends = settings.duration.map(|duration| started + duration);
    let recorder = Arc::new(Recorder::new(started));
    let (clients, ramp, tick) = (settings.concurrency.max(1), settings.ramp, settings.progress_every);
    let run = Arc::new(Run { settings, begun: AtomicU64::new(0), ends });
    let request = Arc::new(Request::new(&url, &run.settings));
    let mut tasks = JoinSet::new();
    let mut shared = None;
    for number in 0..clients {
        if run.settings.http2 && number % http2::STREAMS == 0 {
            shared = Some(Arc::new(http2::Connection::new(address, Arc::clone(&request))));
        }
        let client = Client::new(address, &request, shared.clone(), Arc::clone(&run), Arc::clone(&recorder));
        let delay = ramp.mul_f64(number as f64 / clients as f64);
        tasks.spawn(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            client.work().await;
        });
    }
    let mut ticks = tokio::time::interval(tick.max(Duration::from_millis(10)));
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
            _ = ticks.tick() => progress(recorder.progress()),
            () = &mut over => break,
        }
    }
    let wall = started.elapsed();
    tasks.shutdown().await;
    Ok(recorder.summary(wall))
}
