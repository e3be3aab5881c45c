//! Checks whether the files named in a configuration can be opened now, by the user running this process.
//!
//! Contents are not checked: the modules that use the files parse them later. Vocabularies and the tenants' key are not
//! opened here either, because their modules do so at the start and name the setting in errors.

use std::path::Path;
use std::{fs, io};

use crate::config::checked::Settings;
use crate::config::checked::problems::Problems;
use crate::config::raw::{Otlp, Raw};
use tokometer_telemetry::export::Endpoint;

/// Adds a problem for each file in use that cannot be opened.
pub(crate) fn open(raw: &Raw, settings: &Settings, problems: &mut Problems<'_>) {
    for (index, (listener, raw)) in settings.listeners.iter().zip(&raw.listeners).enumerate() {
        let (tls, upstream) = (&raw.tls, &raw.upstream_tls);
        let files = [
            (listener.tls.is_some(), "tls.certificate", &tls.certificate),
            (listener.tls.is_some(), "tls.key", &tls.key),
            (listener.tls.is_some(), "tls.client_ca", &tls.client_ca),
            (listener.upstream_tls.is_some(), "upstream_tls.ca", &upstream.ca),
            (listener.upstream_tls.is_some(), "upstream_tls.certificate", &upstream.certificate),
            (listener.upstream_tls.is_some(), "upstream_tls.key", &upstream.key),
        ];
        for (_, key, path) in files.into_iter().filter(|(is_used, ..)| *is_used) {
            readable(&format!("listeners[{index}].{key}"), path.as_deref(), problems);
        }
    }
    let Otlp { certificate, client_certificate, client_key, metrics, traces, .. } = &raw.otlp;
    let signals = [
        ("metrics", &settings.export.metrics.endpoint, &metrics.destination),
        ("traces", &settings.export.traces.endpoint, &traces.destination),
    ];
    let uses_tls = |endpoint: &Option<Endpoint>| endpoint.as_ref().is_some_and(|to| to.url.starts_with("https:"));
    for (signal, _, own) in signals.into_iter().filter(|(_, endpoint, _)| uses_tls(endpoint)) {
        for (key, own, shared) in [
            ("certificate", &own.certificate, certificate),
            ("client_certificate", &own.client_certificate, client_certificate),
            ("client_key", &own.client_key, client_key),
        ] {
            match own {
                Some(path) => readable(&format!("otlp.{signal}.{key}"), Some(path), problems),
                None => readable(&format!("otlp.{key}"), shared.as_deref(), problems),
            }
        }
    }
    let log = settings.access_log.as_ref().and_then(|log| log.path.as_deref());
    if let Some((path, Err(error))) = log.map(|path| (path, appendable(path))) {
        let message = format!("cannot write to {}: {error}; check the path and its permissions", path.display());
        problems.error("access_log.path", message);
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
    // Opening a pipe would block until it has a writer, and would consume its data.
    if kind.is_file() { fs::File::open(path).map(drop) } else { Ok(()) }
}

/// Checks whether a file is writable, without creating it.
fn appendable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(kind) if kind.is_file() => fs::OpenOptions::new().append(true).open(path).map(drop),
        Ok(kind) if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match fs::metadata(folder)?.is_dir() {
                true => Ok(()),
                false => Err(io::ErrorKind::NotADirectory.into()),
            }
        }
        Err(error) => Err(error),
    }
}
