//! Recording format: `CASE.jsonl` has one object per read on the client's side, `CASE.meta.json` the request.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::replay::Error;

/// How the connection of a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The server closed the connection.
    Eof,
    /// The server reset the connection.
    Reset,
    /// The client closed the connection.
    ClientAbort,
    /// The client timed out and closed the connection.
    ClientTimeout,
}

/// One recorded request to a real server.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The `.jsonl` file.
    pub path: PathBuf,
    /// The bytes of the request, all sent at time 0.
    pub request: Vec<u8>,
    /// Bytes of each read, with the time since the request was sent.
    pub reads: Vec<(Duration, Vec<u8>)>,
    /// How the connection ended, if recorded.
    pub end: Option<(Duration, End)>,
}

#[derive(Deserialize)]
struct Line {
    t_us: u64,
    b64: Option<String>,
    event: Option<End>,
}

#[derive(Deserialize)]
struct Meta {
    request_raw_b64: String,
}

impl Recording {
    /// Loads `CASE.jsonl` and its `CASE.meta.json`; `path` may be either.
    ///
    /// # Errors
    /// If a file is missing or does not have the required format.
    pub fn read(path: &Path) -> Result<Recording, Error> {
        let name = path.to_string_lossy();
        let case = name.strip_suffix(".meta.json").or_else(|| name.strip_suffix(".jsonl")).unwrap_or(&name);
        let (lines, meta) = (PathBuf::from(format!("{case}.jsonl")), PathBuf::from(format!("{case}.meta.json")));
        let text = read(&meta)?;
        let parsed: Meta = serde_json::from_str(&text).map_err(|e| format_error(&meta, e.line(), &e))?;
        let request = STANDARD.decode(&parsed.request_raw_b64).map_err(|e| format_error(&meta, 1, &e))?;
        let mut recording = Recording { path: lines, request, reads: Vec::new(), end: None };
        for (n, line) in read(&recording.path)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let fail = |e: &dyn std::fmt::Display| format_error(&recording.path, n + 1, e);
            let line: Line = serde_json::from_str(line).map_err(|e| fail(&e))?;
            let at = Duration::from_micros(line.t_us);
            if let Some(event) = line.event {
                recording.end = Some((at, event));
            } else {
                let b64 = line.b64.ok_or_else(|| fail(&"neither `b64` nor `event`: a line must have one of them"))?;
                let bytes = STANDARD.decode(b64).map_err(|e| fail(&e))?;
                recording.reads.push((at, bytes));
            }
        }
        Ok(recording)
    }

    /// Finds recordings: `path` itself if it is a file, otherwise all recordings below the directory, ordered by name.
    ///
    /// # Errors
    /// If the path cannot be read or contains no recording.
    pub fn find(path: &Path) -> Result<Vec<PathBuf>, Error> {
        if !path.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        let mut found = Vec::new();
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            let unreadable = |source| Error::Read(folder.clone(), source);
            for entry in fs::read_dir(&folder).map_err(unreadable)? {
                let entry = entry.map_err(unreadable)?.path();
                if entry.is_dir() {
                    folders.push(entry);
                } else if entry.extension().is_some_and(|e| e == "jsonl") {
                    found.push(entry);
                }
            }
        }
        found.sort();
        if found.is_empty() { Err(Error::Empty(path.to_owned())) } else { Ok(found) }
    }
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Read(path.to_owned(), source))
}

fn format_error(path: &Path, line: usize, why: &dyn std::fmt::Display) -> Error {
    Error::Format(path.to_owned(), line, why.to_string())
}
