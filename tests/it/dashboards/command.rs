//! `tokometer dashboards` on the command line.

use std::process::{Command, Output};

use serde_json::Value;

use super::generated;

fn dashboards(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tokometer"))
        .arg("dashboards")
        .args(arguments)
        .env_clear()
        .output()
        .expect("the package's binary starts")
}

fn printed(arguments: &[&str]) -> String {
    let output = dashboards(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn prints_list_dashboard_import_variant_and_queries() {
    let (list, made) = (printed(&[]), generated());
    for dashboard in &made {
        assert!(list.contains(dashboard.name) && list.contains(&dashboard.title), "{list}");
    }
    assert_eq!(printed(&["--dashboard", "tokometer-slo"]), made[1].json);
    assert_eq!(printed(&["--dashboard", "tokometer-slo", "--import"]), made[1].import);
    let lines = printed(&["--queries"]);
    let queries: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(queries.len(), made.iter().map(|dashboard| dashboard.queries.len()).sum::<usize>());
    for key in ["dashboard", "panel", "ref", "expr", "legend"] {
        assert!(queries.iter().all(|query| query[key].is_string()), "{key}");
    }
    assert!(queries.iter().any(|query| query["may_be_empty"].is_string()));
    assert!(queries.iter().any(|query| query["may_be_empty"].is_null()));
}

#[test]
fn dashboards_are_written_into_a_new_directory() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a/b");
    let reported = printed(&["--out", out.to_str().unwrap(), "--import"]);
    for dashboard in generated() {
        let path = out.join(format!("{}.json", dashboard.name));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), dashboard.import);
        assert!(reported.contains(path.to_str().unwrap()), "{reported}");
    }
}

#[test]
fn write_error_contains_the_path() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = dashboards(&["--out", file.path().join("x").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        reported.contains(file.path().to_str().unwrap()) && reported.contains("cannot create this directory"),
        "{reported}"
    );
    let output = dashboards(&["--dashboard", "overview"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tokometer-overview"));
}
