//! The top layer: flags and their equivalent variables (`TOKOMETER_LISTEN`, `TOKOMETER_UPSTREAM`, `TOKOMETER_PAIRS`).

use std::path::PathBuf;

use crate::config::address;
use crate::config::environment;
use crate::config::environment::Environment;
use crate::config::error::Problem;
use crate::config::nearest::nearest;
use crate::config::raw::Pair;
use crate::config::shape;
use crate::config::value::Node;
use crate::config::value::Origin;
use crate::config::value::Value;

/// Values of the command line, not yet validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--config FILE`.
    pub config: Option<PathBuf>,
    /// `--listen ADDRESS`, for a single listener; a list in brackets creates one listener per address.
    pub listen: Option<String>,
    /// `--upstream ADDRESS`, for a single listener.
    pub upstream: Option<String>,
    /// `--pair LISTEN=UPSTREAM`, repeatable; replaces the file's `pairs`.
    pub pairs: Vec<String>,
    /// `--admin ADDRESS`.
    pub admin: Option<String>,
    /// `--otlp-receiver ADDRESS`, repeatable; replaces the file's addresses.
    pub otlp_receiver: Vec<String>,
    /// `--set KEY=VALUE`, repeatable.
    pub set: Vec<String>,
}

/// Merges flags over the lower layers.
pub(crate) fn overlay(set: &mut Node, flags: &Flags, environment: &Environment, errors: &mut Vec<Problem>) {
    let variable =
        |name: &str| environment.get(name).map(|text| (text.to_owned(), Origin::Environment(name.to_owned())));
    let flag = |name: &str, text: &Option<String>| text.clone().map(|text| (text, Origin::Flag(name.to_owned())));

    if let Some((texts, origin)) = variable("TOKOMETER_PAIRS") {
        set_pairs(set, environment::pairs(texts.split(','), &origin), origin, errors);
    }
    if !flags.pairs.is_empty() {
        let origin = Origin::Flag("--pair".to_owned());
        set_pairs(set, environment::pairs(flags.pairs.iter().map(String::as_str), &origin), origin, errors);
    }
    let listen = flag("--listen", &flags.listen).or_else(|| variable("TOKOMETER_LISTEN"));
    let upstream = flag("--upstream", &flags.upstream).or_else(|| variable("TOKOMETER_UPSTREAM"));
    let mut addresses = listen.map(|(text, origin)| (address::each(&text), origin));
    let first = addresses.as_mut().map(|(all, origin)| (all.remove(0), origin.clone()));
    for (key, given) in [("listen", first), ("upstream", upstream)] {
        if let Some((text, origin)) = given {
            set_one_pair(set, key, text, origin, errors);
        }
    }
    let (more, origin) = addresses.unwrap_or((Vec::new(), Origin::Default));
    if let Some(Value::List(pairs)) = set.find("pairs").map(|node| node.value.clone())
        && let ([pair], false) = (pairs.as_slice(), more.is_empty())
    {
        let other = |text| {
            let mut pair = pair.clone();
            pair.overlay(Node::at("listen", Value::Text(text), &origin));
            pair
        };
        let all = [pair.clone()].into_iter().chain(more.into_iter().map(other)).collect();
        set.overlay(Node::at("pairs", Value::List(all), &origin));
    }
    if let Some((text, origin)) = flag("--admin", &flags.admin) {
        set.overlay(Node::at("admin.listen", Value::Text(text), &origin));
    }
    if !flags.otlp_receiver.is_empty() {
        let origin = Origin::Flag("--otlp-receiver".to_owned());
        let addresses = flags.otlp_receiver.iter().map(|text| Node::new(Value::Text(text.clone()), origin.clone()));
        set.overlay(Node::at("queue.otlp_listen", Value::List(addresses.collect()), &origin));
    }
    for text in &flags.set {
        set_key(set, text, errors);
    }
}

fn set_pairs(set: &mut Node, pairs: Result<Value, Problem>, origin: Origin, errors: &mut Vec<Problem>) {
    match pairs {
        Ok(pairs) => set.overlay(Node::at("pairs", pairs, &origin)),
        Err(problem) => errors.push(problem),
    }
}

/// Sets an address of the only listener. Its other settings from the file (TLS, name) are kept.
fn set_one_pair(set: &mut Node, key: &str, text: String, origin: Origin, errors: &mut Vec<Problem>) {
    let pairs = set.find("pairs").map(|node| node.value.clone());
    let mut pairs = match pairs {
        Some(Value::List(pairs)) => pairs,
        Some(Value::Null) | None => Vec::new(),
        Some(_) => return, // Not a list: `conform` reports it.
    };
    if pairs.len() > 1 {
        errors.push(Problem {
            origin,
            path: format!("pairs[].{key}"),
            message: format!(
                "{} listeners are configured, so this is ambiguous; use --pair LISTEN=UPSTREAM for each",
                pairs.len()
            ),
        });
        return;
    }
    if pairs.is_empty() {
        let Pair { listen, upstream, .. } = Pair::default();
        let mut pair = Node::at("listen", Value::Text(listen), &Origin::Default);
        pair.overlay(Node::at("upstream", Value::Text(upstream), &Origin::Default));
        pairs.push(pair);
    }
    if let Some(pair) = pairs.first_mut() {
        pair.overlay(Node::at(key, Value::Text(text), &origin));
    }
    set.overlay(Node::at("pairs", Value::List(pairs), &origin));
}

fn set_key(set: &mut Node, text: &str, errors: &mut Vec<Problem>) {
    let origin = Origin::Flag("--set".to_owned());
    let mut tell = |path: &str, message: String| {
        errors.push(Problem { origin: origin.clone(), path: path.to_owned(), message });
    };
    let Some((path, text)) = text.split_once('=') else {
        return tell("", "missing `=`; write KEY=VALUE, such as relay.keepalive_secs=30".to_owned());
    };
    match shape::keys().into_iter().find(|(key, _)| key == path) {
        Some((_, shape)) if !path.contains("[]") => {
            set.overlay(Node::at(path, environment::value(text, shape), &origin).stamped(&origin));
        }
        Some(_) => tell(path, "keys of `pairs` cannot be set here; use --pair LISTEN=UPSTREAM or a file".to_owned()),
        None => {
            let keys = shape::keys();
            let near = nearest(path, keys.iter().map(|(key, _)| key.as_str()));
            let hint = near.map_or_else(
                || "see docs/CONFIG.md or `tokometer config --print-default`".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            tell(path, format!("unknown key; {hint}"));
        }
    }
}
