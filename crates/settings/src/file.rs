//! Detects file changes without reading the file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identifies one version of a file. The value changes when the file is written, replaced, or made readable. Symbolic
/// links are followed, so the link swap of a mounted ConfigMap or Secret is detected too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Time of the last change of content or attributes: seconds and nanoseconds.
    changed: (i64, i64),
}

impl FileVersion {
    /// The version at this path now; `None` if there is no such file.
    pub fn of(path: &Path) -> Option<FileVersion> {
        let file = fs::metadata(path).ok()?;
        let changed = (file.ctime(), file.ctime_nsec());
        Some(FileVersion { device: file.dev(), inode: file.ino(), bytes: file.size(), changed })
    }
}
