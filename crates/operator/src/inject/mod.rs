//! Adds the sidecar to the pods of manifests, or removes it. Input and output are text.
//!
//! The core is `plan`, a pure function from a pod to a JSON Patch and its reasons. The admission policy of the chart
//! adds the same containers: both read `charts/tokometer/files/sidecar.yaml` and the defaults of `values.yaml`.

mod container;
mod engine;
mod manifest;
mod patch;
mod plan;
mod preflight;
mod probes;
mod server;
mod texts;
mod value;
mod wiring;

use std::time::Duration;

use tokometer_decode::Engine;
use tokometer_metrics::closed_enum;

pub use crate::inject::container::ADMIN_PORT;
use crate::inject::patch::ANNOTATION;
use crate::inject::plan::{Plan, plan};
use crate::inject::value::Value;

closed_enum! {
    /// How client connections reach the sidecar instead of the server.
    pub enum Mode {
        /// `address-split`; if this mode is impossible, the error names the reason and an alternative.
        Auto = "auto",
        /// The server listens on 127.0.0.1, the sidecar on the pod's addresses, on the same port.
        AddressSplit = "address-split",
        /// The server listens on a Unix socket, the sidecar on the server's port.
        Uds = "uds",
        /// Both listen on the same port. The kernel prefers the sidecar, which binds the pod's addresses, over the
        /// server, which binds all addresses.
        ShadowBind = "shadow-bind",
        /// The server listens on the next port, the sidecar on the server's port.
        PortSwap = "port-swap",
        /// An nftables rule redirects connections to the sidecar.
        Redirect = "redirect",
        /// The sidecar has its own port, which a Service must target.
        Explicit = "explicit",
        /// The sidecar reads copies of the server's packets and forwards nothing.
        Tap = "tap",
    }
}

/// Settings of an injection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How clients reach the sidecar.
    pub mode: Mode,
    /// The engine. `None`: detect the engine.
    pub engine: Option<Engine>,
    /// Name of the server's container. `None`: detect the container.
    pub container: Option<String>,
    /// The server's ports: the clients' port, then the ports of data-parallel ranks. Empty: detect the port.
    pub ports: Vec<u16>,
    /// The sidecar's image.
    pub image: String,
    /// An image with `nft`, for `redirect` mode.
    pub redirect_image: Option<String>,
    /// Port of the admin server (metrics, health, drain).
    pub admin_port: u16,
    /// Maximum time for open streams to end when the pod terminates.
    pub drain: Duration,
    /// Name of the Secret with the engine's certificate, which the pod mounts; a leading `*` matches any prefix.
    /// `None`: TLS is not terminated.
    pub tls_secret: Option<String>,
    /// Additional environment variables of the sidecar.
    pub variables: Vec<(String, String)>,
}

impl Options {
    /// The defaults, with this image.
    pub fn new(image: impl Into<String>) -> Options {
        Options {
            mode: Mode::Auto,
            engine: None,
            container: None,
            ports: Vec::new(),
            image: image.into(),
            redirect_image: None,
            admin_port: ADMIN_PORT,
            drain: Duration::from_secs(300),
            tls_secret: None,
            variables: Vec::new(),
        }
    }
}

/// Why a manifest cannot be processed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The manifest is not YAML.
    #[error("the manifest is not YAML: {0}")]
    Yaml(String),
    /// The manifest is not JSON.
    #[error("the manifest is not JSON: {0}")]
    Json(String),
    /// A document is a list or a single value.
    #[error("document {0} of the manifest is not an object; Kubernetes objects are maps with apiVersion and kind")]
    NoObject(usize),
    /// The manifest has no document.
    #[error("the manifest is empty; give one with -f FILE, or on stdin")]
    Empty,
}

closed_enum! {
    /// What was done to an object.
    pub enum Outcome {
        /// The sidecar was added.
        Injected = "injected",
        /// The sidecar was removed.
        Removed = "removed",
        /// The object starts pods, but was left unchanged; the notes have the reason.
        Skipped = "skipped",
        /// The object does not start pods, or its kind is unknown.
        Passed = "unchanged",
    }
}

/// Report on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Kind and name.
    pub object: String,
    /// What was done.
    pub outcome: Outcome,
    /// The decisions and their reasons, one sentence each.
    pub notes: Vec<String>,
    /// Problems that do not prevent the injection.
    pub warnings: Vec<String>,
}

/// Adds the sidecar to every pod of the manifest that has an inference server. An injected sidecar is removed first, so
/// the operation is idempotent, even with different options.
///
/// # Errors
/// If the text is not a manifest.
pub fn inject(text: &str, options: &Options) -> Result<(String, Vec<Report>), Error> {
    work(text, |pod| {
        patch::restore(pod)?;
        let Plan { patch, notes, warnings } = plan(pod, options)?;
        patch::change(pod, &patch)?;
        Ok((Outcome::Injected, notes, warnings))
    })
}

/// Removes the changes of [`inject`] from every pod, and thus restores the manifest.
///
/// # Errors
/// If the text is not a manifest.
pub fn remove(text: &str) -> Result<(String, Vec<Report>), Error> {
    work(text, |pod| match patch::restore(pod)? {
        true => Ok((Outcome::Removed, Vec::new(), Vec::new())),
        false => Err(format!("it has no annotation {ANNOTATION}, so it was not injected by this command")),
    })
}

fn work(
    text: &str,
    mut change: impl FnMut(&mut Value) -> Result<(Outcome, Vec<String>, Vec<String>), String>,
) -> Result<(String, Vec<Report>), Error> {
    let (form, mut documents) = manifest::read(text)?;
    let mut reports = Vec::new();
    for document in &mut documents {
        manifest::each(document, &mut |object| {
            let title = manifest::title(object);
            let Some(names) = manifest::template(object) else {
                let note = "objects of this kind do not start pods, or the kind is unknown; where a controller makes pods \
                            of it, the admission policy of the chart injects them";
                let notes = vec![note.to_owned()];
                return reports.push(Report { object: title, outcome: Outcome::Passed, notes, warnings: Vec::new() });
            };
            // Applied to a copy, so that a failed change leaves the pod untouched.
            let changed = match manifest::find(object, names) {
                Some(pod) => {
                    let mut copy = pod.clone();
                    let changed = change(&mut copy);
                    if changed.is_ok() {
                        *pod = copy;
                    }
                    changed
                }
                None => Err(format!("it has no {}", names.join("."))),
            };
            let (outcome, notes, mut warnings) =
                changed.unwrap_or_else(|why| (Outcome::Skipped, vec![why], Vec::new()));
            if outcome == Outcome::Injected && names.last() == Some(&"workerTemplate") {
                warnings.push(texts::text("warnings", "group", &[]));
            }
            reports.push(Report { object: title, outcome, notes, warnings });
        });
    }
    Ok((manifest::write(form, &documents)?, reports))
}
