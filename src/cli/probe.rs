//! `tokometer probe`, for exec probes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::cli::shared::{fail, positive_duration, print};
use crate::client::{HealthCheck, Url};

/// Arguments of `probe`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer probe http://127.0.0.1:8000/health --timeout 5s
  tokometer probe tcp://127.0.0.1:8000
  tokometer probe http://127.0.0.1:8000/health --socket /run/vllm.sock

The rules are those of the kubelet's httpGet and tcpSocket probes: every status from 200 to 399 is a success, \
redirects to the same host are followed, and certificates are not verified.

Exit codes: 0 the server is healthy, 1 it is not, 2 wrong usage.")]
pub struct ProbeArgs {
    /// http://HOST:PORT/PATH, https://HOST:PORT/PATH or tcp://HOST:PORT
    #[arg(value_name = "URL")]
    pub url: Url,
    /// Maximum time until the response is complete, such as 5s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = positive_duration)]
    pub timeout: Duration,
    /// Additional request header; can be repeated. `Host`, `User-Agent` and `Accept` replace the default ones
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Connect to this Unix socket instead of the URL's host and port
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Parses `NAME: VALUE`.
fn header(text: &str) -> Result<(String, String), String> {
    let bad = || "write NAME: VALUE, such as X-Probe: 1".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(bad)?;
    http::HeaderName::try_from(name).map_err(|_| bad())?;
    http::HeaderValue::try_from(value).map_err(|_| bad())?;
    Ok((name.to_owned(), value.trim().to_owned()))
}

/// Checks a server once and reports the result.
pub(super) fn probe(arguments: ProbeArgs) -> ExitCode {
    let ProbeArgs { url, timeout, headers, socket } = arguments;
    match (HealthCheck { url, socket, headers, timeout }).run() {
        Ok(Some(status)) => print(&format!("healthy: status {status}\n")),
        Ok(None) => print("healthy: the port accepts connections\n"),
        Err(unhealthy) => fail(&unhealthy),
    }
}
