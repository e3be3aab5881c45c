//! The inference server of a pod: its container, engine, port and command.

use crate::inject::engine::Setting;
use crate::inject::patch::{Operation, add, replace};
use crate::inject::value::{Value, map};
use crate::inject::{Options, engine};
use tokometer_decode::Engine;
use tokometer_decode::engine::FlagForm;

/// The server of a pod.
#[derive(Clone, Debug)]
pub(super) struct Server<'a> {
    /// Index of its container.
    pub(super) number: usize,
    pub(super) container: &'a Value,
    pub(super) name: &'a str,
    pub(super) engine: Option<Engine>,
    pub(super) port: u16,
}

/// Finds the server and adds the evidence to `notes`. The error is why it is unknown, and which option to set.
pub(super) fn find<'a>(spec: &'a Value, options: &Options, notes: &mut Vec<String>) -> Result<Server<'a>, String> {
    let all = spec.list("containers");
    let name = |container: &'a Value| container.text("name").unwrap_or_default();
    let known: Vec<(usize, &Value)> = match &options.container {
        Some(wanted) => all.iter().enumerate().filter(|(_, container)| name(container) == wanted).collect(),
        None if all.len() == 1 && options.engine.is_some() => all.iter().enumerate().collect(),
        None => all.iter().enumerate().filter(|(_, container)| engine::of(container).is_some()).collect(),
    };
    let names = || all.iter().map(name).collect::<Vec<_>>().join(", ");
    let (number, found) = match (known.as_slice(), &options.container) {
        ([one], _) => *one,
        ([], Some(wanted)) => return Err(format!("no container is called {wanted}; the containers are: {}", names())),
        ([], None) => {
            return Err(format!(
                "no container is recognised as an inference server ({}); set it with --container, and its engine with --engine",
                names()
            ));
        }
        (several, _) => {
            let several: Vec<&str> = several.iter().map(|(_, container)| name(container)).collect();
            return Err(format!(
                "several containers may be the server ({}); set one with --container",
                several.join(", ")
            ));
        }
    };
    let recognised = engine::of(found);
    let engine = options.engine.or(recognised.map(|(engine, _)| engine));
    notes.push(match (options.engine, recognised) {
        (Some(engine), _) => {
            format!("the server is the container {}: {}, set by --engine", name(found), engine.info().title)
        }
        (None, Some((engine, by))) => {
            format!("the server is the container {}: {}, recognised by {by}", name(found), engine.info().title)
        }
        (None, None) => {
            format!("the server is the container {}, set by --container; its engine is unknown", name(found))
        }
    });
    let (port, by) = port(found, engine, options)?;
    notes.push(format!("it listens on port {port}, from {by}"));
    Ok(Server { number, container: found, name: name(found), engine, port })
}

fn port(found: &Value, engine: Option<Engine>, options: &Options) -> Result<(u16, String), String> {
    if let Some(port) = options.port {
        return Ok((port, "--port".to_owned()));
    }
    let listen = engine.and_then(|engine| engine.info().listen);
    let (by_flag, by_variable) = listen.map_or((Some("--port"), None), |listen| listen.port.names());
    if let Some(name) = by_flag
        && let Some(text) = flag(found, name)
    {
        let port = text
            .parse()
            .map_err(|_| format!("its {name} is `{text}`, which is not a port; set the port with --port"))?;
        return Ok((port, format!("its {name}")));
    }
    if let Some(name) = by_variable
        && let Some(text) = variable(found, name)
        && let Some(port) = text.rsplit(':').next().and_then(|port| port.parse().ok())
    {
        return Ok((port, format!("its variable {name}")));
    }
    let declared: Vec<(u16, Option<&str>)> = found
        .list("ports")
        .iter()
        .filter(|port| port.text("protocol").is_none_or(|protocol| protocol == "TCP"))
        .filter_map(|port| Some((u16::try_from(port.get("containerPort")?.integer()?).ok()?, port.text("name"))))
        .collect();
    let usual = listen.map(|listen| listen.default_port);
    match (declared.as_slice(), usual) {
        ([], Some(usual)) => Ok((usual, "the engine's default".to_owned())),
        ([], None) => Err("no port is declared; set its port with --port".to_owned()),
        ([(only, _)], _) => Ok((*only, "the only declared port".to_owned())),
        (several, Some(usual)) if several.iter().any(|(port, _)| *port == usual) => {
            Ok((usual, "the engine's default, which is declared".to_owned()))
        }
        (several, _) => match several.iter().find(|(_, name)| *name == Some("http")) {
            Some((port, _)) => Ok((*port, "the declared port named http".to_owned())),
            None => {
                let several: Vec<String> = several.iter().map(|(port, _)| port.to_string()).collect();
                Err(format!("several ports are declared ({}); set its port with --port", several.join(", ")))
            }
        },
    }
}

const SHELLS: [&str; 7] = ["sh", "bash", "ash", "dash", "zsh", "ksh", "busybox"];

/// Why arguments cannot be added to this container's command; `None` if they can.
pub(super) fn indirect(container: &Value) -> Option<String> {
    let command = container.texts("command");
    let base = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    if let Some(shell) = command.iter().map(|word| base(word)).find(|word| SHELLS.contains(&word.as_str())) {
        return Some(format!("its command runs through `{shell}`, so added arguments do not reach the server"));
    }
    if let Some(script) = command.first().filter(|word| word.ends_with(".sh")) {
        return Some(format!("its command is the script {script}, which may not forward arguments"));
    }
    None
}

/// The words of command and arguments. The text of a shell is split at white space, as the shell would.
fn words(container: &Value) -> Vec<String> {
    let words = container.texts("command").into_iter().chain(container.texts("args"));
    words.flat_map(|word| word.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned())).collect()
}

/// The value of the last flag with this name; empty if no value follows.
pub(super) fn flag(container: &Value, name: &str) -> Option<String> {
    let words = words(container);
    words.iter().enumerate().rev().find_map(|(at, word)| match word.strip_prefix(name)? {
        "" => Some(words.get(at + 1).cloned().unwrap_or_default()),
        rest => rest.strip_prefix('=').map(str::to_owned),
    })
}

/// The value of a variable set in the container itself.
fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let set = container.list("env").iter().rev().find(|variable| variable.text("name") == Some(name))?;
    set.text("value")
}

/// The changes that apply a setting; none if it is already in effect. `at` is the container's pointer.
pub(super) fn set(container: &Value, at: &str, setting: &Setting) -> Vec<Operation> {
    let Setting { name, value, form } = setting;
    let joined = || arguments(container, at, vec![format!("{name}={value}")]);
    match form {
        None => with_variable(container, at, name, value),
        Some(_) if flag(container, name).as_ref() == Some(value) => Vec::new(),
        Some(FlagForm::Joined) => joined(),
        Some(FlagForm::Spaced) => arguments(container, at, vec![(*name).to_owned(), value.clone()]),
        Some(FlagForm::Once) => replaced(container, at, name, value).unwrap_or_else(joined),
    }
}

fn arguments(container: &Value, at: &str, new: Vec<String>) -> Vec<Operation> {
    match container.get("args") {
        Some(Value::List(_)) => new.into_iter().map(|word| add(format!("{at}/args/-"), word)).collect(),
        _ => vec![add(format!("{at}/args"), new)],
    }
}

/// Replaces the flag's value in place.
fn replaced(container: &Value, at: &str, name: &str, value: &str) -> Option<Vec<Operation>> {
    ["args", "command"].into_iter().find_map(|list| {
        let items = container.list(list);
        let text = |item: &Value| if let Value::Text(text) = item { text.clone() } else { String::new() };
        items.iter().enumerate().find_map(|(number, item)| match text(item).strip_prefix(name)? {
            "" if number + 1 < items.len() => Some(vec![replace(format!("{at}/{list}/{}", number + 1), value)]),
            rest if rest.starts_with('=') => {
                Some(vec![replace(format!("{at}/{list}/{number}"), format!("{name}={value}"))])
            }
            _ => None,
        })
    })
}

fn with_variable(container: &Value, at: &str, name: &str, value: &str) -> Vec<Operation> {
    let ours = || map([("name", name.into()), ("value", value.into())]);
    let Some(Value::List(variables)) = container.get("env") else {
        return vec![add(format!("{at}/env"), vec![ours()])];
    };
    match variables.iter().rposition(|variable| variable.text("name") == Some(name)) {
        Some(number) if variables.get(number).and_then(|variable| variable.text("value")) == Some(value) => Vec::new(),
        Some(number) => vec![replace(format!("{at}/env/{number}"), ours())],
        None => vec![add(format!("{at}/env/-"), ours())],
    }
}
