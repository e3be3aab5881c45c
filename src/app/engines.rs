//! Connections to the engines' own metrics: address and TLS of the upstream, optionally another port.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;

use tokometer_engine::scrape::Dial;
use tokometer_engine::scrape::Scraper;
use tokometer_engine::scrape::Settings;
use tokometer_engine::scrape::Target;
use tokometer_engine::scrape::Wire;
use tokometer_proxy::listen;
use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::Pair;
use tokometer_proxy::listen::Protocol;
use tokometer_proxy::listen::Upstream;

/// Why scraping cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A TLS file cannot be used.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// The thread cannot be started.
    #[error("cannot start the thread that scrapes the engines' metrics: {0}")]
    Thread(#[from] io::Error),
}

/// Starts scraping.
pub(super) fn start(settings: &Settings, pairs: &[Pair]) -> Result<Scraper, Error> {
    let way =
        |(pair, target): (&Pair, &Option<Target>)| target.as_ref().map(|target| Way::new(pair, target)).transpose();
    let ways: Vec<Option<Arc<Way>>> = pairs.iter().zip(&settings.targets).map(way).collect::<Result<_, _>>()?;
    Ok(Scraper::start(settings, |pair, _| Some(ways.get(pair)?.clone()? as Arc<dyn Dial>))?)
}

struct Way {
    upstream: Upstream,
    host: String,
    shown: String,
}

impl Way {
    fn new(pair: &Pair, target: &Target) -> Result<Arc<Way>, listen::Error> {
        let mut address = pair.upstream.clone();
        if let (Address::Tcp { port, .. }, Some(own)) = (&mut address, target.port) {
            *port = own;
        }
        let shown = address.to_string();
        let host = match &address {
            Address::Tcp { .. } => shown.clone(),
            _ => "localhost".to_owned(),
        };
        // Each connection is used for one request.
        Ok(Arc::new(Way { upstream: Upstream::new(&address, pair.upstream_tls.as_ref(), None)?, host, shown }))
    }
}

#[async_trait]
impl Dial for Way {
    async fn dial(&self) -> io::Result<Box<dyn Wire>> {
        Ok(Box::new(self.upstream.connect(None, Protocol::Http1).await?))
    }

    fn host(&self) -> String {
        self.host.clone()
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }
}
