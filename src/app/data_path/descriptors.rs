//! File descriptors: the process limit, and the number of connections that fit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Settings;
use tokometer_proxy::relay::DESCRIPTORS_PER_CONNECTION;
use tokometer_telemetry::export::open_descriptors;

/// Descriptors reserved for name resolution, scrapes, exporters, logs and files.
const RESERVED: usize = 64;

/// Raises the soft open-files limit to the hard limit. Systems keep the soft limit low for programs that use select(2).
pub(in crate::app) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::info!(from = ?current, to = ?maximum, "Raised the limit of open files."),
        Err(error) => tracing::warn!(%error, ?current, ?maximum, "Cannot raise the limit of open files."),
    }
}

/// Maximum number of client connections under the open-files limit. Descriptors in use now, and those reserved for the
/// admin server, the span receiver and `RESERVED`, are not available for clients.
pub(in crate::app) fn connections(settings: &Settings) -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let open = open_descriptors().and_then(|open| usize::try_from(open).ok()).unwrap_or(0);
    let receiver = settings.queue.as_ref().map_or(0, |queue| queue.max_connections);
    let connections = fit(limit, open, settings.admin.max_connections + receiver + RESERVED);
    tracing::info!(connections, limit, "The open-files limit determines the maximum number of client connections.");
    connections
}

/// Number of connections that fit. At most half of the free descriptors are reserved, so that some connections fit even
/// if the limit is low.
fn fit(limit: usize, open: usize, reserve: usize) -> usize {
    let free = limit.saturating_sub(open);
    (free - reserve.min(free / 2)) / DESCRIPTORS_PER_CONNECTION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_kept_free_and_takes_at_most_half() {
        assert_eq!(fit(1024, 24, 400), 200);
        assert_eq!(fit(64, 24, 400), 6);
        assert_eq!(fit(20, 24, 400), 0);
        assert_eq!(fit(usize::MAX, 24, 400), (usize::MAX - 424) / 3);
    }
}
