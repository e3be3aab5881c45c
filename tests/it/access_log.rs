//! The whole program with an access log on a full disk.

// Test code.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use tokometer::app::{Instrument, access_log};
use tokometer::config;
use tokometer_proxy::listen::Address;
use tokometer_sim::load;

use crate::listener::listener_to;
use crate::program::{get, simulated, value};
use crate::scrape::reading::until;

#[test]
fn unwritable_lines_are_counted() {
    let (runtime, simulator) = simulated();
    let mut settings = config::Settings::with_listener(listener_to(simulator.local_address()));
    settings.admin.listen = "127.0.0.1:0".parse().unwrap();
    let log = access_log::Settings { path: Some("/dev/full".into()), json: true, queue_lines: 4096 };
    settings.access_log = Some(log);
    let instrument = Instrument::start(&settings, None, Arc::new(String::new)).unwrap();
    let Address::Tcp { host, port } = instrument.addresses()[0].clone() else { panic!("a TCP listener") };
    let load = load::Settings {
        url: format!("http://{host}:{port}"),
        concurrency: 2,
        requests: Some(40),
        max_tokens: 2,
        ..load::Settings::default()
    };
    let summary = runtime.block_on(load::run(load, |_| {})).unwrap();
    assert_eq!(summary.requests, 40, "traffic is not affected");
    let lost = |reason: &str| {
        let page = get(instrument.admin(), "/metrics");
        value(&page, &["tokometer_access_log_dropped_total", &format!("reason=\"{reason}\"")]).unwrap()
    };
    // The last lines may still be in the writer's buffer for a retry, so fewer than 40 may be counted.
    let failed = until("lost lines are counted", || Some(lost("write_failed")).filter(|lines| *lines > 0.0));
    assert!(failed <= 40.0, "{failed}");
    assert_eq!(lost("queue_full"), 0.0);
    instrument.stop();
    runtime.block_on(simulator.stop());
}
