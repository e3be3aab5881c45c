//! The table of values in the chart's README, generated from the comments of values.yaml. `UPDATE=1` regenerates it.

use std::fmt::Write;

use serde_json::Value;

use crate::chart::text;
use crate::config_documents::same_as_committed;

const VALUES: &str = "charts/tokometer/values.yaml";
const README: &str = "charts/tokometer/README.md";
const BEGIN: &str = "<!-- values: generated from values.yaml by the test `chart::readme`; do not edit -->\n";
const END: &str = "<!-- values: end -->\n";

/// Maximum length of a default in the table.
const LONGEST: usize = 80;

/// A documented key.
struct Row {
    path: String,
    default: Option<String>,
    meaning: String,
}

/// The documented keys in order, and the keys that have a value but no documentation. Keys below a documented key are
/// covered by its documentation.
fn rows(values: &str) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut bare) = (Vec::new(), Vec::new());
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut inside: Option<usize> = None;
    let (mut meaning, mut default): (Option<String>, Option<String>) = (None, None);
    for line in values.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if line.is_empty() {
            (meaning, default) = (None, None);
            continue;
        }
        if inside.is_some_and(|outer| indent > outer || line.starts_with("- ")) {
            continue;
        }
        inside = None;
        if let Some(comment) = line.strip_prefix('#') {
            let comment = comment.trim_start();
            if let Some(first) = comment.strip_prefix("-- ") {
                meaning = Some(first.to_owned());
            } else if let Some(shown) = comment.strip_prefix("@default -- ") {
                default = Some(shown.to_owned());
            } else if let Some(meaning) = &mut meaning {
                write!(meaning, " {comment}").expect("writing to a string cannot fail");
            }
            continue;
        }
        if line.starts_with("- ") {
            // An item of an undocumented list.
            let path = joined(&above);
            if bare.last() != Some(&path) {
                bare.push(path);
            }
            continue;
        }
        let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("{VALUES}: no key: {line}"));
        above.retain(|(outer, _)| *outer < indent);
        above.push((indent, key.to_owned()));
        let path = joined(&above);
        match meaning.take() {
            Some(meaning) => {
                rows.push(Row { path, default: default.take(), meaning });
                inside = Some(indent);
            }
            None if !value.trim().is_empty() => bare.push(path),
            None => {}
        }
    }
    (rows, bare)
}

fn joined(above: &[(usize, String)]) -> String {
    above.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join(".")
}

fn table(values: &str) -> String {
    let all: Value = serde_yaml::from_str(values).expect("values.yaml is YAML");
    let mut made = "| key | default | meaning |\n|---|---|---|\n".to_owned();
    for Row { path, default, meaning } in rows(values).0 {
        let value = path.split('.').fold(&all, |value, key| &value[key]).to_string();
        let default = default.unwrap_or_else(|| match value.len() {
            ..=LONGEST => format!("`{}`", value.replace('|', "\\|")),
            _ => "see values.yaml".to_owned(),
        });
        let meaning = meaning.replace('|', "\\|");
        writeln!(made, "| `{path}` | {default} | {meaning} |").expect("writing to a string cannot fail");
    }
    made
}

#[test]
fn table_of_values_is_up_to_date() {
    let readme = text(README);
    let (before, rest) = readme.split_once(BEGIN).expect("README.md marks the start of the table");
    let (_, after) = rest.split_once(END).expect("README.md marks the end of the table");
    same_as_committed(README, &format!("{before}{BEGIN}{}{END}{after}", table(&text(VALUES))));
}

#[test]
fn every_value_is_documented() {
    let (rows, bare) = rows(&text(VALUES));
    assert_eq!(bare, Vec::<String>::new(), "write a comment `# -- MEANING` above each");
    assert!(rows.len() > 50, "found only {} values", rows.len());
}

#[test]
fn value_without_a_comment_is_detected() {
    let (rows, bare) =
        rows("a:\n  # -- Known,\n  # and more.\n  b: 1\n  c: 2\n# -- Map\nd:\n  e: 3\nf:\n  - g\n  - h\n");
    assert_eq!(rows.iter().map(|row| row.path.as_str()).collect::<Vec<_>>(), ["a.b", "d"]);
    assert_eq!(rows[0].meaning, "Known, and more.");
    assert_eq!(bare, ["a.c", "f"]);
}
