//! The thread that scrapes the engines' pages.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use http::{Method, header};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::scrape::request::{Dial, Place, find, send, slash_redirect};
use crate::scrape::state::Page;
use crate::scrape::{Failure, Measurements, Settings, State, Stillness, Target, Watch};

/// Niceness of the thread (setpriority(2)), so that streams on the same core take precedence.
const NICENESS: i32 = 10;

/// An engine whose page must not be read is checked again after this time: another engine may have replaced it.
const RECHECK_AFTER: Duration = Duration::from_secs(60);

/// Pause after a page that was JSON, because reading such a page may empty it ([`Failure::Json`]).
const AFTER_JSON: Duration = Duration::from_secs(3600);

/// The scraped state of the engines, by listener.
#[derive(Clone, Debug, Default)]
pub struct Engines(Arc<[Option<Arc<Watch>>]>);

impl Engines {
    /// Current statistics of each listener's engine; `None` for an engine that is not scraped.
    pub fn measurements(&self, now: Instant) -> Vec<Option<Measurements>> {
        self.0.iter().map(|watch| watch.as_ref().map(|watch| watch.measurements(now))).collect()
    }

    /// See [`Watch::still`].
    pub fn still(&self, listener: usize, now: Instant) -> Stillness {
        self.0.get(listener).and_then(Option::as_ref).map(|watch| watch.still(now)).unwrap_or_default()
    }

    /// The state of a listener's engine that was current at `moment`, and its age then.
    pub fn at(&self, listener: usize, moment: Instant) -> Option<(Arc<State>, Duration)> {
        self.0.get(listener)?.as_ref()?.at(moment)
    }
}

/// Scrapes pages until it is dropped.
#[derive(Debug)]
pub struct Scraper {
    engines: Engines,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// One engine: its target, connections and results.
struct Engine {
    target: Target,
    dial: Arc<dyn Dial>,
    watch: Arc<Watch>,
    settings: Arc<Settings>,
    /// Location of the page. Determined once, and again after a failed connection or an error status, because another
    /// engine may have taken the address.
    place: Option<Place>,
    /// The version was requested from the engine at `place`.
    version_asked: bool,
    /// The last log message.
    logged: Option<String>,
}

impl Scraper {
    /// Starts scraping; `dial` creates connections to a listener's engine. Without targets, no thread is started.
    ///
    /// # Errors
    /// When no thread or runtime can be started.
    pub fn start(settings: &Settings, dial: impl Fn(usize, &Target) -> Option<Arc<dyn Dial>>) -> io::Result<Scraper> {
        let settings = Arc::new(settings.clone());
        let first = |listener: usize| settings.servers.get(listener).copied().unwrap_or(listener);
        let engine = |(listener, target): (usize, &Option<Target>)| {
            let target = target.clone().filter(|_| first(listener) == listener)?;
            let (dial, watch) = (dial(listener, &target)?, Arc::new(Watch::new(&settings)));
            Some(Engine {
                target,
                dial,
                watch,
                settings: Arc::clone(&settings),
                place: None,
                version_asked: false,
                logged: None,
            })
        };
        let engines: Vec<Option<Engine>> = settings.targets.iter().enumerate().map(engine).collect();
        let watch = |listener: usize| Some(Arc::clone(&engines.get(first(listener))?.as_ref()?.watch));
        let known = (0..engines.len()).map(watch).collect();
        let (stop, mut stopped) = watch::channel(false);
        let mut scraper = Scraper { engines: Engines(known), stop, thread: None };
        let engines: Vec<Engine> = engines.into_iter().flatten().collect();
        if !engines.is_empty() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
            scraper.thread = Some(thread::Builder::new().name("scrape".to_owned()).spawn(move || {
                // Lowering the priority needs no privilege; if it is refused, the pages are still read.
                rustix::process::nice(NICENESS).ok();
                runtime.block_on(async move {
                    let mut all: JoinSet<()> = engines.into_iter().map(Engine::run).collect();
                    tokio::select! {
                        // An error means that the scraper was dropped.
                        _ = stopped.changed() => {}
                        () = async { while all.join_next().await.is_some() {} } => {}
                    }
                });
                // Do not wait for a pending name lookup.
                runtime.shutdown_background();
            })?);
        }
        Ok(scraper)
    }

    /// The scraped state of the engines.
    pub fn engines(&self) -> Engines {
        self.engines.clone()
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("The thread that scrapes the engines' metrics panicked.");
        }
    }
}

impl Engine {
    async fn run(mut self) {
        loop {
            let pause = self.attempt().await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Makes one attempt; returns the time until the next.
    async fn attempt(&mut self) -> Duration {
        let begun = Instant::now();
        let result = tokio::time::timeout(self.settings.timeout, self.read()).await;
        let took = begun.elapsed();
        match result.unwrap_or(Err(Failure::Timeout)) {
            Ok(None) => {
                self.log("The engine's metrics are not scraped: each read restarts llama.cpp's averages, so another reader would miss them. Set scrape.enabled: true to scrape them anyway.");
                return RECHECK_AFTER;
            }
            Ok(Some((page, at))) => {
                self.watch.note(at, took, Ok(&page));
                self.log("The engine's metrics are scraped.");
                if let Some(engine) = page.engine().filter(|_| !std::mem::replace(&mut self.version_asked, true)) {
                    self.watch.set_version(engine.as_str(), self.version(engine).await);
                }
            }
            Err(failure) => {
                self.watch.note(begun + took, took, Err(failure));
                // After other failures, the server is still the same. Locating the page again would cost a slow server
                // another request.
                if matches!(failure, Failure::Connect | Failure::Status) {
                    self.place = None;
                    self.version_asked = false;
                }
                self.log(&format!("The engine's metrics cannot be scraped ({}).", failure.as_str()));
                if failure == Failure::Json {
                    return AFTER_JSON;
                }
            }
        }
        self.watch.pause(&self.settings, fastrand::f64())
    }

    /// The page and when its response started; `None` if the page must not be read.
    async fn read(&mut self) -> Result<Option<(Page, Instant)>, Failure> {
        let place = match &self.place {
            Some(place) => place.clone(),
            None => find(&self.target, &*self.dial).await?,
        };
        let Place::At(mut path) = place else { return Ok(None) };
        let mut response = send(&*self.dial, Method::GET, &path).await?;
        if let Some(slashed) = slash_redirect(&path, response.status, response.header(header::LOCATION)) {
            path = slashed;
            response = send(&*self.dial, Method::GET, &path).await?;
        }
        if response.status != http::StatusCode::OK {
            return Err(Failure::Status);
        }
        if response.header(header::CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json")) {
            return Err(Failure::Json);
        }
        let at = response.at;
        let page = response.page(self.settings.page_bytes).await?;
        self.place = Some(Place::At(path));
        Ok(Some((page, at)))
    }

    /// The version of this engine, if it reports one.
    async fn version(&self, engine: tokometer_decode::Engine) -> Option<Arc<str>> {
        let path = engine.info().version?;
        let read = async { send(&*self.dial, Method::GET, path).await.ok()?.version().await };
        tokio::time::timeout(self.settings.timeout, read).await.ok()?
    }

    /// Logs a message unless it repeats the last one.
    fn log(&mut self, what: &str) {
        if self.logged.as_deref() != Some(what) {
            tracing::info!(engine = %self.dial.shown(), "{what}");
            self.logged = Some(what.to_owned());
        }
    }
}
