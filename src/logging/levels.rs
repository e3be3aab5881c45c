//! Log levels: a default level, and levels by module.

use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// Short names of modules that log, so that `relay=debug` means `tokometer_proxy::relay=debug`.
const MODULES: [(&str, &str); 10] = [
    ("listen", "tokometer_proxy::listen"),
    ("relay", "tokometer_proxy::relay"),
    ("engine_spans", "tokometer_engine::engine_spans"),
    ("scrape", "tokometer_engine::scrape"),
    ("export", "tokometer_telemetry::export"),
    ("sim", "tokometer_sim"),
    ("admin", "tokometer::admin"),
    ("app", "tokometer::app"),
    ("logging", "tokometer::logging"),
    ("config", "tokometer::config"),
];

/// Maximum levels of crates whose messages repeat tokometer's own, unless the user names the crate. The first maximum
/// applies to default levels up to info, the second to more detailed ones. The OTLP crate stays at info, because its
/// more detailed messages contain URLs and responses.
const QUIET: [(&str, LevelFilter, LevelFilter); 3] = [
    ("opentelemetry-otlp", LevelFilter::WARN, LevelFilter::INFO),
    ("opentelemetry_sdk", LevelFilter::WARN, LevelFilter::TRACE),
    ("pingora_core", LevelFilter::WARN, LevelFilter::TRACE),
];

/// Levels parsed from text such as `info,relay=debug,pingora=error`.
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
        let asked_for = |target: &str| self.by_target.iter().any(|(asked, _)| target.starts_with(asked.as_str()));
        let quiet = QUIET.iter().filter(|(target, ..)| !asked_for(target));
        let most = |quiet: LevelFilter, loud: LevelFilter| {
            if self.all <= LevelFilter::INFO { self.all.min(quiet) } else { self.all.min(loud) }
        };
        Targets::new()
            .with_default(self.all)
            .with_targets(quiet.map(|(target, quiet, loud)| (*target, most(*quiet, *loud))))
            .with_targets(self.by_target.iter().cloned())
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
                        return Err(format!("`{part}` has no module; write module=level, such as relay=debug"));
                    }
                    let target = match MODULES.iter().find(|(name, _)| *name == first) {
                        Some((_, target)) => format!("{target}{}", module.get(first.len()..).unwrap_or_default()),
                        None => module.to_owned(),
                    };
                    levels.by_target.push((target, level(word.trim())?));
                }
            }
        }
        Ok(levels)
    }
}

fn level(word: &str) -> Result<LevelFilter, String> {
    let known = Some(word).filter(|word| !word.is_empty()).and_then(|word| word.parse().ok());
    known
        .ok_or_else(|| format!("unknown level `{word}`; write off, error, warn, info, debug or trace, or module=level"))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn short_module_names_are_expanded_to_their_crate() {
        let targets = "warn,engine_spans::receiver=debug,relay=trace".parse::<Levels>().unwrap().targets();
        assert!(targets.would_enable("tokometer_engine::engine_spans::receiver", &Level::DEBUG));
        assert!(!targets.would_enable("tokometer_engine::engine_spans::forward", &Level::DEBUG));
        assert!(targets.would_enable("tokometer_proxy::relay::entrance", &Level::TRACE));
    }

    #[test]
    fn redundant_crates_are_quiet_unless_named() {
        let enabled = |levels: &str, target: &str, level: Level| {
            levels.parse::<Levels>().unwrap().targets().would_enable(target, &level)
        };
        let (otlp, pingora) = ("opentelemetry-otlp", "pingora_core::services::listening");
        for (levels, target, level, expected) in [
            // With gRPC, only this crate logs what a collector rejects.
            ("info", otlp, Level::WARN, true),
            ("info", otlp, Level::INFO, false),
            ("off", otlp, Level::ERROR, false),
            ("trace", otlp, Level::DEBUG, false),
            ("info,opentelemetry-otlp=debug", otlp, Level::DEBUG, true),
            ("info,opentelemetry=debug", otlp, Level::DEBUG, true),
            ("info", pingora, Level::INFO, false),
            ("debug", pingora, Level::DEBUG, true),
            ("info,pingora=debug", pingora, Level::DEBUG, true),
            ("info,pingora=off", pingora, Level::ERROR, false),
        ] {
            assert_eq!(enabled(levels, target, level), expected, "{levels} {target} {level}");
        }
    }
}
