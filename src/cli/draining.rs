//! `tokometer drain`, for preStop hooks.

use std::process::ExitCode;

use crate::admin;
use crate::admin::DrainError;
use crate::cli::DrainArgs;
use crate::cli::FAILURE;
use crate::cli::WRONG_USAGE;
use crate::cli::complain;
use crate::cli::print;
use crate::config::Environment;

/// Default URL of the admin server.
const ADMIN: &str = "http://127.0.0.1:9464";

/// The variable with the admin server's listen address.
const LISTEN: &str = "TOKOMETER_ADMIN_LISTEN";

/// Starts the drain and reports its result.
pub(super) fn drain(arguments: &DrainArgs, environment: &Environment) -> ExitCode {
    let listen = environment.get(LISTEN);
    let (admin, place) = match &arguments.admin {
        Some(admin) => (admin.clone(), "flag --admin".to_owned()),
        None => (of_this_machine(listen), format!("environment variable {LISTEN}")),
    };
    let wait = arguments.wait.then_some(arguments.timeout);
    match (admin::drain(&admin, wait), wait) {
        (Ok(drained), Some(wait)) if drained.open_streams > 0 => {
            complain(&format!(
                "tokometer: {} still open after {} s",
                streams_are(drained.open_streams),
                wait.as_secs_f64()
            ));
            ExitCode::from(FAILURE)
        }
        (Ok(_), Some(_)) => print("drained: no stream is open\n"),
        (Ok(drained), None) => print(&format!("draining: {} open\n", streams_are(drained.open_streams))),
        (Err(error @ DrainError::Address(_)), _) => {
            complain(&format!("{place}: {error}"));
            ExitCode::from(WRONG_USAGE)
        }
        (Err(error), _) => {
            complain(&format!("tokometer: {error}"));
            ExitCode::from(FAILURE)
        }
    }
}

fn streams_are(open: u64) -> String {
    if open == 1 { "1 stream is".to_owned() } else { format!("{open} streams are") }
}

/// The address to connect to, for a listen address.
fn of_this_machine(listen: Option<&str>) -> String {
    match listen.and_then(|listen| listen.rsplit_once(':')) {
        Some(("" | "0.0.0.0" | "*", port)) => format!("http://127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("http://[::1]:{port}"),
        Some((host, port)) => format!("http://{host}:{port}"),
        None => listen.unwrap_or(ADMIN).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_addresses_become_loopback() {
        for (listen, expected) in [
            (None, ADMIN),
            (Some(":9000"), "http://127.0.0.1:9000"),
            (Some("0.0.0.0:9000"), "http://127.0.0.1:9000"),
            (Some("[::]:9000"), "http://[::1]:9000"),
            (Some("10.0.0.7:9000"), "http://10.0.0.7:9000"),
        ] {
            assert_eq!(of_this_machine(listen), expected);
        }
    }
}
