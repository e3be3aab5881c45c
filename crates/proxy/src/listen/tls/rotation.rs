//! TLS configurations that are rebuilt when their files change: certificates can be renewed while tokometer runs.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokometer_settings::FileVersion;

use crate::listen::error::Error;

/// Minimum time between two checks of the files.
const PERIOD: Duration = Duration::from_secs(1);

/// Maximum time that a handshake waits for a check of the files; a slower check finishes in the background.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// A value built from files.
pub(crate) struct Rotating<T> {
    current: ArcSwap<T>,
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, Error> + Send + Sync>,
    began: Instant,
    /// Milliseconds from `began` to the next check.
    due: AtomicU64,
    /// Locked only on tokio's threads for blocking work.
    versions: Mutex<Versions>,
}

/// File versions, in the order of `files`.
struct Versions {
    /// The versions from which the current value was built.
    built: Vec<Option<FileVersion>>,
    /// The versions of the last failed attempt, whose error is logged once. Each check tries again, because the cause
    /// may be transient: no free descriptor, or a key that is readable only later.
    failed: Option<Vec<Option<FileVersion>>>,
}

impl<T: Clone + Send + Sync + 'static> Rotating<T> {
    /// Builds the value.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Arc<Rotating<T>>, Error> {
        let versions = Mutex::new(Versions { built: versions(&files), failed: None });
        let (began, due) = (Instant::now(), AtomicU64::new(PERIOD.as_millis() as u64));
        Ok(Arc::new(Rotating {
            current: ArcSwap::from_pointee(make()?),
            files,
            make: Box::new(make),
            began,
            due,
            versions,
        }))
    }

    /// Returns the value for the current files. Checks the files at most once a second, on a thread for blocking work.
    pub(crate) async fn get(self: &Arc<Self>) -> T {
        let now = self.began.elapsed().as_millis() as u64;
        let due = self.due.load(Ordering::Relaxed);
        let next = now + PERIOD.as_millis() as u64;
        if now >= due && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let this = Arc::clone(self);
            timeout(CHECK_TIMEOUT, spawn_blocking(move || this.check())).await.ok();
        }
        T::clone(&self.current.load())
    }

    /// Rebuilds the value if a file has changed. If that fails, keeps the old value: for example, the certificate may
    /// have been replaced before its key.
    fn check(&self) {
        let mut known = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let now = versions(&self.files);
        if known.built == now {
            known.failed = None;
            return;
        }
        let file = self.files.first().map(|path| path.display().to_string());
        match (self.make)() {
            Ok(value) => {
                self.current.store(Arc::new(value));
                *known = Versions { built: now, failed: None };
                tracing::info!(file, "The TLS files have changed; new connections use the new files.");
            }
            Err(error) => {
                if known.failed.as_ref() != Some(&now) {
                    tracing::error!(file, %error, "The changed TLS files cannot be used; keeping the old configuration. Trying again every second.");
                }
                known.failed = Some(now);
            }
        }
    }
}

impl<T> fmt::Debug for Rotating<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rotating").field("files", &self.files).finish_non_exhaustive()
    }
}

fn versions(files: &[PathBuf]) -> Vec<Option<FileVersion>> {
    files.iter().map(|path| FileVersion::of(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn changed_file_is_used_and_an_unusable_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("current");
        let version = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            let next = folder.path().join("next");
            std::os::unix::fs::symlink(path, &next).unwrap();
            fs::rename(next, &link).unwrap();
        };
        version("one", "1");
        let read = link.clone();
        let number = move || fs::read_to_string(&read).unwrap().parse::<u32>().map_err(|e| Error::Tls(e.to_string()));
        let rotating = Rotating::new(vec![link.clone()], number).unwrap();
        let checked = || {
            rotating.check();
            **rotating.current.load()
        };
        assert_eq!(checked(), 1);
        version("bad", "no number");
        assert_eq!(checked(), 1);
        version("two", "2");
        assert_eq!(checked(), 2);
        fs::remove_file(folder.path().join("two")).unwrap();
        fs::write(folder.path().join("two"), "22").unwrap();
        assert_eq!(checked(), 22);
    }

    #[test]
    fn file_that_fails_once_is_used_at_the_next_check() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("certificate");
        fs::write(&file, "1").unwrap();
        let fails = Arc::new(AtomicU64::new(0));
        let (left, read) = (Arc::clone(&fails), file.clone());
        let make = move || match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::Tls("no free descriptor".to_owned())),
            Err(_) => fs::read_to_string(&read).map_err(|error| Error::Tls(error.to_string())),
        };
        let rotating = Rotating::new(vec![file.clone()], make).unwrap();
        let checked = || {
            rotating.check();
            String::clone(&rotating.current.load())
        };
        fs::write(&file, "renewed").unwrap();
        fails.store(2, Ordering::Relaxed);
        assert_eq!([checked(), checked(), checked()], ["1", "1", "renewed"]);
    }
}
