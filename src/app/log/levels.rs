//! Which lines are logged: a level for all, and levels by module.

use std::str::FromStr;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Our own modules, so that `relay=debug` means `tokometer::relay=debug`.
const MODULES: [&str; 13] = [
    "listen", "relay", "wire", "decode", "measure", "observe", "export", "admin", "config", "sim", "replay", "cli",
    "app",
];

/// Levels, read from text such as `info,relay=debug,pingora=error`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels {
    all: LevelFilter,
    by_target: Vec<(String, LevelFilter)>,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { all: LevelFilter::INFO, by_target: Vec::new() }
    }
}

impl Levels {
    pub(super) fn targets(&self) -> Targets {
        Targets::new().with_default(self.all).with_targets(self.by_target.iter().cloned())
    }
}

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Levels, String> {
        let mut levels = Levels::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None => levels.all = level(part)?,
                Some((module, word)) => {
                    let module = module.trim();
                    let first = module.split("::").next().unwrap_or_default();
                    if module.is_empty() {
                        return Err(format!("`{part}` names no module; write module=level, such as relay=debug"));
                    }
                    let target =
                        if MODULES.contains(&first) { format!("tokometer::{module}") } else { module.to_owned() };
                    levels.by_target.push((target, level(word.trim())?));
                }
            }
        }
        Ok(levels)
    }
}

fn level(word: &str) -> Result<LevelFilter, String> {
    match word.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!("`{word}` is no level; write off, error, warn, info, debug or trace, or module=level")),
    }
}
