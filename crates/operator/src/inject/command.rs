//! A container's command: its flags and variables, and whether added arguments reach the server.

use crate::inject::engine::Setting;
use crate::inject::patch::Operation;
use crate::inject::patch::add;
use crate::inject::patch::replace;
use crate::inject::value::Value;
use crate::inject::value::map;

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
pub(super) fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let set = container.list("env").iter().rev().find(|variable| variable.text("name") == Some(name))?;
    set.text("value")
}

/// The changes that apply a setting; none if it is already in effect. `at` is the container's pointer.
pub(super) fn set(container: &Value, at: &str, setting: &Setting) -> Vec<Operation> {
    match setting {
        Setting::Joined(name, value) | Setting::Spaced(name, value) | Setting::Single(name, value)
            if flag(container, name).as_deref() == Some(value) =>
        {
            Vec::new()
        }
        Setting::Joined(name, value) => arguments(container, at, vec![format!("{name}={value}")]),
        Setting::Spaced(name, value) => arguments(container, at, vec![(*name).to_owned(), value.clone()]),
        Setting::Single(name, value) => replaced(container, at, name, value)
            .unwrap_or_else(|| arguments(container, at, vec![format!("{name}={value}")])),
        Setting::Variable(name, value) => with_variable(container, at, name, value),
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
