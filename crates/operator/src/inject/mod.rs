//! Puts the sidecar into the pods of manifests, and takes it out again: text in, text out.
//!
//! The heart is [`plan`], a pure function: a pod in, a JSON Patch and its reasons out. It must be known that the sidecar's container
//! (`container`) is also what the admission policy of the chart makes: what is changed here is changed there.

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

/// What a person may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How clients come to the sidecar.
    pub mode: Mode,
    /// The engine, if it is not to be recognised.
    pub engine: Option<Engine>,
    /// The server's container, if it is not to be recognised.
    pub container: Option<String>,
    /// The server's port, if it is not to be worked out.
    pub port: Option<u16>,
    /// The sidecar's image.
    pub image: String,
    /// An image with `nft` in it, for the mode `redirect`.
    pub redirect_image: Option<String>,
    /// Port of /metrics, health and drain.
    pub admin_port: u16,
    /// Most time that open streams get when the pod ends.
    pub drain: Duration,
    /// More variables of the sidecar, with their values.
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

/// Why a manifest cannot be worked on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not YAML.
    #[error("the manifest is not YAML: {0}")]
    Yaml(String),
    /// It is not JSON.
    #[error("the manifest is not JSON: {0}")]
    Json(String),
    /// A document is a list or a single value.
    #[error("document {0} of the manifest is no object; Kubernetes objects are maps with apiVersion and kind")]
    NoObject(usize),
    /// There is no document.
    #[error("the manifest is empty; give one with -f FILE, or on stdin")]
    Empty,
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has a sidecar now.
    Injected,
    /// It has none any more.
    Removed,
    /// It starts pods, but was left as it is: the notes tell why.
    Skipped,
    /// It is none that starts pods, or none that is known.
    Passed,
}

impl Outcome {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Injected => "injected",
            Outcome::Removed => "removed",
            Outcome::Skipped => "skipped",
            Outcome::Passed => "passed on unchanged",
        }
    }
}

/// What is told of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Kind and name.
    pub object: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Why, one sentence each.
    pub notes: Vec<String>,
}

/// Puts the sidecar into every pod of the manifest that has an inference server. One that was put in before is taken out first:
/// doing it twice is as doing it once, and with other options as if the first time had not been.
///
/// # Errors
/// When the text is no manifest.
pub fn inject(text: &str, options: &Options) -> Result<(String, Vec<Report>), Error> {
    work(text, |pod| {
        undo::restore(pod)?;
        let Plan { patch, notes } = plan(pod, options)?;
        undo::change(pod, &patch)?;
        Ok((Outcome::Injected, notes))
    })
}

/// Takes out of every pod what [`inject`] has put in, and leaves the manifest as it was before.
///
/// # Errors
/// When the text is no manifest.
pub fn remove(text: &str) -> Result<(String, Vec<Report>), Error> {
    work(text, |pod| match undo::restore(pod)? {
        true => Ok((Outcome::Removed, Vec::new())),
        false => Err(format!("it has no annotation {ANNOTATION}, so nothing of it was put in by this command")),
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
                let notes = vec!["objects of this kind are not known to start pods".to_owned()];
                return reports.push(Report { object: title, outcome: Outcome::Passed, notes });
            };
            // Only a whole change is kept.
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
