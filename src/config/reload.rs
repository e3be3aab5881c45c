//! Reload of the configuration at runtime (SIGHUP).

use crate::config::Config;
use crate::config::Error;
use crate::config::environment::Environment;
use crate::config::flags::Flags;
use crate::config::print;
use crate::config::redact;
use crate::config::shape;
use crate::config::value::Node;
use crate::config::value::Value;

/// Keys, or blocks of keys, that take effect on a reload. Open connections keep their old settings. All other keys take
/// effect at the next start.
pub(crate) const LIVE: [&str; 14] = [
    "log.level",
    "observe",
    "wedge",
    "relay.unreachable",
    "relay.connect_timeout_ms",
    "relay.remainder_bytes",
    "relay.idle_timeout_secs",
    "relay.half_close_timeout_secs",
    "relay.max_connections",
    "process.grace_period_secs",
    "slo",
    "tenants",
    "prices",
    "budgets",
];

/// True if a change of this key takes effect without a restart.
pub(crate) fn is_live(path: &str) -> bool {
    LIVE.iter().any(|live| path == *live || path.strip_prefix(live).is_some_and(|rest| rest.starts_with(['.', '['])))
}

/// A key whose value changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub path: String,
    /// Old value, as YAML on one line, secrets redacted.
    pub from: String,
    /// New value, in the same format.
    pub to: String,
    /// True if it takes effect only at the next start.
    pub needs_restart: bool,
}

/// Result of a reload.
#[derive(Clone, Debug)]
pub struct Reload {
    /// The new configuration.
    pub config: Config,
    /// Differences from the old configuration.
    pub changes: Vec<Change>,
}

/// Loads the configuration again. The caller keeps `old` on an error. Files such as certificates are not opened,
/// because they take effect only at a restart.
///
/// # Errors
///
/// As [`Config::load`]: the file cannot be read, is not YAML, or contains invalid values.
pub fn reload(old: &Config, flags: &Flags, environment: &Environment) -> Result<Reload, Error> {
    let config = Config::load(flags, environment)?;
    let changes = changes(old, &config);
    Ok(Reload { config, changes })
}

fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    compare("", Some(&print::tree(old.raw())), Some(&print::tree(new.raw())), &mut changes);
    changes
}

fn compare(path: &str, old: Option<&Node>, new: Option<&Node>, changes: &mut Vec<Change>) {
    if let (Some(Node { value: Value::Map(before), .. }), Some(Node { value: Value::Map(after), .. })) = (old, new) {
        let keys = before.iter().chain(after.iter().filter(|entry| !before.iter().any(|b| b.key == entry.key)));
        for key in keys.map(|entry| &entry.key) {
            let of = |entries: &'_ [crate::config::value::Entry]| {
                entries.iter().find(|entry| entry.key == *key).map(|entry| entry.node.clone())
            };
            let path = shape::join(path, key);
            compare(&path, of(before).as_ref(), of(after).as_ref(), changes);
        }
        return;
    }
    let json = |node: Option<&Node>| node.map(Node::to_json);
    if json(old) != json(new) {
        let shown = |node: Option<&Node>| {
            node.map_or_else(
                || "not set".to_owned(),
                |node| {
                    let mut node = node.clone();
                    redact::tree(path, &mut node);
                    node.value.inline()
                },
            )
        };
        changes.push(Change { path: path.to_owned(), from: shown(old), to: shown(new), needs_restart: !is_live(path) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_keys_exist_and_cover_their_subkeys_only() {
        for path in LIVE {
            assert!(crate::config::shape::root().find(path).is_some(), "{path}");
        }
        let table = [("observe.stall_ms", true), ("observe.path_prefixes[0]", true), ("log.level", true)];
        for (path, live) in table.into_iter().chain([("log.level_x", false), ("pairs[0].listen", false)]) {
            assert_eq!(is_live(path), live, "{path}");
        }
    }
}
