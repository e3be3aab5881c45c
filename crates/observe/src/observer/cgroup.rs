//! The memory limit of the container.

use std::fs;
use std::path::Path;

/// Maximum of [`automatic`].
const MAX_AUTOMATIC: usize = 64 * 1024 * 1024;

/// The default memory budget of this process: half of its container's limit, at most 64 MiB.
pub(super) fn automatic() -> usize {
    limit().map_or(MAX_AUTOMATIC, |limit| (limit / 2).min(MAX_AUTOMATIC))
}

/// A limit above this means unlimited: cgroup v1 then reports the maximum number of pages.
const UNLIMITED: usize = 1 << 60;

/// Memory limit in bytes of this process's control group and its ancestors; `None` without a limit.
///
/// cgroup v2 (`memory.max`) and v1 (`memory.limit_in_bytes`), see cgroups(7). In a container the paths in
/// `/proc/self/cgroup` may be those of the host; the mounted root is then the container's own group.
fn limit() -> Option<usize> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = own.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            v1 if v1.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let own = Path::new(root).join(path.trim_start_matches('/'));
        own.ancestors()
            .take_while(|group| group.starts_with(root))
            .filter_map(|group| read(&group.join(file)))
            .collect()
    });
    limits.filter(|limit| *limit < UNLIMITED).min()
}

fn read(file: &Path) -> Option<usize> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
