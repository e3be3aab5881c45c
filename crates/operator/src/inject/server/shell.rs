//! Shell text that starts an engine: finding the words that start it, and inserting a flag after them.

use tokometer_decode::Engine;

use crate::inject::texts::{list, of_engine, starts};
use crate::inject::value::Value;

const SHELLS: [&str; 7] = ["sh", "bash", "ash", "dash", "zsh", "ksh", "busybox"];

/// The characters that end a command of a shell.
const ENDS: [char; 4] = [';', '&', '|', '\n'];

/// An item of a container's command or arguments that is shell text and starts the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inject) struct Text<'a> {
    /// `command` or `args`.
    pub(super) list: &'static str,
    /// Index in that list.
    pub(super) index: usize,
    /// The text before `start`.
    head: &'a str,
    /// The text from `start` on.
    rest: &'a str,
    /// The words that start the engine, followed by a space.
    start: String,
}

/// Finds the shell text; `None` if the command runs without a shell. The error is the name of a reason in `texts`.
pub(super) fn find(container: &Value, engine: Option<Engine>) -> Result<Option<Text<'_>>, &'static str> {
    let starts: Vec<String> = engine.map(starts).unwrap_or_default();
    let words = ["command", "args"].into_iter().flat_map(|list| {
        container.list(list).iter().enumerate().filter_map(move |(index, word)| match word {
            Value::Text(text) => Some((list, index, text.as_str())),
            _ => None,
        })
    });
    let mut texts = words.filter_map(|(list, index, text)| Some((list, index, text, position(text, &starts)?)));
    let Some((list, index, text, (at, start))) = texts.next() else {
        return if is_indirect(container) { Err("start") } else { Ok(None) };
    };
    let others = starts.iter().filter(|other| *other != start && text.contains(other.as_str()));
    if others.count() > 0 || texts.next().is_some() {
        return Err("shell-several");
    }
    let (head, rest) = text.split_at_checked(at).unwrap_or_default();
    Ok(Some(Text { list, index, head, rest, start: start.clone() }))
}

/// Position of the first of `starts` in shell text, in a command that is not just text, such as that of `echo`.
fn position<'a>(text: &str, starts: &'a [String]) -> Option<(usize, &'a String)> {
    let mut at = 0;
    for command in text.split(ENDS) {
        let first = command.split_whitespace().next().unwrap_or_default();
        let is_text = list("quoting").iter().any(|word| first == *word || *word == "#" && first.starts_with('#'));
        let found = starts.iter().find_map(|start| Some((at + command.find(start.as_str())?, start)));
        if let Some(found) = found.filter(|_| !is_text) {
            return Some(found);
        }
        at += command.len() + 1;
    }
    None
}

/// False if the container's command, or the arguments in its place, start another program than the engine's server.
pub(super) fn is_started(container: &Value, engine: Option<Engine>) -> bool {
    let (command, arguments) = (container.texts("command"), container.texts("args"));
    let first = arguments.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
    let is_program = list("programs").contains(&first) || is_indirect(container);
    let Some(engine) = engine.filter(|_| !command.is_empty() || is_program) else { return true };
    let (texts, words): (Vec<&str>, Vec<&str>) =
        command.into_iter().chain(arguments).partition(|word| word.contains(char::is_whitespace));
    let line = words.join(" ") + " ";
    let direct = of_engine("direct", Some(engine)).unwrap_or_default();
    let is_direct = direct.iter().any(|start| line.contains(&format!("{start} ")));
    let is_other = list("not_servers").iter().any(|other| line.contains(other));
    let starts = starts(engine);
    (is_direct || texts.into_iter().chain([line.as_str()]).any(|text| position(&format!("{text} "), &starts).is_some()))
        && !is_other
}

/// True if arguments added to this container may not reach the engine.
fn is_indirect(container: &Value) -> bool {
    let command = container.texts("command");
    let is_shell = |word: &&str| SHELLS.contains(&word.rsplit('/').next().unwrap_or_default());
    let is_script = command.first().is_some_and(|word| word.ends_with(".sh") || word.contains(' '));
    let for_the_entrypoint = command.is_empty() && matches!(container.texts("args").first(), Some(&("-c" | "-lc")));
    command.iter().any(is_shell) || is_script || for_the_entrypoint
}

impl Text<'_> {
    /// The text from the words that start the engine.
    pub(super) fn rest(&self) -> &str {
        self.rest
    }

    /// The text with this flag inserted after the words that start the engine; other occurrences of the flag are
    /// removed. The error is the name of a reason in `texts`.
    pub(super) fn with(&self, flag: &str, inserted: &str) -> Result<String, &'static str> {
        let found = flags(self.rest, flag).ok_or("shell-flag")?;
        let first = found.first().copied();
        let differ = found.iter().any(|other| Some(*other) != first);
        let before = first.and_then(|first| self.rest.split_once(first)).map_or("", |(before, _)| before);
        if differ || flags(self.head, flag) != Some(Vec::new()) || ends_a_command(before) {
            return Err("shell-flag");
        }
        let without = first.map_or_else(|| self.rest.to_owned(), |first| self.rest.replace(first, ""));
        let start = &self.start;
        Ok(format!("{}{}", self.head, without.replace(start, &format!("{start}{inserted} "))))
    }
}

/// Every occurrence of a flag, with its value; `None` if a value is not one word, as in `--host $(hostname -i)`.
fn flags<'a>(text: &'a str, flag: &str) -> Option<Vec<&'a str>> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.:[]${}-".contains(c);
    let mut found = Vec::new();
    for (at, _) in text.match_indices(flag) {
        let occurrence = text.get(at..)?;
        let given = occurrence.get(flag.len()..)?;
        let value = given.trim_start_matches(['=', ' ']);
        if value.len() == given.len() {
            continue; // A longer flag, such as --hostname.
        }
        let length = match value.chars().next()? {
            quote @ ('"' | '\'') => {
                let inner = value.get(1..)?.find(|c: char| c == quote || c.is_whitespace())?;
                value.get(inner + 1..)?.starts_with(quote).then_some(inner + 2)?
            }
            _ => value.find(|c| !is_plain(c)).unwrap_or(value.len()),
        };
        let after = value.get(length..)?;
        let is_whole = after.is_empty() || after.starts_with(|c: char| c.is_whitespace() || "\"'\\;".contains(c));
        if length == 0 || !is_whole {
            return None;
        }
        found.push(occurrence.get(..occurrence.len() - after.len())?);
    }
    Some(found)
}

/// True if a command ends within this text, so that the text after it belongs to another command.
fn ends_a_command(text: &str) -> bool {
    text.contains([';', '&', '|']) || text.replace("\\\n", "").contains('\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(text: &str) -> Result<String, &'static str> {
        let container = Value::Map(vec![("command".to_owned(), vec!["bash", "-c", text].into())]);
        let found = find(&container, Some(Engine::Vllm))?.ok_or("no shell")?;
        assert_eq!((found.list, found.index), ("command", 2));
        found.with("--host", "--host=127.0.0.1")
    }

    #[test]
    fn flag_is_inserted_after_the_start_and_replaces_the_old_one() {
        for (text, expected) in [
            ("vllm serve m", "vllm serve --host=127.0.0.1 m"),
            ("exec /opt/bin/vllm serve \\\n  m", "exec /opt/bin/vllm serve --host=127.0.0.1 \\\n  m"),
            ("vllm serve m --host 0.0.0.0 --port 1", "vllm serve --host=127.0.0.1 m  --port 1"),
            ("vllm serve m --host=\"${H:-::}\"; wait", "vllm serve --host=127.0.0.1 m ; wait"),
            ("eval \"vllm serve m --host 0.0.0.0\"", "eval \"vllm serve --host=127.0.0.1 m \""),
            ("vllm serve m --hostname a", "vllm serve --host=127.0.0.1 m --hostname a"),
            (
                "if a; then vllm serve m; else vllm serve n; fi",
                "if a; then vllm serve --host=127.0.0.1 m; else vllm serve --host=127.0.0.1 n; fi",
            ),
            ("vllm serve m \\\n --host '::' \\\n --x", "vllm serve --host=127.0.0.1 m \\\n  \\\n --x"),
        ] {
            assert_eq!(inserted(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn flag_that_cannot_be_replaced_is_reported() {
        for text in [
            "vllm serve m --host $(hostname -i)",
            "vllm serve m --host \"a b\"",
            "vllm serve m --host \\\n 0.0.0.0",
            "vllm serve m --host",
            "vllm serve m --host ",
            "vllm serve m --host 0.0.0.0 --host ::",
            "proxy --host 0.0.0.0 & vllm serve m",
            "vllm serve m & proxy --host 0.0.0.0",
            "vllm serve m\nproxy --host 0.0.0.0",
        ] {
            let expected = if text.ends_with("--host") { Ok(()) } else { Err("shell-flag") };
            assert_eq!(inserted(text).map(drop), expected, "{text}");
        }
        assert_eq!(inserted("start.sh"), Err("start"));
        assert_eq!(inserted("vllm serve m; python -m vllm.entrypoints.openai.api_server --x"), Err("shell-several"));
    }
}
