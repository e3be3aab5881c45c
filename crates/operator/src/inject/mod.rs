//! Adds the sidecar to the pods of manifests and removes it: text in, text out.
//!
//! The core is [`plan`], a pure function from a pod to a JSON Patch and its reasons. The admission policy of the chart
//! creates the same sidecar container as `container`: keep both in sync.

mod command;
mod container;
mod engine;
mod manifest;
mod mode;
mod patch;
mod pod;
mod resources;
mod server;
mod undo;
mod value;
mod wiring;
mod workload;

pub use container::{ADMIN_PORT, NAME};
pub use engine::Engine;
pub use mode::Mode;
pub use patch::{Operation, apply};
pub use pod::{Plan, plan};
pub use undo::ANNOTATION;
pub use value::Value;

use std::time::Duration;

/// Settings of an injection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How clients reach the sidecar.
    pub mode: Mode,
    /// The engine; `None`: detect it.
    pub engine: Option<Engine>,
    /// Name of the server's container; `None`: detect it.
    pub container: Option<String>,
    /// The server's port; `None`: detect it.
    pub port: Option<u16>,
    /// The sidecar's image.
    pub image: String,
    /// An image with `nft`, for the mode `redirect`.
    pub redirect_image: Option<String>,
    /// Port of /metrics, health and drain.
    pub admin_port: u16,
    /// Maximum time that open streams get when the pod ends.
    pub drain: Duration,
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
            port: None,
            image: image.into(),
            redirect_image: None,
            admin_port: ADMIN_PORT,
            drain: Duration::from_secs(300),
            variables: Vec::new(),
        }
    }
}

/// Why a manifest cannot be processed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not YAML.
    #[error("the manifest is not YAML: {0}")]
    Yaml(String),
    /// It is not JSON.
    #[error("the manifest is not JSON: {0}")]
    Json(String),
    /// A document is a list or a single value.
    #[error("document {0} of the manifest is not an object; Kubernetes objects are maps with apiVersion and kind")]
    NoObject(usize),
    /// The manifest has no document.
    #[error("the manifest is empty; give one with -f FILE, or on stdin")]
    Empty,
}

/// What was done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The sidecar was added.
    Injected,
    /// The sidecar was removed.
    Removed,
    /// It starts pods, but was left unchanged; the notes have the reason.
    Skipped,
    /// It does not start pods, or its kind is unknown.
    Passed,
}

impl Outcome {
    /// Text of the report.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Injected => "injected",
            Outcome::Removed => "removed",
            Outcome::Skipped => "skipped",
            Outcome::Passed => "unchanged",
        }
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
}

/// Adds the sidecar to every pod of the manifest that has an inference server. An injected sidecar is removed first, so
/// the operation is idempotent, also with different options.
///
/// # Errors
/// When the text is not a manifest.
pub fn inject(text: &str, options: &Options) -> Result<(String, Vec<Report>), Error> {
    work(text, |pod| {
        undo::restore(pod)?;
        let Plan { patch, notes } = plan(pod, options)?;
        undo::change(pod, &patch)?;
        Ok((Outcome::Injected, notes))
    })
}

/// Removes from every pod what [`inject`] has added, and restores the manifest.
///
/// # Errors
/// When the text is not a manifest.
pub fn remove(text: &str) -> Result<(String, Vec<Report>), Error> {
    work(text, |pod| match undo::restore(pod)? {
        true => Ok((Outcome::Removed, Vec::new())),
        false => Err(format!("it has no annotation {ANNOTATION}, so it was not injected by this command")),
    })
}

fn work(
    text: &str,
    mut change: impl FnMut(&mut Value) -> Result<(Outcome, Vec<String>), String>,
) -> Result<(String, Vec<Report>), Error> {
    let (form, mut documents) = manifest::read(text)?;
    let mut reports = Vec::new();
    for document in &mut documents {
        workload::each(document, &mut |object| {
            let title = workload::title(object);
            let Some(names) = workload::template(object) else {
                let notes = vec!["objects of this kind do not start pods, or the kind is unknown".to_owned()];
                return reports.push(Report { object: title, outcome: Outcome::Passed, notes });
            };
            // Applied to a copy, so that a failed change leaves the pod untouched.
            let changed = match workload::find(object, names) {
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
            let (outcome, notes) = changed.unwrap_or_else(|why| (Outcome::Skipped, vec![why]));
            reports.push(Report { object: title, outcome, notes });
        });
    }
    Ok((manifest::write(form, &documents)?, reports))
}
