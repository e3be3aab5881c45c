//! The documentation matches the table.

use std::path::Path;

#[test]
fn metrics_md_matches_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
    let want = tokometer_telemetry::export::metrics_markdown();
    if std::env::vars().any(|(name, value)| name == "UPDATE" && value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &want).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == want, "docs/METRICS.md is out of date: run this test with UPDATE=1");
}
