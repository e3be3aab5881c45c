//! What is known of a connection's network, for the requests on it.

use std::sync::Arc;

use crate::input::{Network, NetworkSource};

/// See the module. Boxed: a connection whose source of traffic does not show the network has none.
#[derive(Default)]
pub(super) struct ClientNetwork(Option<Box<Known>>);

#[derive(Default)]
struct Known {
    latest: Option<Network>,
    source: Option<Arc<dyn NetworkSource>>,
}

impl ClientNetwork {
    /// The values now.
    pub(super) fn set(&mut self, network: &Network) {
        self.0.get_or_insert_default().latest = Some(*network);
    }

    /// Where later values can be read.
    pub(super) fn read_from(&mut self, source: Arc<dyn NetworkSource>) {
        self.0.get_or_insert_default().source = Some(source);
    }

    /// The values when a request begins: what happened since the last request is not part of this one. `None` if nothing
    /// has happened on the connection, which saves a system call.
    pub(super) fn at_begin(&mut self) -> Option<Network> {
        let is_used = self.0.as_ref()?.latest.is_some();
        if is_used { self.now() } else { None }
    }

    /// The values now, read if there is a source.
    pub(super) fn now(&mut self) -> Option<Network> {
        let known = self.0.as_mut()?;
        if let Some(source) = &known.source {
            match source.network() {
                Some(now) => known.latest = Some(now),
                None => known.source = None,
            }
        }
        known.latest
    }
}
