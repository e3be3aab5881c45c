//! The tables in docs/reference/engine-metrics.md match the code.

use std::fmt::Write as _;
use std::path::Path;

use tokometer_decode::Engine;
use tokometer_decode::engine::{Combine, Quantity, Source, Term};
use tokometer_engine::scrape::SOURCES;

/// The heading before the generated tables.
const HEADING: &str = "\n## Names\n";

/// The text between the heading and the tables.
const BEFORE_TABLES: &str = "
For each metric and engine, tokometer uses the first row whose names are all on the engine's metrics page. `older`
marks names of earlier engine releases.
";

#[test]
fn engine_metrics_page_matches_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/engine-metrics.md");
    let mut committed = std::fs::read_to_string(&path).unwrap();
    let (written, _) = committed.split_once(HEADING).expect("the page has a heading before its tables");
    let made = format!("{written}{HEADING}{}", tables());
    if std::env::vars_os().any(|(name, _)| name == "UPDATE") {
        std::fs::write(&path, &made).unwrap();
        committed.clone_from(&made);
    }
    assert!(committed == made, "docs/reference/engine-metrics.md is out of date: run this test with UPDATE=1");
}

fn tables() -> String {
    let mut out = BEFORE_TABLES.to_owned();
    for quantity in Quantity::ALL {
        let what = match quantity.combine() {
            Combine::Level => "Sum over models.",
            Combine::Highest => "Maximum over models.",
            Combine::Single => {
                "The engine's gauge is used only if the page has no counters from which to compute the ratio, and only if the gauge has exactly one series per rank."
            }
            Combine::Count => "Increase of the engine's counters, summed over models.",
        };
        writeln!(out, "\n### `{}`\n\n{what}\n", quantity.as_str()).unwrap();
        writeln!(out, "| Engine | Names on the engine's page | Note |\n|---|---|---|").unwrap();
        for (engine, source) in SOURCES.iter().filter(|(_, source)| source.quantity == quantity) {
            writeln!(out, "{}", row(*engine, source)).unwrap();
        }
    }
    out
}

fn row(engine: Engine, source: &Source) -> String {
    let terms: Vec<String> = source.terms.iter().map(names).collect();
    format!("| {} | {} | {} |", engine.as_str(), terms.join(" + ").replace("+ \u{2212}", "\u{2212}"), source.note)
}

fn names(term: &Term) -> String {
    let label = term.label.map(|(name, value)| format!("{{{name}=\"{value}\"}}")).unwrap_or_default();
    let (sign, scale) = match term.scale {
        -1.0 => ("\u{2212} ", String::new()),
        1.0 => ("", String::new()),
        scale => ("", format!(" \u{d7} {scale}")),
    };
    format!("{sign}`{}{label}`{scale}", term.name)
}
