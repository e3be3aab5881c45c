//! The environment, captured once from the process, and the flags: the layers above the file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::config::address;
use crate::config::conform::nearest;
use crate::config::raw::Listener;
use crate::config::shape::{self, Kind, Shape};
use crate::config::tree::{Node, Origin, Problem, Value};

/// Variables that do not map to one key.
pub(crate) const SPECIAL: [(&str, &str); 5] = [
    ("TOKOMETER_CONFIG", "Configuration file, like `--config`."),
    ("TOKOMETER_LISTEN", "Address that clients connect to, like `--listen`."),
    ("TOKOMETER_UPSTREAM", "Address of the server, like `--upstream`."),
    ("TOKOMETER_LISTENERS", "Listeners as `LISTEN=UPSTREAM`, separated by commas, like `--listener`."),
    ("TOKOMETER_DEMO_ADMIN", "Address of the live page of `tokometer demo`, like `tokometer demo --admin`."),
];

/// Environment variables by name. An empty one counts as not set (OpenTelemetry's rule).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

/// Prints names only: values may be secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Environment {
    /// The environment of this process; if `HOSTNAME` is not exported, it is set to the kernel's host name.
    pub fn from_process() -> Environment {
        let mut environment: Environment = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        if environment.get("HOSTNAME").is_none()
            && let Ok(name) = std::fs::read_to_string("/proc/sys/kernel/hostname")
        {
            environment.0.insert("HOSTNAME".to_owned(), name.trim().to_owned());
        }
        environment
    }

    /// The value of a variable, if it is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Removes a variable.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Environment {
        Environment(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The layer set by the `TOKOMETER_*` variables. Unknown variables are warnings, and errors if another variable sets the
/// key.
pub(crate) fn variables(environment: &Environment, errors: &mut Vec<Problem>, warnings: &mut Vec<Problem>) -> Node {
    let mut layer = Node::empty();
    let mut known: Vec<String> = SPECIAL.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (path, shape) in shape::keys() {
        let Some(name) = shape::variable(&path) else { continue };
        if let Some(text) = environment.get(&name) {
            let origin = Origin::Environment(name.clone());
            layer.overlay(Node::at(&path, value(text, shape, &origin), &origin));
        }
        known.push(name);
    }
    for name in environment.0.keys().filter(|name| name.starts_with("TOKOMETER_")) {
        if known.contains(name) || is_service_link(name) {
            continue;
        }
        let report = |into: &mut Vec<Problem>, message| {
            into.push(Problem { origin: Origin::Environment(name.clone()), path: String::new(), message });
        };
        let keys = shape::all_keys();
        let mut paths = keys.iter().map(|(path, _)| path).filter(|path| shape::variable(path).as_ref() == Some(name));
        if let Some(message) = paths.find_map(|path| shape::set_by_variable(path)) {
            report(errors, message);
            continue;
        }
        let near = nearest(name, known.iter().map(String::as_str));
        let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        report(warnings, format!("unknown variable, ignored{hint}"));
    }
    layer
}

/// Variables that Kubernetes sets in every pod of a namespace with a Service named `tokometer` or `tokometer-...`.
fn is_service_link(name: &str) -> bool {
    ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"].iter().any(|end| name.ends_with(end))
        || name.contains("_SERVICE_PORT_")
        || ["_TCP", "_UDP", "_SCTP"]
            .iter()
            .any(|protocol| name.split_once("_PORT_").is_some_and(|(_, rest)| rest.contains(protocol)))
}

/// Parses text by the type of its key. Text that does not fit stays text; `conform` reports it.
pub(crate) fn value(text: &str, shape: &Shape, origin: &Origin) -> Value {
    let as_text = || Value::Text(text.to_owned());
    if shape.nullable && text == "null" {
        return Value::Null;
    }
    match &shape.kind {
        Kind::Bool => match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Value::Bool(true),
            "false" | "0" => Value::Bool(false),
            _ => as_text(),
        },
        Kind::Integer => text.parse().map_or_else(|_| as_text(), Value::Integer),
        Kind::Number => text.parse().map_or_else(|_| as_text(), Value::Number),
        Kind::Text | Kind::Duration | Kind::Size | Kind::Words(_) | Kind::Block { .. } => as_text(),
        Kind::List(item) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::List(items.map(|text| Node::new(value(text, item, origin), origin.clone())).collect())
        }
        Kind::Names(_) => names(text, origin).unwrap_or_else(|_| as_text()),
    }
}

/// Parses `name=value,name=value` with percent-encoding (OpenTelemetry's format for headers and resource attributes).
pub(crate) fn names(text: &str, origin: &Origin) -> Result<Value, String> {
    let mut names = BTreeMap::new();
    for (index, part) in text.split(',').map(str::trim).enumerate().filter(|(_, part)| !part.is_empty()) {
        let number = index + 1;
        // The message must not show the text: it may be a secret.
        let (name, value) =
            part.split_once('=').ok_or_else(|| format!("entry {number} has no `=`; write name=value,name=value"))?;
        let name = percent_decoded(name.trim());
        if name.is_empty() {
            return Err(format!("entry {number} has no name; write name=value,name=value"));
        }
        names.insert(name, percent_decoded(value.trim()));
    }
    Ok(Value::names(names, origin))
}

/// Decodes percent-encoding (`%20` is a space). Invalid encodings stay unchanged.
pub(crate) fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// The value of `listeners`, from texts of the form `LISTEN=UPSTREAM`. A list of addresses creates one listener each.
fn listeners(texts: &[String], origin: &Origin) -> Result<Value, Problem> {
    let mut listeners = Vec::new();
    for text in texts {
        let (listen, upstream) = address::split_listener(text).map_err(|message| Problem {
            origin: origin.clone(),
            path: "listeners".to_owned(),
            message,
        })?;
        listeners.extend(address::each(listen).iter().map(|listen| listener(listen, upstream, origin)));
    }
    Ok(Value::List(listeners))
}

/// A listener as a tree.
fn listener(listen: &str, upstream: &str, origin: &Origin) -> Node {
    let mut node = Node::at("listen", Value::Text(listen.to_owned()), origin);
    node.overlay(Node::at("upstream", Value::Text(upstream.to_owned()), origin));
    node
}

/// Values of the command line, not yet validated. The comments are the help of `run`, `check` and `config`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Flags {
    /// Configuration file (YAML); also TOKOMETER_CONFIG
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address that clients connect to: 0.0.0.0:8000, :8000 (the same), [10.0.0.7,fd00::7]:8000 (both addresses) or
    /// unix:/path
    #[arg(long, value_name = "ADDRESS", conflicts_with = "listeners")]
    pub listen: Option<String>,
    /// Address of the server: 127.0.0.1:8001, :8001, https://host:port, unix:/path, or original (the original
    /// destination of connections that iptables redirects to tokometer)
    #[arg(long, value_name = "ADDRESS", conflicts_with = "listeners")]
    pub upstream: Option<String>,
    /// Listen address and upstream of a listener, such as :8000=:8001; a list in brackets, such as
    /// [10.0.0.7,fd00::7]:8000=:8001, creates one listener per address; can be repeated
    #[arg(long = "listener", value_name = "LISTEN=UPSTREAM")]
    pub listeners: Vec<String>,
    /// Listen address of the admin server (metrics, health, drain) [default: 0.0.0.0:9464]
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// Listen address for the engine's OTLP traces, such as 127.0.0.1:4317; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub otlp_receiver: Vec<String>,
    /// Use rewrite mode on every listener, and make these changes, separated by commas (docs/how-to/rewrite.md)
    #[arg(long, value_name = "CHANGES", value_delimiter = ',',
        value_parser = ["include_usage", "traceparent", "request_id"])]
    pub rewrite: Vec<String>,
    /// Set any other configuration key, such as log.level=debug; listeners[].KEY=VALUE sets a key of every listener;
    /// can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Ports and interface of `tokometer tap`. That command has its own arguments for them.
    #[arg(skip)]
    pub tap: TapFlags,
}

/// What `tokometer tap` captures.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct TapFlags {
    /// TCP port of a server; can be repeated
    #[arg(long = "port", value_name = "PORT")]
    pub ports: Vec<u16>,
    /// Network interface, such as `eth0`; `any` captures on all interfaces [default: any]
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
}

/// Prefix of the keys that `--set` sets for every listener.
const EACH_LISTENER: &str = "listeners[].";

/// Merges flags over the lower layers.
pub(crate) fn flags(set: &mut Node, flags: &Flags, environment: &Environment, errors: &mut Vec<Problem>) {
    let variable =
        |name: &str| environment.get(name).map(|text| (text.to_owned(), Origin::Environment(name.to_owned())));
    let flag = |name: &str, text: &Option<String>| text.clone().map(|text| (text, Origin::Flag(name.to_owned())));

    let several = [
        variable("TOKOMETER_LISTENERS").map(|(texts, origin)| (texts.split(',').map(str::to_owned).collect(), origin)),
        (!flags.listeners.is_empty()).then(|| (flags.listeners.clone(), Origin::Flag("--listener".to_owned()))),
    ];
    for (texts, origin) in several.into_iter().flatten() {
        match listeners(&texts, &origin) {
            Ok(listeners) => set.overlay(Node::at("listeners", listeners, &origin)),
            Err(problem) => errors.push(problem),
        }
    }
    // The upstream is set first, while there is one listener: a list of listen addresses creates several.
    if let Some((text, origin)) = flag("--upstream", &flags.upstream).or_else(|| variable("TOKOMETER_UPSTREAM")) {
        set_only_listener(set, "upstream", vec![text], origin, errors);
    }
    if let Some((text, origin)) = flag("--listen", &flags.listen).or_else(|| variable("TOKOMETER_LISTEN")) {
        set_only_listener(set, "listen", address::each(&text), origin, errors);
    }
    if let Some((text, origin)) = flag("--admin", &flags.admin) {
        set.overlay(Node::at("admin.listen", Value::Text(text), &origin));
    }
    if !flags.otlp_receiver.is_empty() {
        let origin = Origin::Flag("--otlp-receiver".to_owned());
        let addresses = flags.otlp_receiver.iter().map(|text| Node::new(Value::Text(text.clone()), origin.clone()));
        set.overlay(Node::at("engine_spans.listen", Value::List(addresses.collect()), &origin));
    }
    rewrite(set, &flags.rewrite);
    if !flags.tap.ports.is_empty() {
        let origin = Origin::Flag("--port".to_owned());
        let ports = flags.tap.ports.iter().map(|port| Node::new(Value::Integer(i64::from(*port)), origin.clone()));
        set.overlay(Node::at("tap.ports", Value::List(ports.collect()), &origin));
    }
    if let Some((text, origin)) = flag("--interface", &flags.tap.interface) {
        set.overlay(Node::at("tap.interface", Value::Text(text), &origin));
    }
    for text in &flags.set {
        set_key(set, text, errors);
    }
}

/// Sets rewrite mode on all listeners, with these changes.
fn rewrite(set: &mut Node, changes: &[String]) {
    if changes.is_empty() {
        return;
    }
    let origin = Origin::Flag("--rewrite".to_owned());
    for change in changes {
        set.overlay(Node::at(&format!("rewrite.{change}"), Value::Bool(true), &origin));
    }
    let mut listeners = match set.find("listeners").map(|node| &node.value) {
        Some(Value::List(listeners)) => listeners.clone(),
        Some(Value::Null) | None => {
            let Listener { listen, upstream, .. } = Listener::default();
            vec![listener(&listen, &upstream, &Origin::Default)]
        }
        Some(_) => return, // Not a list: `conform` reports it.
    };
    for listener in &mut listeners {
        listener.overlay(Node::at("mode", Value::Text("rewrite".to_owned()), &origin));
    }
    set.overlay(Node::at("listeners", Value::List(listeners), &origin));
}

/// Sets an address of the only listener, which keeps its other settings from the file (TLS, name). With several
/// addresses, creates one listener for each.
fn set_only_listener(set: &mut Node, key: &str, texts: Vec<String>, origin: Origin, errors: &mut Vec<Problem>) {
    let Some(listeners) = configured(set) else { return };
    let [only] = listeners.as_slice() else {
        let message = format!(
            "{} listeners are configured, so this is ambiguous; use --listener LISTEN=UPSTREAM for each",
            listeners.len()
        );
        return errors.push(Problem { origin, path: format!("listeners[].{key}"), message });
    };
    let with_address = |text| {
        let mut one = only.clone();
        one.overlay(Node::at(key, Value::Text(text), &origin));
        one
    };
    let all = texts.into_iter().map(with_address).collect();
    set.overlay(Node::at("listeners", Value::List(all), &origin));
}

/// The listeners of the lower layers, or the default listener; `None` if they are not a list, which `conform` reports.
fn configured(set: &Node) -> Option<Vec<Node>> {
    match set.find("listeners").map(|node| &node.value) {
        Some(Value::List(listeners)) if !listeners.is_empty() => Some(listeners.clone()),
        Some(Value::List(_) | Value::Null) | None => {
            let Listener { listen, upstream, .. } = Listener::default();
            Some(vec![listener(&listen, &upstream, &Origin::Default)])
        }
        Some(_) => None,
    }
}

/// Sets a key of every listener.
fn set_each_listener(set: &mut Node, key: &str, value: &Value, origin: &Origin) {
    let Some(mut listeners) = configured(set) else { return };
    listeners.iter_mut().for_each(|listener| listener.overlay(Node::at(key, value.clone(), origin)));
    set.overlay(Node::at("listeners", Value::List(listeners), origin));
}

fn set_key(set: &mut Node, text: &str, errors: &mut Vec<Problem>) {
    let origin = Origin::Flag("--set".to_owned());
    let mut report = |path: &str, message: String| {
        errors.push(Problem { origin: origin.clone(), path: path.to_owned(), message });
    };
    let Some((path, text)) = text.split_once('=') else {
        return report("", "missing `=`; write KEY=VALUE, such as relay.keepalive=30s".to_owned());
    };
    match shape::keys().into_iter().find(|(key, _)| key == path) {
        Some((_, shape)) if !path.contains("[]") => {
            set.overlay(Node::at(path, value(text, shape, &origin), &origin));
        }
        Some((_, shape)) => match path.strip_prefix(EACH_LISTENER) {
            Some("name" | "listen" | "upstream") => {
                report(path, "listeners differ in this key; use --listener LISTEN=UPSTREAM or a file".to_owned());
            }
            Some(key) => set_each_listener(set, key, &value(text, shape, &origin), &origin),
            None => report(path, "keys of lists cannot be set here; use a file".to_owned()),
        },
        None => {
            let keys = shape::keys();
            let near = nearest(path, keys.iter().map(|(key, _)| key.as_str()));
            let hint = near.map_or_else(
                || "see docs/reference/configuration.md or `tokometer config --print-default`".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            report(path, shape::set_by_variable(path).unwrap_or_else(|| format!("unknown key; {hint}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_variable_collides_with_kubernetes_service_links() {
        for (path, _) in shape::keys() {
            if let Some(name) = shape::variable(&path) {
                assert!(!is_service_link(&name), "{name} would be overwritten next to a Service named tokometer");
            }
        }
    }

    #[test]
    fn invalid_percent_encoding_is_kept() {
        let table = [("a%20b", "a b"), ("100%", "100%"), ("%zz", "%zz"), ("%2", "%2"), ("%C3%A9", "é"), ("%+1", "%+1")];
        for (text, expected) in table {
            assert_eq!(percent_decoded(text), expected);
        }
    }

    #[test]
    fn empty_variables_count_as_not_set() {
        let environment: Environment = [("POD_NAME", " p "), ("OTEL_X", " ")].into_iter().collect();
        assert_eq!((environment.get("POD_NAME"), environment.get("OTEL_X")), (Some("p"), None));
    }
}
