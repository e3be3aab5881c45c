//! Detects the inference server of a pod: its container, engine and port.

use crate::inject::Options;
use crate::inject::command;
use crate::inject::container;
use crate::inject::engine::Engine;
use crate::inject::value::Value;

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
        None => all.iter().enumerate().filter(|(_, container)| Engine::of(container).is_some()).collect(),
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
    let recognised = Engine::of(found);
    let engine = options.engine.or(recognised.map(|(engine, _)| engine));
    notes.push(match (options.engine, recognised) {
        (Some(engine), _) => format!("the server is the container {}: {}, set by --engine", name(found), engine.name()),
        (None, Some((engine, by))) => {
            format!("the server is the container {}: {}, recognised by {by}", name(found), engine.name())
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
    let (flag, variable) = engine.map_or((Some("--port"), None), Engine::port_names);
    if let Some(flag) = flag
        && let Some(text) = command::flag(found, flag)
    {
        let port = text
            .parse()
            .map_err(|_| format!("its {flag} is `{text}`, which is not a port; set the port with --port"))?;
        return Ok((port, format!("its {flag}")));
    }
    if let Some(variable) = variable
        && let Some(text) = command::variable(found, variable)
        && let Some(port) = text.rsplit(':').next().and_then(|port| port.parse().ok())
    {
        return Ok((port, format!("its variable {variable}")));
    }
    let declared: Vec<(u16, Option<&str>)> = found
        .list("ports")
        .iter()
        .filter(|port| port.text("protocol").is_none_or(|protocol| protocol == "TCP"))
        .filter_map(|port| Some((u16::try_from(port.get("containerPort")?.integer()?).ok()?, port.text("name"))))
        .collect();
    let usual = engine.map(Engine::port);
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

/// Why this pod cannot have a sidecar.
pub(super) fn unfit(spec: &Value, options: &Options) -> Option<String> {
    if spec.at(&["os", "name"]) == Some(&Value::from("windows")) {
        return Some("it is a Windows pod".to_owned());
    }
    let all = || spec.list("initContainers").iter().chain(spec.list("containers"));
    if all().any(|other| other.text("name") == Some(container::NAME)) {
        return Some(format!(
            "it already has a container called {}, which was not injected by this command",
            container::NAME
        ));
    }
    let port = i64::from(options.admin_port);
    let taken = |other: &Value| {
        other.list("ports").iter().any(|p| p.get("containerPort").and_then(Value::integer) == Some(port))
    };
    let other = all().find(|other| taken(other))?;
    let name = other.text("name").unwrap_or_default();
    Some(format!("the container {name} uses port {port} of /metrics; set another one with --admin-port"))
}
