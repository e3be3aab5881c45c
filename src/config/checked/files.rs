//! Checks whether the files named in a configuration can be opened now, by the user running this process.
//!
//! The modules that use the files parse them. They also open vocabularies and the tenants' key, and report errors with
//! the keys.

use std::fs;
use std::io;
use std::path::Path;

use crate::config::Settings;
use crate::config::checked::Problems;
use crate::config::raw::{Destination, Otlp, Raw};
use crate::logging::AccessLogSettings;
use tokometer_telemetry::export::Endpoint;

/// Adds a problem for each file in use that cannot be opened.
pub(crate) fn open(raw: &Raw, settings: &Settings, problems: &mut Problems<'_>) {
    for (index, (listener, raw)) in settings.listeners.iter().zip(&raw.listeners).enumerate() {
        let mut look = |block: &str, key: &str, path: &Option<String>| {
            readable(&format!("listeners[{index}].{block}.{key}"), path.as_deref(), problems);
        };
        if listener.tls.is_some() {
            look("tls", "certificate", &raw.tls.certificate);
            look("tls", "key", &raw.tls.key);
            look("tls", "client_ca", &raw.tls.client_ca);
        }
        if listener.upstream_tls.is_some() {
            look("upstream_tls", "ca", &raw.upstream_tls.ca);
            look("upstream_tls", "certificate", &raw.upstream_tls.certificate);
            look("upstream_tls", "key", &raw.upstream_tls.key);
        }
    }
    let (metrics, traces) = (&settings.export.metrics.endpoint, &settings.export.traces.endpoint);
    otlp("metrics", metrics.as_ref(), &raw.otlp, &raw.otlp.metrics.destination, problems);
    otlp("traces", traces.as_ref(), &raw.otlp, &raw.otlp.traces.destination, problems);
    if let Some(Err(error)) = settings.access_log.as_ref().map(appendable) {
        problems.error("access_log.path", format!("{error}; check the path and its permissions"));
    }
}

/// The TLS files of one signal's export: its own, or the shared ones.
fn otlp(signal: &str, endpoint: Option<&Endpoint>, shared: &Otlp, own: &Destination, problems: &mut Problems<'_>) {
    // Without TLS they are not read.
    if !endpoint.is_some_and(|endpoint| endpoint.url.starts_with("https:")) {
        return;
    }
    let files = [
        ("certificate", &own.certificate, &shared.certificate),
        ("client_certificate", &own.client_certificate, &shared.client_certificate),
        ("client_key", &own.client_key, &shared.client_key),
    ];
    for (key, own, shared) in files {
        match own {
            Some(path) => readable(&format!("otlp.{signal}.{key}"), Some(path), problems),
            None => readable(&format!("otlp.{key}"), shared.as_deref(), problems),
        }
    }
}

fn readable(key: &str, path: Option<&str>, problems: &mut Problems<'_>) {
    if let Some((path, Err(error))) = path.map(|path| (path, open_to_read(Path::new(path)))) {
        problems.error(key, format!("cannot read {path}: {error}; check the path and its permissions"));
    }
}

fn open_to_read(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?;
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    // Opening a pipe would block until it has a writer, and consume its data.
    if kind.is_file() { fs::File::open(path).map(drop) } else { Ok(()) }
}

/// Checks whether the access log is writable, without creating the file.
fn appendable(settings: &AccessLogSettings) -> Result<(), String> {
    let Some(path) = &settings.path else { return Ok(()) };
    let failed = |error: io::Error| format!("cannot write to {}: {error}", path.display());
    match fs::metadata(path) {
        Ok(kind) if kind.is_file() => fs::OpenOptions::new().append(true).open(path).map(drop).map_err(failed),
        Ok(kind) if kind.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match fs::metadata(folder) {
                Ok(kind) if kind.is_dir() => Ok(()),
                Ok(_) => Err(format!("cannot write to {}: {} is not a directory", path.display(), folder.display())),
                Err(error) => {
                    Err(format!("cannot write to {}: its directory {}: {error}", path.display(), folder.display()))
                }
            }
        }
        Err(error) => Err(failed(error)),
    }
}
