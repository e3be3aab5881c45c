//! The inference server of a pod: its container, engine, port and command.

mod exposure;
mod shell;

pub(super) use self::exposure::Exposure;
use self::shell::Text;
use crate::inject::engine::Setting;
use crate::inject::patch::{Operation, appended, replace};
use crate::inject::texts::{list, text};
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
    /// Further ports, of data-parallel ranks.
    pub(super) more: Vec<u16>,
    /// The shell text that starts the server; `None` without a shell. The error names the reason why arguments cannot
    /// be added.
    pub(super) shell: Result<Option<Text<'a>>, &'static str>,
    /// False if the container has a command that is not known to start the engine's server.
    pub(super) is_started: bool,
    /// Where it listens.
    pub(super) exposure: Exposure,
    /// Its command line: command and arguments, or the shell text from the words that start the engine.
    line: String,
}

impl Server<'_> {
    /// Every port.
    pub(super) fn ports(&self) -> impl Iterator<Item = u16> {
        [self.port].into_iter().chain(self.more.iter().copied())
    }

    /// The words of its command line.
    pub(super) fn words(&self) -> Vec<&str> {
        words(&self.line).collect()
    }

    /// True if the command line has this flag.
    pub(super) fn has(&self, name: &str) -> bool {
        words(&self.line).any(|word| is_flag(word, name))
    }

    /// True if the command line has one of these flags, written as `--flag` or, for one value, as `--flag=value`. A shell
    /// variable may be any value.
    pub(super) fn has_any(&self, flags: &[&str]) -> bool {
        flags.iter().any(|flag| match flag.split_once('=') {
            None => self.has(flag),
            Some((name, value)) => self.flags(name).any(|given| {
                let given = given.trim_matches(['"', '\'']);
                given == value || given.starts_with('$')
            }),
        })
    }

    /// True if its command line, or a variable that may be part of the command line, has a flag for TLS.
    pub(super) fn serves_tls(&self) -> bool {
        let values = self.container.list("env").iter().filter_map(|variable| variable.text("value"));
        let texts: Vec<&str> = values.chain([self.line.as_str()]).collect();
        list("tls").into_iter().any(|flag| texts.iter().any(|text| text.contains(flag)))
    }

    /// The values of a flag, in order, each up to the next white space.
    pub(super) fn flags(&self, name: &str) -> impl Iterator<Item = &str> {
        values(&self.line, name)
    }

    /// True if this flag value is the server's port. A shell variable is accepted if the container declares the port.
    pub(super) fn accepts(&self, value: &str) -> bool {
        let value = value.strip_prefix(['"', '\'']).unwrap_or(value);
        if value.starts_with('$') {
            return declared(self.container).any(|(port, _)| port == i64::from(self.port));
        }
        let rest = value.strip_prefix(&self.port.to_string());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['"', '\'', ';', '\\']))
    }
}

/// True if the container is recognized as an inference server, and starts it.
pub(super) fn is_server(container: &Value) -> bool {
    engine::of(container).is_some_and(|(engine, _)| shell::is_started(container, Some(engine)))
}

/// Finds the server and adds the evidence to `notes`. The error explains why the server is unknown, and which option to
/// set.
pub(super) fn find<'a>(spec: &'a Value, options: &Options, notes: &mut Vec<String>) -> Result<Server<'a>, String> {
    let all = spec.list("containers");
    let name = |container: &'a Value| container.text("name").unwrap_or_default();
    let mut known: Vec<(usize, &Value)> = match &options.container {
        Some(wanted) => all.iter().enumerate().filter(|(_, container)| name(container) == wanted).collect(),
        None if all.len() == 1 && options.engine.is_some() => all.iter().enumerate().collect(),
        None => all.iter().enumerate().filter(|(_, container)| engine::of(container).is_some()).collect(),
    };
    // A proxy may run from the engine's image.
    if known.iter().any(|(_, container)| is_server(container)) {
        known.retain(|(_, container)| options.container.is_some() || options.engine.is_some() || is_server(container));
    }
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
    let shell = shell::find(found, engine);
    let is_started = shell::is_started(found, engine);
    // The other words of a shell command are its parameters, which the text may pass on as `$@`.
    let text = shell.as_ref().ok().and_then(Option::as_ref);
    let others = words_but(found, text);
    let line = text.map(Text::rest).into_iter().chain(others).collect::<Vec<_>>().join(" ");
    let (port, by) = port(found, &line, engine, options)?;
    let more: Vec<u16> = options.ports.iter().skip(1).copied().collect();
    let list = [port].iter().chain(&more).map(u16::to_string).collect::<Vec<_>>().join(", ");
    notes.push(format!("it listens on port {list}, from {by}"));
    let exposure = exposure::of(found, &line, engine);
    Ok(Server { number, container: found, name: name(found), engine, port, more, shell, is_started, exposure, line })
}

fn port(found: &Value, line: &str, engine: Option<Engine>, options: &Options) -> Result<(u16, String), String> {
    if let Some(port) = options.ports.first() {
        return Ok((*port, "--port".to_owned()));
    }
    let listen = engine.and_then(|engine| engine.info().listen);
    let (by_flag, by_variable) = listen.map_or((Some("--port"), None), |listen| listen.port.names());
    // A variable that the container does not set may have the value of the declared port.
    let resolved = |text| match named(text) {
        Some(name) => variable(found, name).or_else(|| declared(found).next().is_none().then_some(text)),
        None => Some(text),
    };
    if let Some(name) = by_flag
        && let Some(text) = flag(line, name).and_then(resolved)
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
    let declared: Vec<(u16, Option<&str>)> =
        declared(found).filter_map(|(port, name)| Some((u16::try_from(port).ok()?, name))).collect();
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

/// The words of command and arguments, except the item that is this shell text.
fn words_but<'a>(container: &'a Value, text: Option<&Text<'_>>) -> impl Iterator<Item = &'a str> {
    let left_out = text.map(|text| (text.list, text.index));
    ["command", "args"].into_iter().flat_map(move |list| {
        let all = container.texts(list).into_iter().enumerate();
        all.filter(move |(index, _)| left_out != Some((list, *index))).map(|(_, word)| word)
    })
}

/// True if this word sets this flag.
fn is_flag(word: &str, name: &str) -> bool {
    word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// The words of a command line, without quotes around them.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace().map(|word| word.trim_matches(['"', '\'']))
}

/// The values of a flag, in order, each up to the next white space.
fn values<'a>(line: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    line.match_indices(name).filter_map(move |(at, _)| {
        let given = line.get(at + name.len()..)?;
        let value = given.trim_start_matches(['=', ' ']);
        (value.len() < given.len()).then(|| value.split(char::is_whitespace).next().unwrap_or_default())
    })
}

/// The value of the last flag with this name, without quotes.
fn flag<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let value = values(line, name).last()?;
    value.split(';').next().map(|value| value.trim_matches(['"', '\'']))
}

/// The name of the variable in a value such as `$NAME`, `${NAME}` or `$(NAME)`.
fn named(value: &str) -> Option<&str> {
    value.strip_prefix('$').map(|name| name.trim_matches(['{', '}', '(', ')']))
}

/// The value of a variable set in the container itself.
fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let set = container.list("env").iter().rev().find(|variable| variable.text("name") == Some(name))?;
    set.text("value")
}

/// The changes that apply a setting; none if the setting is already in effect. `at` is the container's JSON Pointer.
/// The error is the reason why the setting cannot be applied.
pub(super) fn set(server: &Server<'_>, at: &str, setting: &Setting) -> Result<Vec<Operation>, String> {
    let Setting { name, value, form } = setting;
    let Server { container, shell, line, .. } = server;
    let reason = |reason: &'static str| text("reasons", reason, &[("flag", name)]);
    let joined = || appended(container, at, "args", [format!("{name}={value}")]);
    let Some(form) = form else { return Ok(with_variable(container, at, name, value)) };
    if let Some(text) = shell.as_ref().map_err(|why| reason(why))? {
        if is_set_outside(container, text, name) {
            return Err(reason("shell-outside"));
        }
        let inserted = if *form == FlagForm::Spaced { format!("{name} {value}") } else { format!("{name}={value}") };
        let changed = text.with(name, &inserted).map_err(reason)?;
        return Ok(vec![replace(format!("{at}/{}/{}", text.list, text.index), changed)]);
    }
    Ok(match form {
        _ if flag(line, name) == Some(value) => Vec::new(),
        FlagForm::Joined => joined(),
        FlagForm::Spaced => appended(container, at, "args", [*name, value.as_str()]),
        FlagForm::Once => replaced(container, at, name, value).unwrap_or_else(joined),
    })
}

/// True if a variable, or a word outside the shell text, sets this flag.
fn is_set_outside(container: &Value, text: &Text<'_>, name: &str) -> bool {
    words_but(container, Some(text)).any(|word| is_flag(word, name))
        || container.list("env").iter().any(|variable| variable.text("value").is_some_and(|value| value.contains(name)))
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
        return appended(container, at, "env", [ours()]);
    };
    match variables.iter().rposition(|variable| variable.text("name") == Some(name)) {
        Some(number) if variables.get(number).and_then(|variable| variable.text("value")) == Some(value) => Vec::new(),
        Some(number) => vec![replace(format!("{at}/env/{number}"), ours())],
        None => appended(container, at, "env", [ours()]),
    }
}

/// The number of a port that may be a name of this container.
pub(super) fn number(container: &Value, port: &Value) -> Option<i64> {
    port.integer().or_else(|| {
        let of_name = |(_, name): &(i64, Option<&str>)| name.is_some_and(|name| *port == name.into());
        declared(container).find(of_name).map(|(number, _)| number)
    })
}

/// The TCP ports that a container declares, with their names.
pub(super) fn declared(container: &Value) -> impl Iterator<Item = (i64, Option<&str>)> {
    let ports = container.list("ports").iter();
    ports
        .filter(|port| port.text("protocol").is_none_or(|protocol| protocol == "TCP"))
        .filter_map(|port| Some((port.get("containerPort")?.integer()?, port.text("name"))))
}
