//! The program's own copy in a volume, which exec probes run in the engine's container.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Read and execute for every user: the engine's container may run as any.
const MODE: u32 = 0o755;

/// Copies the running program to this path. At any time, the file at the path is complete, so that probes which run it
/// concurrently do not fail.
///
/// # Errors
/// If the file cannot be written. A file from an earlier start is kept.
pub(super) fn write(path: &Path) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut program = File::open("/proc/self/exe")?;
    let mut copy = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(&temporary)?;
    io::copy(&mut program, &mut copy)?;
    // Regardless of the umask.
    copy.set_permissions(Permissions::from_mode(MODE))?;
    // A file that is open for writing cannot be executed.
    drop(copy);
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_replaces_the_file_and_is_executable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, "old").unwrap();
        fs::write(folder.path().join("program.new"), "left by a killed process").unwrap();
        write(&path).unwrap();
        assert!(fs::read(&path).unwrap() == fs::read("/proc/self/exe").unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
