//! The documentation: links and their anchors exist, and the book has every page.

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

/// Every page, by its path, without its fenced blocks.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut paths: Vec<PathBuf> =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "charts/tokometer/README.md"]
            .map(|name| root().join(name))
            .to_vec();
    files_below(&root().join("docs"), "md", &mut paths);
    let unfenced = |text: String| text.split("```").step_by(2).collect::<String>();
    paths.into_iter().map(|path| (path.clone(), unfenced(std::fs::read_to_string(path).unwrap()))).collect()
}

/// The targets of links and pictures that are no URLs.
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

/// Without `.` and `..`, of a path that may not exist.
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
                || pages.get(&target).map_or(true, |text| anchor.is_empty() || anchors(text).contains(anchor));
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
