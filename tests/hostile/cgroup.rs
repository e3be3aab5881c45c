//! A memory cgroup for the program under test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// A cgroup (v1 or v2) with a memory limit; removed when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Fails if the last process is still exiting. The remaining empty cgroup is harmless.
        fs::remove_dir(&self.path).ok();
    }
}

impl Cgroup {
    /// Creates a child of this process's cgroup with this limit and no swap.
    ///
    /// # Errors
    /// The reason why it cannot be created on this machine.
    pub(crate) fn new(limit: u64) -> Result<Cgroup, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let one = own.lines().find_map(|line| line.split_once(":memory:"));
        let two = own.lines().find_map(|line| line.strip_prefix("0::"));
        let name = format!("tokometer-hostile-{}", std::process::id());
        let (parent, version) = match (one, two) {
            (Some((_, path)), _) => {
                (Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')), Version::One)
            }
            (None, Some(path)) => (Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')), Version::Two),
            (None, None) => return Err("no memory controller in /proc/self/cgroup".to_owned()),
        };
        // Inside a container the path may be the host's, which does not exist in the container's mount: ancestors are
        // tried then.
        let roots = [parent.clone(), parent.ancestors().nth(2).unwrap_or(&parent).to_owned(), "/sys/fs/cgroup".into()];
        let root = roots.iter().find(|root| root.is_dir()).ok_or("no cgroup file system")?;
        let path = root.join(name);
        let failed = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        fs::create_dir(&path).map_err(|error| failed(&path, error))?;
        let cgroup = Cgroup(Arc::new(Folder { path, version }));
        let write = |file: &str, value: &str| {
            let file = cgroup.0.path.join(file);
            fs::write(&file, value).map_err(|error| failed(&file, error))
        };
        match version {
            Version::One => {
                write("memory.limit_in_bytes", &limit.to_string())?;
                // Kernels without swap accounting have no such file.
                write("memory.memsw.limit_in_bytes", &limit.to_string()).ok();
            }
            Version::Two => {
                write("memory.max", &limit.to_string())?;
                write("memory.swap.max", "0").ok();
            }
        }
        Ok(cgroup)
    }

    /// The file that processes are written to.
    pub(crate) fn members(&self) -> PathBuf {
        self.0.path.join("cgroup.procs")
    }

    /// The number of OOM kills, and the peak memory in bytes.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let read = |file: &str| fs::read_to_string(self.0.path.join(file)).unwrap_or_default();
        let field = |text: String, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            line.unwrap_or(0)
        };
        let number = |text: String| text.trim().parse().unwrap_or(0);
        match self.0.version {
            Version::One => (field(read("memory.oom_control"), "oom_kill "), number(read("memory.max_usage_in_bytes"))),
            Version::Two => (field(read("memory.events"), "oom_kill "), number(read("memory.peak"))),
        }
    }
}
