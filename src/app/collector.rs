//! Forwards the engine's messages to the collector of tokometer's own traces.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;

use tokometer_engine::engine_spans::{Collector, Reply};
use tokometer_telemetry::export;
use tokometer_telemetry::export::{Answer, Passage};

/// The collector of tokometer's own traces, if there is one.
pub(super) fn of(traces: &export::Traces) -> Result<Option<Arc<dyn Collector>>, export::Error> {
    let passage = traces.endpoint.as_ref().map(Passage::new).transpose()?;
    Ok(passage.map(|passage| Arc::new(Onward(passage)) as Arc<dyn Collector>))
}

struct Onward(Passage);

#[async_trait]
impl Collector for Onward {
    async fn export(&self, message: Bytes, headers: HeaderMap) -> Reply {
        match self.0.send(message, headers).await {
            Answer::Taken { rejected } => Reply::Taken { rejected },
            Answer::Later { after, why } => Reply::Later(after, why),
            Answer::Refused { why } => Reply::Refused(why),
        }
    }
}
