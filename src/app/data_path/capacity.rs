//! The maximum number of client connections: how many fit in the open-files limit, and in the container's memory.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Settings;
use tokometer_observe::observer::memory_limit;
use tokometer_proxy::relay::{DESCRIPTORS_PER_CONNECTION, Full};
use tokometer_telemetry::export::open_descriptors;

/// Descriptors reserved for name resolution, scrapes, exporters, logs and files.
const RESERVED: usize = 64;

/// Memory of a connection that waits for its client, with its two sockets.
const CONNECTION_BYTES: usize = 10 * 1024;

/// Additional memory in rewrite mode: the buffers of pingora. Measured with the sockets in a memory cgroup: 22 KB after a
/// part of the headers, 24 KB between requests, 27 KB with an incomplete body.
const REWRITE_BYTES: usize = 24 * 1024;

/// Additional memory of a TLS session: 8 KB between records (measured), and a record of at most 18 KB that is incomplete.
const TLS_BYTES: usize = 28 * 1024;

/// Memory of the program without connections: code, metrics, and queues of the exporters.
const PROGRAM_BYTES: usize = 20 * 1024 * 1024;

/// Minimum number of connections, in a container that is too small.
const MIN_CONNECTIONS: usize = 64;

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

/// Maximum number of client connections, and the resource that limits it. `observers` is the memory budget of the
/// observers.
///
/// Descriptors in use now, and those reserved for the admin server, the span receiver and `RESERVED`, are not available
/// for clients.
pub(in crate::app) fn connections(settings: &Settings, observers: usize) -> (usize, Full) {
    let files = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let open = open_descriptors().and_then(|open| usize::try_from(open).ok()).unwrap_or(0);
    let receiver = settings.engine_spans.as_ref().map_or(0, |spans| spans.max_connections);
    let by_files = fit(files, open, settings.admin.max_connections + receiver + RESERVED);
    // The copy of the program is in a volume in memory, which counts towards the limit of the container.
    let copy = settings.probe_file.as_ref().and_then(|path| usize::try_from(path.metadata().ok()?.len()).ok());
    let used = observers.saturating_add(copy.unwrap_or(0));
    let memory = memory_limit();
    let by_memory = memory.map_or(usize::MAX, |memory| fit_memory(memory, used, most_bytes(settings)));
    let own = settings.relay.max_connections.unwrap_or(usize::MAX);
    if own < by_files.min(by_memory) {
        tracing::info!(
            connections = own,
            "`relay.max_connections` determines the maximum number of client connections."
        );
    } else if by_files <= by_memory {
        tracing::info!(
            connections = by_files,
            limit = files,
            "The open-files limit determines the maximum number of client connections."
        );
    } else {
        tracing::info!(
            connections = by_memory,
            limit = memory,
            "The container's memory limit determines the maximum number of client connections."
        );
    }
    if by_files <= by_memory { (by_files, Full::Descriptors) } else { (by_memory, Full::Memory) }
}

/// Number of connections that fit. At most half of the free descriptors are reserved, so that some connections fit even
/// if the limit is low.
fn fit(limit: usize, open: usize, reserve: usize) -> usize {
    let free = limit.saturating_sub(open);
    (free - reserve.min(free / 2)) / DESCRIPTORS_PER_CONNECTION
}

/// Number of connections that fit in the memory limit, of which `used` bytes are used otherwise. Half of the memory is
/// reserved for the traffic: bytes in the sockets' buffers, and bytes that wait for slow receivers.
fn fit_memory(limit: usize, used: usize, each: usize) -> usize {
    let free = limit.saturating_sub(used).saturating_sub(PROGRAM_BYTES);
    (free / 2 / each).max(MIN_CONNECTIONS)
}

/// Memory of a connection to the most expensive listener.
fn most_bytes(settings: &Settings) -> usize {
    let bytes = settings.listeners.iter().map(|listener| {
        let rewrite = if listener.rewrite.is_some() { REWRITE_BYTES } else { 0 };
        let sessions = usize::from(listener.tls.is_some()) + usize::from(listener.upstream_tls.is_some());
        CONNECTION_BYTES + rewrite + sessions * TLS_BYTES
    });
    bytes.max().unwrap_or(CONNECTION_BYTES)
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

    #[test]
    fn half_of_the_memory_that_is_left_is_for_waiting_connections() {
        const MIB: usize = 1024 * 1024;
        assert_eq!(fit_memory(64 * MIB, 32 * MIB, CONNECTION_BYTES), 614);
        assert_eq!(fit_memory(256 * MIB, 64 * MIB, CONNECTION_BYTES), 8806);
        assert_eq!(fit_memory(16 * MIB, 8 * MIB, CONNECTION_BYTES), MIN_CONNECTIONS);
    }
}
