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

/// Modules of other crates that may log, at most at these levels: the first applies unless the user names the module.
/// All others log nothing, because their messages can contain what they read: headers, paths and bodies of requests and
/// responses (pingora logs headers that it cannot parse as errors; h2, hyper and rustls log what they receive).
const OTHERS: [(&str, LevelFilter, LevelFilter); 2] = [
    // Failed exports, and what the collector rejects. More detailed messages contain URLs and responses.
    ("opentelemetry", LevelFilter::WARN, LevelFilter::INFO),
    // Failed accepts.
    ("pingora_core::services::listening", LevelFilter::WARN, LevelFilter::WARN),
];

/// First word of the modules of this program.
const OWN: &str = "tokometer";

/// Levels parsed from text such as `info,relay=debug`.
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
        let others = OTHERS.map(|(other, most, _)| (other.to_owned(), self.all.min(most)));
        let named = self.by_target.iter().flat_map(|(target, level)| {
            let own = target.starts_with(OWN).then(|| (target.clone(), *level));
            let others = OTHERS.iter().filter_map(move |(other, _, most)| {
                let narrower = target.starts_with(other).then_some(target.as_str());
                let name = narrower.or_else(|| other.starts_with(target.as_str()).then_some(other))?;
                Some((name.to_owned(), *level.min(most)))
            });
            own.into_iter().chain(others)
        });
        Targets::new().with_target(OWN, self.all).with_targets(others).with_targets(named)
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
    fn other_crates_log_only_what_contains_no_traffic() {
        let enabled = |levels: &str, target: &str, level: Level| {
            levels.parse::<Levels>().unwrap().targets().would_enable(target, &level)
        };
        let (otlp, accepts) = ("opentelemetry-otlp", "pingora_core::services::listening");
        for (levels, target, level, expected) in [
            // With gRPC, only this crate logs what a collector rejects.
            ("info", otlp, Level::WARN, true),
            ("info", otlp, Level::INFO, false),
            ("off", otlp, Level::ERROR, false),
            ("trace", otlp, Level::INFO, false),
            ("info,opentelemetry=debug", otlp, Level::INFO, true),
            ("info,opentelemetry=debug", otlp, Level::DEBUG, false),
            ("info,opentelemetry=error", otlp, Level::WARN, false),
            ("info,opentelemetry-otlp=off", otlp, Level::ERROR, false),
            ("info", accepts, Level::ERROR, true),
            ("trace,pingora_core=trace", accepts, Level::INFO, false),
            ("info,pingora_core=off", accepts, Level::ERROR, false),
            ("error,relay=trace", "tokometer_proxy::relay", Level::TRACE, true),
            ("error,relay=trace", "tokometer_proxy::listen", Level::WARN, false),
        ] {
            assert_eq!(enabled(levels, target, level), expected, "{levels} {target} {level}");
        }
        // Prefixes too: `t` would match the crates tonic and tower.
        for levels in ["trace", "trace,pingora=trace", "pingora_core::apps=error", "h2=trace,hyper=trace", "t=trace"] {
            for target in
                ["pingora_core::apps::http_app", "pingora_proxy", "h2::proto", "hyper::proto", "tonic", "rustls", "log"]
            {
                assert!(!enabled(levels, target, Level::ERROR), "{levels} {target}");
            }
        }
    }
}
