//! Commands for the hooks and probes of pods: `drain`, for preStop hooks, and `probe`, for exec probes.

use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderValue, Method, header};
use serde_json::Value;

use crate::admin::connect_locally;
use crate::cli::shared::{WRONG_USAGE, complain, fail, print};
use crate::client::{Caller, Failure, HealthCheck, Target};
use crate::config::Environment;
use tokometer_settings::duration;

/// Default URL of the admin server.
const ADMIN: &str = "http://127.0.0.1:9464";

/// The variable with the admin server's listen address.
const LISTEN: &str = "TOKOMETER_ADMIN_LISTEN";

/// Maximum time for a response, in addition to the requested wait.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `drain`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer drain
  tokometer drain --wait --timeout 300s
  tokometer drain --admin http://127.0.0.1:9464 --wait

The request goes through a Unix socket, which tokometer opens in the network namespace of the pod. Run the command in
the pod, as the same user as tokometer or as root. For other machines, tokometer must have admin.remote_drain set.

New connections are still accepted until process.lame_duck has passed. Open streams continue.

Exit codes: 0 draining (with --wait: no stream is open), 1 failure, 2 wrong usage.")]
pub struct DrainArgs {
    /// URL of the admin server [default: TOKOMETER_ADMIN_LISTEN, otherwise http://127.0.0.1:9464]
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// Wait until no stream is open
    #[arg(long)]
    pub wait: bool,
    /// Maximum time to wait, such as 300s or 5m
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = duration::positive)]
    pub timeout: Duration,
}

/// Starts the drain and reports its result.
pub(super) fn drain(arguments: &DrainArgs, environment: &Environment) -> ExitCode {
    let (admin, source) = match &arguments.admin {
        Some(admin) => (admin.clone(), "flag --admin".to_owned()),
        None => (of_this_machine(environment.get(LISTEN)), format!("environment variable {LISTEN}")),
    };
    let wait = arguments.wait.then_some(arguments.timeout);
    match (request(&admin, wait), wait) {
        (Ok(open @ 1..), Some(wait)) => {
            fail(&format!("{} still open after {} s", streams_are(open), wait.as_secs_f64()))
        }
        (Ok(_), Some(_)) => print("drained: no stream is open\n"),
        (Ok(open), None) => print(&format!("draining: {} open\n", streams_are(open))),
        (Err(error @ DrainError::Address(_)), _) => {
            complain(&format!("{source}: {error}"));
            ExitCode::from(WRONG_USAGE)
        }
        (Err(error), _) => fail(&error),
    }
}

/// Why the drain failed.
#[derive(Debug, thiserror::Error)]
enum DrainError {
    #[error("`{0}` is not the address of an admin server; write http://127.0.0.1:9464")]
    Address(String),
    #[error("the admin server at {0} {1}; is tokometer running, and is this its admin address (--admin)?")]
    Unreachable(String, Failure),
    #[error("the admin server at {0} rejected the drain: {1}")]
    Refused(String, String),
    #[error("the server at {0} is not tokometer's admin server; set its address with --admin")]
    NotTokometer(String),
}

/// Requests a drain at this admin address (`http://127.0.0.1:9464` or `127.0.0.1:9464`) and returns the number of open
/// streams. With `wait`, returns when no stream is open or the wait has expired; otherwise immediately.
fn request(admin: &str, wait: Option<Duration>) -> Result<u64, DrainError> {
    let rest = admin.strip_prefix("http://").unwrap_or(admin);
    let address = rest.strip_suffix('/').unwrap_or(rest).to_owned();
    let target =
        format!("http://{address}").parse::<Target>().ok().filter(|_| !address.contains('/') && address.contains(':'));
    let target = target.ok_or_else(|| DrainError::Address(admin.to_owned()))?;
    let query = wait.map(|wait| format!("?wait={}ms", wait.as_millis())).unwrap_or_default();
    let timeout = wait.unwrap_or_default() + TIMEOUT;
    let addresses = target.addresses().map_err(|_| DrainError::Address(admin.to_owned()))?;
    let headers = [(header::CONTENT_LENGTH, "0"), (header::CONNECTION, "close")];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    let request = target.request(Method::POST, &format!("/drain{query}"), headers, Bytes::new());
    // With `admin.remote_drain`, a server on another machine accepts the request too.
    let mut caller = Caller::new(&target, timeout).through(addresses.into_iter().find_map(connect_locally));
    let response = caller.ask(&request).map_err(|failure| DrainError::Unreachable(address.clone(), failure))?;
    let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
    match (body["draining"].as_bool(), body["open_streams"].as_u64(), body["error"]["message"].as_str()) {
        (Some(true), Some(open_streams), _) => Ok(open_streams),
        (_, _, Some(message)) => Err(DrainError::Refused(address, message.to_owned())),
        _ => Err(DrainError::NotTokometer(address)),
    }
}

fn streams_are(open: u64) -> String {
    if open == 1 { "1 stream is".to_owned() } else { format!("{open} streams are") }
}

/// The address at which to connect to this listen address.
fn of_this_machine(listen: Option<&str>) -> String {
    match listen.and_then(|listen| listen.rsplit_once(':')) {
        Some(("" | "0.0.0.0" | "*", port)) => format!("http://127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("http://[::1]:{port}"),
        Some((host, port)) => format!("http://{host}:{port}"),
        None => listen.unwrap_or(ADMIN).to_owned(),
    }
}

/// Checks a server once and reports the result.
pub(super) fn probe(check: &HealthCheck) -> ExitCode {
    match check.run() {
        Ok(Some(status)) => print(&format!("healthy: status {status}\n")),
        Ok(None) => print("healthy: the port accepts connections\n"),
        Err(unhealthy) => fail(&unhealthy),
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
