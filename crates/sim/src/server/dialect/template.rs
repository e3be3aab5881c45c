//! The template language of recordings.
//!
//! - `<name>`: a value (see [`super::values`]).
//! - `<?name>...<:>...<.>`: a condition, true unless the value is empty, `0`, `null`, `false` or `[]`. `<?name=text>`
//!   compares the value; `<?!name>` negates.
//! - `<*choices>...<.>` and `<*inputs>...<.>`: repeated for each choice or input of the request, separated by commas.
//! - `<@name>`: includes another section of the same recording; `<@recording/name>` includes one of another recording.

use crate::server::dialect::values::{self, Render, Scope};

/// Finds the text of a section by the name of its recording (empty for the recording being parsed) and its own name.
pub(super) type Sections<'a> = &'a dyn Fn(&str, &str) -> Option<&'static str>;

/// A list over which a template repeats.
#[derive(Clone, Copy, Debug)]
enum List {
    Choices,
    Inputs,
}

#[derive(Debug)]
enum Node {
    Text(&'static str),
    Value(Render),
    If { value: Render, expected: Option<&'static str>, then: Vec<Node>, otherwise: Vec<Node> },
    Each(List, Vec<Node>),
}

/// A parsed template of one event, head or body.
#[derive(Debug)]
pub(super) struct Template(Vec<Node>);

impl Template {
    /// # Errors
    /// The invalid tag.
    pub(super) fn parse(text: &'static str, sections: Sections<'_>) -> Result<Template, String> {
        let mut rest = text;
        match parse(&mut rest, "", sections)? {
            (nodes, "") => Ok(Template(nodes)),
            (_, end) => Err(format!("<{end}> without a start in {text:?}")),
        }
    }

    /// Appends the filled-in template.
    pub(super) fn render(&self, scope: &Scope<'_>, out: &mut Vec<u8>) {
        render(&self.0, scope, out);
    }
}

/// Parses up to an end tag, and returns that tag.
fn parse(rest: &mut &'static str, home: &str, sections: Sections<'_>) -> Result<(Vec<Node>, &'static str), String> {
    let value = |name: &str| values::named(name).ok_or_else(|| format!("unknown value <{name}>"));
    let mut nodes = Vec::new();
    loop {
        let (text, tagged) = rest.split_once('<').unwrap_or((rest, ""));
        if !text.is_empty() {
            nodes.push(Node::Text(text));
        }
        if tagged.is_empty() {
            *rest = "";
            return Ok((nodes, ""));
        }
        let (tag, after) = tagged.split_once('>').ok_or_else(|| format!("no end of the tag in <{tagged:?}"))?;
        *rest = after;
        if matches!(tag, "." | ":") {
            return Ok((nodes, tag));
        } else if let Some(condition) = tag.strip_prefix('?') {
            let (mut then, end) = parse(rest, home, sections)?;
            let mut otherwise = if end == ":" { parse(rest, home, sections)?.0 } else { Vec::new() };
            let condition = condition.strip_prefix('!').map_or(condition, |negated| {
                std::mem::swap(&mut then, &mut otherwise);
                negated
            });
            let (name, expected) =
                condition.split_once('=').map_or((condition, None), |(name, text)| (name, Some(text)));
            nodes.push(Node::If { value: value(name)?, expected, then, otherwise });
        } else if let Some(list) = tag.strip_prefix('*') {
            let list = if list == "choices" { List::Choices } else { List::Inputs };
            nodes.push(Node::Each(list, parse(rest, home, sections)?.0));
        } else if let Some(name) = tag.strip_prefix('@') {
            let (home, name) = name.split_once('/').unwrap_or((home, name));
            let mut included = sections(home, name).ok_or_else(|| format!("unknown section <@{home}/{name}>"))?;
            nodes.append(&mut parse(&mut included, home, sections)?.0);
        } else {
            nodes.push(Node::Value(value(tag)?));
        }
    }
}

fn render(nodes: &[Node], scope: &Scope<'_>, out: &mut Vec<u8>) {
    for node in nodes {
        match node {
            Node::Text(text) => out.extend_from_slice(text.as_bytes()),
            Node::Value(value) => value(scope, out),
            Node::If { value, expected, then, otherwise } => {
                let start = out.len();
                value(scope, out);
                let is = match (out.get(start..).unwrap_or_default(), expected) {
                    (value, Some(expected)) => value == expected.as_bytes(),
                    (value, None) => !matches!(value, b"" | b"0" | b"null" | b"false" | b"[]"),
                };
                out.truncate(start);
                render(if is { then } else { otherwise }, scope, out);
            }
            Node::Each(List::Choices, nodes) => {
                for (index, choice) in (0..).zip(scope.choices) {
                    let (finish, generated) = (choice.finish, choice.ids.len() as u64);
                    let scope = Scope { index, finish, generated, ..scope.with_output(choice) };
                    separate(index, out);
                    render(nodes, &scope, out);
                }
            }
            Node::Each(List::Inputs, nodes) => {
                for index in 0..scope.context.job.inputs {
                    separate(index, out);
                    render(nodes, &Scope { index, ..*scope }, out);
                }
            }
        }
    }
}

fn separate(index: u64, out: &mut Vec<u8>) {
    if index > 0 {
        out.push(b',');
    }
}
