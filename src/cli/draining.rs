//! `tokometer drain`: what a preStop hook runs.

use std::process::ExitCode;

use crate::admin;
use crate::cli::DrainArgs;
use crate::cli::FAILURE;
use crate::cli::complain;
use crate::cli::print;
use crate::config::Environment;

/// Where the admin server is when nobody says otherwise.
const ADMIN: &str = "http://127.0.0.1:9464";

/// Begins the drain, and tells how it ended.
pub(super) fn drain(arguments: &DrainArgs, environment: &Environment) -> ExitCode {
    let admin = arguments.admin.clone().unwrap_or_else(|| of_this_machine(environment.get("TOKOMETER_ADMIN_LISTEN")));
    let wait = arguments.wait.then_some(arguments.timeout);
    match (admin::drain(&admin, wait), wait) {
        (Ok(drained), Some(wait)) if drained.open_streams > 0 => {
            complain(&format!(
                "tokometer: {} streams are still open after {} s",
                drained.open_streams,
                wait.as_secs_f64()
            ));
            ExitCode::from(FAILURE)
        }
        (Ok(_), Some(_)) => print("drained: no stream is open\n"),
        (Ok(drained), None) => print(&format!("draining: {} streams are open\n", drained.open_streams)),
        (Err(error), _) => {
            complain(&format!("tokometer: {error}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// The address to connect to for one that is listened on.
fn of_this_machine(listen: Option<&str>) -> String {
    match listen.and_then(|listen| listen.rsplit_once(':')) {
        Some(("" | "0.0.0.0" | "*", port)) => format!("http://127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("http://[::1]:{port}"),
        Some((host, port)) => format!("http://{host}:{port}"),
        None => ADMIN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_all_is_reached_by_that_of_this_machine() {
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
