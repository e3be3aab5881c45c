//! A configuration file that changes while the program runs.
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::pod_end::{Process, port_after};
use crate::program::{get, value};

/// Publishes a version of a mounted ConfigMap like the kubelet: creates a folder, and atomically replaces one symlink.
fn publish(mount: &Path, version: &str, yaml: &str) {
    let (folder, next) = (mount.join(version), mount.join("..data_tmp"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("tokometer.yaml"), yaml).unwrap();
    symlink(version, &next).unwrap();
    fs::rename(&next, mount.join("..data")).unwrap();
}

fn yaml(wedge: &str) -> String {
    format!(
        "listeners: [{{listen: '127.0.0.1:0', upstream: '127.0.0.1:9'}}]\nadmin: {{listen: '127.0.0.1:0'}}\nwedge: {{decode: {wedge}}}\n"
    )
}

/// Polls the page until it is as expected.
fn until(admin: SocketAddr, path: &str, expected: impl Fn(&str) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let page = get(admin, path);
        if expected(&page) {
            return;
        }
        assert!(Instant::now() < end, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn replaced_configmap_is_reloaded_and_an_invalid_one_changes_nothing() {
    let mount = tempfile::tempdir().unwrap();
    publish(mount.path(), "..1", &yaml("61s"));
    symlink("..data/tokometer.yaml", mount.path().join("tokometer.yaml")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.arg("run").arg("--config").arg(mount.path().join("tokometer.yaml"));
    let (_process, port) = Process::of(command, |log| port_after(log, "/drain. address="));
    let admin = SocketAddr::from(([127, 0, 0, 1], port));
    let successful = |page: &str| value(page, &["tokometer_config_last_reload_successful"]);
    assert_eq!(successful(&get(admin, "/metrics")), Some(1.0));
    until(admin, "/config", |page| page.contains("61s"));

    publish(mount.path(), "..2", &yaml("62s"));
    until(admin, "/config", |page| page.contains("62s"));
    publish(mount.path(), "..3", &yaml("soon"));
    until(admin, "/metrics", |page| successful(page) == Some(0.0));
    assert!(get(admin, "/config").contains("62s"), "the previous configuration stays in effect");
    publish(mount.path(), "..4", &yaml("63s"));
    until(admin, "/config", |page| page.contains("63s"));
    until(admin, "/metrics", |page| successful(page) == Some(1.0));
}
