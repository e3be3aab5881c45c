//! Helpers for tests of the whole program: a fast simulated server, and access to admin pages.

// Called only by tests.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokometer_sim::server;
use tokometer_sim::server::Simulator;

/// A simulated server without delays, and its runtime.
pub(crate) fn simulated() -> (Runtime, Simulator) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let pace = server::Pace {
        time_to_first_token: Duration::from_millis(1),
        tokens_per_second: 0.0,
        ..server::Pace::default()
    };
    let settings = server::Settings { pace, ..server::Settings::default() };
    let simulator = runtime.block_on(Simulator::start(settings)).unwrap();
    (runtime, simulator)
}

/// A response of the admin server, including its headers.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the admin server accepts");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("the request is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the response is read");
    response
}

/// The value of the series whose line contains all of these parts.
pub(crate) fn value(page: &str, parts: &[&str]) -> Option<f64> {
    let line = page.lines().find(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)))?;
    line.rsplit(' ').next()?.parse().ok()
}
