//! The committed table of names matches the code.

use std::path::Path;

#[test]
fn engine_state_md_matches_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ENGINE_STATE.md");
    let made = tokometer_engine::scrape::markdown();
    if std::env::vars_os().any(|(name, _)| name == "UPDATE") {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "docs/ENGINE_STATE.md is out of date: run this test with UPDATE=1");
}
