//! A relay in this process, on a free port.

use std::net::SocketAddr;
use std::sync::Arc;

use tokometer::app::{Serving, serve};
use tokometer_proxy::listen;
use tokometer_proxy::listen::{Address, Listener};
use tokometer_proxy::relay::{Drain, Relay, Settings};

use crate::listener::listener_to;

use super::watcher::{Mood, Watcher};

/// A running relay with one or more listeners.
pub(crate) struct Rig {
    pub(crate) addresses: Vec<Address>,
    pub(crate) relay: Arc<Relay>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) drain: Drain,
    // Dropping this field stops the relay's threads. Fields are dropped in this order, so it is dropped last.
    pub(crate) serving: Serving,
}

impl Rig {
    /// A relay on a free TCP port with default settings.
    pub(crate) fn to(upstream: impl Into<Address>) -> Rig {
        Rig::watched(upstream, Mood::Calm)
    }

    /// A relay whose observers behave as this mood defines.
    pub(crate) fn watched(upstream: impl Into<Address>, mood: Mood) -> Rig {
        Rig::with(vec![listener_to(upstream)], Settings::default(), Watcher::new(mood, true))
    }

    pub(crate) fn with(listeners: Vec<Listener>, settings: Settings, watcher: Arc<Watcher>) -> Rig {
        let drain = Drain::new();
        let bound: Vec<_> = listeners.into_iter().map(|listener| listen::bind(listener, &settings).unwrap()).collect();
        let addresses = bound.iter().map(|bound| bound.address.clone()).collect();
        let relay = Relay::new(settings, 1, Arc::clone(&watcher) as _, drain.clone());
        let serving = serve(listen::serve(bound, &relay, 2).unwrap()).unwrap();
        Rig { addresses, relay, watcher, drain, serving }
    }

    /// The TCP address of the first listener.
    pub(crate) fn address(&self) -> SocketAddr {
        tcp(&self.addresses[0])
    }
}

pub(crate) fn tcp(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp { host, port } => SocketAddr::new(host.parse().unwrap(), *port),
        other => panic!("{other} is not a TCP address"),
    }
}
