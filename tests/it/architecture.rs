//! The rules of `docs/ARCHITECTURE.md`, read from the source text. A broken one is told with file and line.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

/// Module, then the other modules of ours that it may name. Those that are not listed may name everything.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("budget", &[]),
    ("relay", &[]),
    ("wire", &["budget"]),
    ("decode", &[]),
    ("sim", &[]),
    ("admin", &[]),
    ("scrape", &[]),
    ("listen", &["relay"]),
    ("measure", &["decode"]),
    ("observe", &["budget", "relay", "wire", "decode", "measure"]),
    ("tokenizer", &["measure", "decode"]),
    ("live", &["measure", "decode"]),
    ("queue", &["measure", "decode"]),
    ("attach", &[]),
    ("export", &["measure", "decode", "scrape"]),
    ("slo", &["measure", "decode"]),
    ("ledger", &["measure", "decode"]),
    // Of `export` the table of metrics alone.
    ("rules", &["slo", "export"]),
    ("dashboards", &["slo", "export", "rules"]),
    // A witness: of `scrape` the reader of a page of metrics alone.
    ("client", &[]),
    ("verify", &["client", "scrape"]),
    // Of `live` the shape of a snapshot alone.
    ("top", &["client", "live"]),
    ("replay", &["observe", "measure", "relay", "decode"]),
    // The settings types, nothing else: see `config_names_of_other_modules_their_settings_alone`.
    (
        "config",
        &[
            "listen",
            "relay",
            "observe",
            "tokenizer",
            "live",
            "scrape",
            "export",
            "queue",
            "slo",
            "ledger",
            "admin",
            "app",
        ],
    ),
];

/// Outside crate, then the only modules that may name it: what must be swapped is in one place.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("pingora", &["listen", "relay", "app"]),
    ("hyper", &["admin", "queue", "scrape", "sim", "export"]),
    ("hyper_util", &["admin", "queue", "scrape", "sim", "export"]),
    ("h2", &["sim"]),
    ("opentelemetry", &["export"]),
    ("opentelemetry_sdk", &["export"]),
    ("opentelemetry_otlp", &["export"]),
    ("opentelemetry_http", &["export"]),
    ("prometheus_client", &["export"]),
    ("serde_yaml", &["attach", "config", "rules"]),
    // The simulator reads requests without `wire`, so that it can be a witness of it.
    // `client` is one of what the relay sends.
    ("httparse", &["wire", "sim", "client"]),
    ("clap", &["cli"]),
    ("flate2", &["wire", "queue", "export"]),
    ("brotli_decompressor", &["wire"]),
    ("zstd_safe", &["wire"]),
    ("tokenizers", &["tokenizer"]),
];

/// What the pure modules must not touch: times come in, bytes come in, and nothing waits.
const PURE: &[&str] = &["wire", "decode", "measure", "slo", "rules", "dashboards", "attach"];
const IMPURE: &[&str] = &["Instant::now", "SystemTime", "std::net", "std::fs", "std::thread", "tokio::", "tracing::"];

/// The only file with `unsafe` in it, its reason beside it.
const UNSAFE: &str = "src/listen/descriptor.rs";

/// A file that is longer holds more than one idea.
const MOST_LINES: usize = 600;

/// One line of a source file, without its comment.
struct Line<'a> {
    place: String,
    module: &'a str,
    code: &'a str,
    /// In a test module.
    test: bool,
}

/// Shows every line of every Rust file under these directories; returns what was found wrong.
fn broken_in(directories: &[&str], find: impl Fn(&Line<'_>) -> Option<String>) -> Vec<String> {
    let mut broken = Vec::new();
    for path in directories.iter().flat_map(|directory| files(directory)) {
        let text = read(&path);
        let module = path.iter().nth(1).and_then(|name| name.to_str()).unwrap_or_default();
        let mut test = path.iter().any(|name| name == "tests" || name == "tests.rs");
        for (number, line) in text.lines().enumerate() {
            test |= line.starts_with("mod tests {");
            let place = format!("{}:{}", path.display(), number + 1);
            let code = if line.trim_start().starts_with("//") { "" } else { line.split(" // ").next().unwrap_or("") };
            let line = Line { place, module: module.trim_end_matches(".rs"), code, test };
            broken.extend(find(&line).map(|why| format!("{}: {why}", line.place)));
        }
    }
    broken
}

/// Rust files under a directory of the package, as paths relative to the package.
fn files(directory: &str) -> Vec<PathBuf> {
    fn visit(root: &Path, directory: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries {
            let path = entry.expect("a readable directory").path();
            if path.is_dir() && !path.ends_with("target") {
                visit(root, &path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path.strip_prefix(root).expect("under the root").to_owned());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    visit(root, &root.join(directory), &mut found);
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("source is UTF-8")
}

/// The word that follows each `prefix` in this code.
fn words_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let word = |at: usize| {
        let rest = code.get(at..).unwrap_or("");
        rest.split(|c: char| !is_word(c)).next().unwrap_or("")
    };
    let begins = |at: usize| !code.get(..at).unwrap_or("").ends_with(is_word);
    code.match_indices(prefix).filter(|(at, _)| begins(*at)).map(|(at, found)| word(at + found.len())).collect()
}

/// True when this code names the crate: `pingora::x`, and not `my_pingora::x`.
fn names_crate(code: &str, name: &str) -> bool {
    let path = format!("{name}::");
    code.match_indices(&path).any(|(at, _)| !code.get(..at).unwrap_or("").ends_with(|c| is_word(c) || c == ':'))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn assert_whole(broken: &[String]) {
    assert!(broken.is_empty(), "{} places break a rule of docs/ARCHITECTURE.md:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn modules_name_only_what_the_map_allows() {
    assert_whole(&broken_in(&["src"], |line| {
        let (_, allowed) = MAY_NAME.iter().find(|(module, _)| *module == line.module)?;
        let named = words_after(line.code, "crate::");
        let wrong =
            named.into_iter().find(|name| *name != line.module && !name.is_empty() && !allowed.contains(name))?;
        Some(format!("`{}` names `{wrong}`", line.module))
    }));
}

#[test]
fn config_names_of_other_modules_their_settings_alone() {
    let of_config = MAY_NAME.iter().find(|(module, _)| *module == "config").map_or(&[][..], |(_, names)| names);
    assert_whole(&broken_in(&["src/config"], |line| {
        of_config.iter().filter(|module| **module != "app").find_map(|module| {
            let settings = read(&Path::new("src").join(module).join("settings.rs"));
            let is_setting =
                |name: &str| ["struct", "enum"].iter().any(|kind| settings.contains(&format!("pub {kind} {name} {{")));
            let wrong = words_after(line.code, &format!("{module}::")).into_iter().find(|name| !is_setting(name))?;
            Some(format!("`config` names `{module}::{wrong}`, which is not in src/{module}/settings.rs"))
        })
    }));
}

#[test]
fn outside_crates_stay_in_their_places() {
    assert_whole(&broken_in(&["src"], |line| {
        let (name, places) =
            ONLY_IN.iter().find(|(name, places)| !places.contains(&line.module) && names_crate(line.code, name))?;
        Some(format!("`{}` names the crate `{name}`, which is for {}", line.module, places.join(", ")))
    }));
}

#[test]
fn pure_modules_read_no_clock_and_touch_no_socket() {
    assert_whole(&broken_in(&["src"], |line| {
        let pure = PURE.contains(&line.module) && !line.test;
        let named = IMPURE.iter().find(|name| pure && line.code.contains(*name))?;
        Some(format!("`{}` names `{named}`", line.module))
    }));
}

#[test]
fn imports_name_one_path_each() {
    assert_whole(&broken_in(&["src"], |line| {
        let why = if line.code.contains("crate::{") {
            "modules are named one by one"
        } else if line.code.contains("super::super") {
            "a path from `crate::` says where it leads"
        } else if line.code.trim_start().starts_with("use ") && line.code.contains("::*;") && !line.test {
            "no glob imports"
        } else {
            return None;
        };
        Some(why.to_owned())
    }));
}

#[test]
fn unsafe_code_is_in_one_file_alone() {
    assert_whole(&broken_in(&["src", "tests", "fuzz"], |line| {
        let keyword = words(line.code).any(|word| word == "unsafe") && !line.code.contains('"');
        (keyword && !line.place.starts_with(UNSAFE)).then(|| format!("`unsafe` outside {UNSAFE}"))
    }));
    assert!(read(Path::new(UNSAFE)).contains("unsafe"), "{UNSAFE} needs no exception any more");
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !is_word(c))
}

#[test]
fn no_file_is_longer_than_a_person_reads_at_once() {
    let mut long = Vec::new();
    for path in ["src", "tests", "fuzz", "benches"].iter().flat_map(|directory| files(directory)) {
        let lines = read(&path).lines().count();
        if lines > MOST_LINES {
            long.push(format!("{}:{}: {lines} lines, at most {MOST_LINES}", path.display(), MOST_LINES + 1));
        }
    }
    assert_whole(&long);
}

#[test]
fn every_module_is_on_the_map() {
    let map = read(Path::new("docs/ARCHITECTURE.md"));
    let root = read(Path::new("src/lib.rs"));
    let modules = root.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let missing: Vec<&str> = modules.filter(|module| !map.contains(&format!("| `{module}` |"))).collect();
    assert!(missing.is_empty(), "docs/ARCHITECTURE.md has no row for {missing:?}");
}

#[test]
fn the_rules_catch_what_they_are_for() {
    assert_eq!(words_after("use crate::measure::Record;", "crate::"), ["measure"]);
    assert_eq!(words_after("let x = crate::a::b(crate::c);", "crate::"), ["a", "c"]);
    assert_eq!(words_after("use my_crate::measure;", "crate::"), Vec::<&str>::new());
    assert!(names_crate("use pingora::server::Server;", "pingora"));
    assert!(names_crate("fn f(s: pingora::Server)", "pingora"));
    assert!(!names_crate("use my_pingora::x;", "pingora"));
    assert!(!names_crate("use crate::pingora::x;", "pingora"));
    assert!(!names_crate("let hyper_fast = 1;", "hyper"));
}
