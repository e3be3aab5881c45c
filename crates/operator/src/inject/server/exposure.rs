//! Whether clients outside the pod can connect to the server. An injection must not change it.

use tokometer_decode::Engine;

use super::{is_flag, named, values, words};
use crate::inject::texts::{list, of_engine};
use crate::inject::value::Value;

/// The addresses that include those of the pod.
const ALL: [&str; 4] = ["0.0.0.0", "::", "[::]", "*"];

/// The fields of a pod that are one of its addresses, or resolve to one.
const OF_THE_POD: [&str; 4] = ["status.podIP", "status.podIPs", "status.hostIP", "metadata.name"];

/// The address on which a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::inject) enum Exposure {
    /// The pod's addresses.
    Pod,
    /// Only 127.0.0.1.
    Loopback,
    /// Only the running container knows.
    Unknown,
}

/// Where the server in this container listens before the injection. `line` is its command line.
pub(super) fn of(container: &Value, line: &str, engine: Option<Engine>) -> Exposure {
    let listen = engine.and_then(|engine| engine.info().listen);
    let (flag, variable) = listen.map_or((Some("--host"), None), |listen| listen.host.names());
    let variables = container.list("env");
    let texts = || [line].into_iter().chain(variables.iter().filter_map(|variable| variable.text("value")));
    let given = flag.into_iter().flat_map(|flag| texts().flat_map(move |text| values(text, flag)));
    let given: Vec<Exposure> = given.map(|value| of_value(variables, value)).collect();
    if let Some(first) = given.first() {
        return if given.iter().all(|other| other == first) { *first } else { Exposure::Unknown };
    }
    if words(line).any(|word| list("config_files").iter().any(|flag| is_flag(word, flag))) {
        return Exposure::Unknown;
    }
    let is_local = |name: &&str| find(variables, name).map(of_variable) == Some(Exposure::Loopback);
    if list("host_variables").iter().any(is_local) {
        return Exposure::Loopback;
    }
    if let Some(name) = variable {
        match find(variables, name) {
            Some(variable) => return of_variable(variable),
            None if !container.list("envFrom").is_empty() => return Exposure::Unknown,
            None => {}
        }
    }
    let image = container.text("image").unwrap_or_default().rsplit('/').next().unwrap_or_default();
    match of_engine("loopback", engine) {
        Some(images) if !images.iter().any(|name| image.starts_with(name)) => Exposure::Loopback,
        _ => Exposure::Pod,
    }
}

fn find<'a>(variables: &'a [Value], name: &str) -> Option<&'a Value> {
    variables.iter().rev().find(|variable| variable.text("name") == Some(name))
}

fn of_variable(variable: &Value) -> Exposure {
    let field = || variable.at(&["valueFrom", "fieldRef"]).and_then(|field| field.text("fieldPath"));
    match variable.text("value") {
        Some(value) => of_address(value),
        None if field().is_some_and(|field| OF_THE_POD.contains(&field)) => Exposure::Pod,
        None => Exposure::Unknown,
    }
}

/// The value of a flag: an address or a variable, `$NAME`, `$(NAME)`, `${NAME}` or `${NAME:-default}`.
fn of_value(variables: &[Value], value: &str) -> Exposure {
    let value = value.trim_matches(['"', '\'', ';', '\\']);
    let Some(name) = named(value) else { return of_address(value) };
    let (name, default) = name.split_once(":-").map_or((name, None), |(name, default)| (name, Some(default)));
    match (find(variables, name), default) {
        (Some(variable), _) => of_variable(variable),
        (None, Some(default)) => of_address(default),
        // The name of the pod, set by the container runtime, and the program that prints it.
        (None, None) if matches!(name, "HOSTNAME" | "hostname") => Exposure::Pod,
        (None, None) => Exposure::Unknown,
    }
}

/// An address, with or without scheme and port.
fn of_address(text: &str) -> Exposure {
    let text = text.trim_start_matches("http://").trim_start_matches("https://");
    let host = text.rsplit_once(':').filter(|(_, port)| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit()));
    let host = host.map_or(text, |(host, _)| host);
    let is_all = ALL.contains(&text) || ALL.contains(&host) || host.is_empty() && !text.is_empty();
    match host {
        _ if is_all => Exposure::Pod,
        "127.0.0.1" | "localhost" => Exposure::Loopback,
        _ => Exposure::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_of_the_pod_local_or_unknown() {
        for (text, expected) in [
            ("0.0.0.0", Exposure::Pod),
            ("::", Exposure::Pod),
            ("[::]:11434", Exposure::Pod),
            (":11434", Exposure::Pod),
            ("http://0.0.0.0:1", Exposure::Pod),
            ("127.0.0.1", Exposure::Loopback),
            ("localhost:8000", Exposure::Loopback),
            ("::1", Exposure::Unknown),
            ("127.0.0.2", Exposure::Unknown),
            ("10.0.0.1", Exposure::Unknown),
            ("/run/s.sock", Exposure::Unknown),
            ("", Exposure::Unknown),
        ] {
            assert_eq!(of_address(text), expected, "{text}");
        }
    }
}
