//! The documentation: links and their anchors exist, and the book has every page.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, extension, found);
        } else if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
}

/// The text of every page by its path, without fenced code blocks.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut paths: Vec<PathBuf> =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "charts/tokometer/README.md"]
            .map(|name| root().join(name))
            .to_vec();
    files_below(&root().join("docs"), "md", &mut paths);
    let unfenced = |text: String| text.split("```").step_by(2).collect::<String>();
    paths.into_iter().map(|path| (path.clone(), unfenced(std::fs::read_to_string(path).unwrap()))).collect()
}

/// The targets of links and pictures, except URLs.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"'), ("href=\"", '"')];
    ends.into_iter()
        .flat_map(move |(begin, end)| text.split(begin).skip(1).filter_map(move |rest| rest.split(end).next()))
        .filter(|link| !link.contains("://") && !link.contains(' '))
}

/// The anchors of a page, as GitHub and mdBook make them from headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings
        .map(|heading| {
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

/// The path without `.` and `..`. Unlike `canonicalize`, this works for a path that does not exist.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn links_and_anchors_exist() {
    let (pages, mut broken, mut checked) = (pages(), Vec::new(), 0);
    for (page, text) in &pages {
        for link in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { normal(&page.with_file_name(file)) };
            let anchor_exists =
                || pages.get(&target).is_none_or(|text| anchor.is_empty() || anchors(text).contains(anchor));
            if !target.exists() || !anchor_exists() {
                broken.push(format!("{}: {link}", page.strip_prefix(root()).unwrap().display()));
            }
            checked += 1;
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    assert!(checked > 200, "{checked}");
}

#[test]
fn tests_of_the_limits_exist() {
    let security = std::fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let (_, section) = security.split_once("### Loops over received input").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut files = Vec::new();
    ["crates", "tests"].iter().for_each(|folder| files_below(&root().join(folder), "rs", &mut files));
    let code: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let rows = section.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit_once(" | ")).skip(1);
    let mut checked = 0;
    for (row, tests) in rows {
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            let defined = if name.contains('-') { format!("\"{name}\"") } else { format!("fn {name}()") };
            assert!(code.contains(&defined), "no test {name}");
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn book_has_every_page_once() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let text = std::fs::read_to_string(&summary).unwrap();
    let mut listed: Vec<PathBuf> = links(&text).map(|link| docs.join(link)).collect();
    let mut expected: Vec<PathBuf> = Vec::new();
    files_below(&docs, "md", &mut expected);
    expected.retain(|page| *page != summary);
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
}

/// Discouraged words with their replacements.
fn glossary() -> Vec<(&'static str, &'static str)> {
    let lines = include_str!("glossary.txt").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let entries = lines.map(|line| line.split_once(" -> ").expect("a replacement"));
    entries.flat_map(|(words, better)| words.split(", ").map(move |word| (word, better))).collect()
}

/// A page without code, link targets and attributes of tags.
fn prose(page: &str) -> String {
    let mut out = String::new();
    for line in page.lines().filter(|line| !is_code(line)) {
        for (n, part) in line.split('`').enumerate() {
            let part = if n % 2 == 0 { part } else { "_" };
            for (n, piece) in part.split("](").enumerate() {
                out.push_str(if n == 0 { piece } else { piece.split_once(')').map_or(piece, |(_, rest)| rest) });
                out.push(' ');
            }
        }
        out.push('\n');
    }
    out
}

/// True for a line of an indented code block or of an HTML tag with attributes.
fn is_code(line: &str) -> bool {
    let indented = line.starts_with("    ") && !line.trim_start().starts_with(['-', '*', '|', '1', '2', '3']);
    indented || (line.trim_start().starts_with('<') && line.contains('='))
}

/// Adds the discouraged words in a text to `found`, each with its line.
fn old_words(name: &str, text: &str, glossary: &[(&str, &str)], found: &mut Vec<String>) {
    for line in text.lines() {
        let plain: String =
            line.chars().map(|c| if c.is_alphanumeric() || "-_.'".contains(c) { c } else { ' ' }).collect();
        // A name such as `h1-pairs` is one word. Punctuation around a word is removed. Flags such as `--x` are code and
        // are skipped.
        let words = plain.split_whitespace().filter(|word| !word.starts_with("--"));
        let words: Vec<&str> = words.map(|word| word.trim_matches(['.', '-', '\''])).collect();
        let plain = format!(" {} ", words.join(" ").to_lowercase());
        for (word, better) in glossary.iter().filter(|(word, _)| plain.contains(&format!(" {word} "))) {
            found.push(format!("{name}: {word} -> {better}: {}", line.trim()));
        }
    }
}

/// Adds the string values of these keys, at any depth, to `found`.
fn texts(value: &serde_json::Value, keys: &[&str], found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => fields.iter().for_each(|(key, value)| match value.as_str() {
            Some(text) if keys.contains(&key.as_str()) => found.push(text.to_owned()),
            _ => texts(value, keys, found),
        }),
        serde_json::Value::Array(items) => items.iter().for_each(|value| texts(value, keys, found)),
        _ => {}
    }
}

#[test]
fn prose_uses_the_glossary() {
    let (glossary, mut found) = (glossary(), Vec::new());
    assert!(glossary.len() > 40);
    for (page, text) in pages() {
        old_words(&page.strip_prefix(root()).unwrap().display().to_string(), &prose(&text), &glossary, &mut found);
    }
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    // docs/reference/cli.md contains the `--help` texts in fenced blocks, which `pages` removes. Metric help is in
    // docs/reference/metrics.md, which is one of the pages.
    old_words("--help", &read("docs/reference/cli.md"), &glossary, &mut found);
    old_words(
        "config/tokometer.yaml",
        &prose(&read("config/tokometer.yaml").replace("    ", "")),
        &glossary,
        &mut found,
    );
    let mut files = Vec::new();
    files_below(&root().join("dashboards"), "json", &mut files);
    files_below(&root().join("config/rules"), "yaml", &mut files);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut shown = Vec::new();
        for document in serde_yaml::from_multiple::<serde_json::Value>(&text).unwrap() {
            texts(&document, &["title", "description", "summary", "legendFormat", "text", "displayName"], &mut shown);
        }
        old_words(&file.strip_prefix(root()).unwrap().display().to_string(), &shown.join("\n"), &glossary, &mut found);
    }
    assert!(found.is_empty(), "{} words to replace:\n{}", found.len(), found.join("\n"));
}
