//! Rewrite mode: an HTTP proxy based on pingora-proxy, for the few features that have to change traffic. Its observers
//! get the same input as the relay's.
//!
//! The relay handles TLS, the connection limit and the connections to the server; pingora gets streams that are already
//! open.

mod body;
mod client;
mod deferred;
mod framing;
mod message;
mod proxy;
mod request;
mod settings;
mod trace;
mod upstream;

use std::any::Any;
use std::sync::Arc;

use tokometer_proxy::listen::{Handler, Handlers, Server};
use tokometer_proxy::relay::Relay;

use proxy::Proxy;
pub use settings::Settings;

impl Handlers for Settings {
    fn handler(&self, relay: &Arc<Relay>, listener: usize, server: Arc<dyn Server>) -> Arc<dyn Handler> {
        Arc::new(Proxy::new(&Arc::new(self.clone()), relay, listener, server))
    }

    fn equals(&self, other: &dyn Handlers) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
