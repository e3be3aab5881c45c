//! The command line.

use std::sync::atomic::AtomicBool;

use crate::Outcome;

/// The listeners are in rewrite mode: headers and framing of responses may change, and invalid requests are rejected.
pub(crate) static REWRITES: AtomicBool = AtomicBool::new(false);

/// What to run.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Names or parts of names of attacks; empty for all.
    pub(crate) names: Vec<String>,
    /// Write a table and assert nothing.
    pub(crate) table: bool,
    /// Print the names and run nothing.
    pub(crate) list: bool,
    /// Attack a listener in rewrite mode.
    pub(crate) rewrite: bool,
    /// Run in a memory cgroup of this many bytes, with the chart's configuration.
    pub(crate) cgroup: Option<u64>,
}

impl Options {
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Outcome<Options> {
        let mut options = Options::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--table" => options.table = true,
                "--list" => options.list = true,
                "--rewrite" => options.rewrite = true,
                "--cgroup" => {
                    let size = arguments.next().ok_or("--cgroup needs a size, such as 64MiB")?;
                    let mib: Option<u64> = size.strip_suffix("MiB").and_then(|number| number.parse().ok());
                    options.cgroup = Some(mib.ok_or(format!("invalid size {size:?}: for example 64MiB"))? << 20);
                }
                name if !name.starts_with('-') => options.names.push(name.to_owned()),
                other => return Err(format!("unknown option {other:?}; see the top of tests/hostile/main.rs").into()),
            }
        }
        Ok(options)
    }

    /// Whether the attack of this name is selected.
    pub(crate) fn select(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }
}
