//! Contents of the admin pages, and the health and drain state that they report.

pub(super) mod control;
pub(super) mod requests;
mod snapshot;

use std::sync::Arc;

use crate::admin;
use crate::app::data_path::DataPath;
use crate::app::monitors::Watching;
use crate::app::pages::control::ProgramControl;
use crate::app::recording::Recording;

/// The pages. `config` renders /config.
pub(super) fn pages(
    recording: &Recording,
    watching: &Watching,
    path: &DataPath,
    control: Arc<ProgramControl>,
    config: Arc<dyn Fn() -> String + Send + Sync>,
) -> admin::Pages {
    let exporters = Arc::clone(&recording.exporters);
    let sources = snapshot::Sources {
        started: watching.started,
        in_flight: Arc::clone(&recording.in_flight),
        evaluator: Arc::clone(&recording.evaluator),
        backlog: Arc::clone(&recording.backlog),
        window: Arc::clone(&watching.window),
        engines: watching.scraper.engines(),
        handles: path.handles(),
        listener_states: Arc::clone(&watching.listener_states),
    };
    admin::Pages {
        metrics: Arc::new(move |accept| {
            let page = exporters.scrape(accept);
            (page.content_type.to_owned(), page.body)
        }),
        config,
        engine: requests::engine_health(&recording.in_flight, &watching.listener_states),
        requests: requests::requests(&recording.in_flight),
        live: sources.snapshots(),
        control,
    }
}
