//! The command `verify`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};

use crate::cli::shared::{FAILURE, positive_duration, print};
use crate::client::Target;
use crate::verify::{self, Api, CheckName};
use tokometer_settings::duration;

/// Arguments of `verify`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer verify --relay http://localhost:8000 \\
    --upstream http://localhost:8001
  tokometer verify --relay http://localhost:8000 \\
    --upstream http://localhost:8001 --requests 100 --json
  tokometer verify --relay http://localhost:8000 \\
    --upstream http://localhost:8001 --accept bypass

The checks are reach, latency, bytes, usage, queue, counts and bypass. docs/how-to/verify.md describes them.

Exit codes: 0 no check failed (there may be warnings), 1 a check failed, 2 wrong usage.")]
pub struct VerifyArgs {
    /// URL of the proxy, to which clients connect
    #[arg(long, value_name = "URL")]
    pub relay: Target,
    /// URL of the server
    #[arg(long, value_name = "URL")]
    pub upstream: Target,
    /// URL of tokometer's admin server [default: http://127.0.0.1:9464, if it responds]
    #[arg(long, value_name = "URL")]
    pub admin: Option<Target>,
    /// Model to request [default: the first model that the server lists]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// API to call: chat, or completions for models without a chat template
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Api::Chat)]
    pub api: Api,
    /// Number of canaries per path (direct and proxied)
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(1..=10_000))]
    pub requests: u32,
    /// Maximum tokens per response
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(2..=10_000))]
    pub max_tokens: u32,
    /// Maximum latency that the proxy may add: median of proxied requests minus median of direct requests
    #[arg(long, value_name = "DURATION", default_value = "5ms", value_parser = duration::parse)]
    pub max_added: Duration,
    /// Timeout of one request
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = positive_duration)]
    pub timeout: Duration,
    /// Request header, such as "Authorization: Bearer KEY"; can be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Check that is allowed to fail; can be repeated
    #[arg(long, value_name = "CHECK", value_enum)]
    pub accept: Vec<CheckName>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    let wrong = || "write NAME: VALUE, such as \"Authorization: Bearer KEY\"".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let (name, value) = (name.trim(), value.trim());
    let is_valid = http::HeaderName::try_from(name).is_ok() && http::HeaderValue::try_from(value).is_ok();
    if is_valid { Ok((name.to_owned(), value.to_owned())) } else { Err(wrong()) }
}

/// Verifies, and prints the report. The exit code is 1 if a check fails.
pub(super) fn verify(arguments: &VerifyArgs) -> ExitCode {
    let defaults = verify::Settings::of(arguments.relay.clone(), arguments.upstream.clone());
    let settings = verify::Settings {
        admin_is_named: arguments.admin.is_some(),
        admin: arguments.admin.clone().unwrap_or_else(|| defaults.admin.clone()),
        model: arguments.model.clone(),
        api: arguments.api,
        requests: arguments.requests,
        max_tokens: arguments.max_tokens,
        headers: arguments.headers.clone(),
        timeout: arguments.timeout,
        max_added: arguments.max_added,
        accept: arguments.accept.clone(),
        ..defaults
    };
    let terminal = io::stderr().is_terminal();
    let show = |text: &str| {
        if terminal {
            // Clears the line first (ECMA-48, EL). A failure to print progress does not end the verification.
            write!(io::stderr(), "\r\x1b[K{text}").ok();
        }
    };
    let report = verify::run(&settings, |sent| show(&format!("{sent} of {} canaries on each side", settings.requests)));
    show("");
    let text = if arguments.json { serde_json::to_string(&report).unwrap_or_default() } else { report.to_string() };
    match print(&(text + "\n")) {
        ExitCode::SUCCESS if !report.passed => ExitCode::from(FAILURE),
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn arguments_parse() {
        let text =
            "tokometer verify --relay http://a:1 --upstream http://b:2 --accept usage --accept bypass --header a:b";
        let Ok(Command::Verify(verify)) = Cli::try_parse_from(text.split(' ')).map(|cli| cli.command) else {
            panic!("the command is valid")
        };
        assert_eq!(verify.accept, [CheckName::Usage, CheckName::Bypass]);
        assert_eq!(verify.headers, [("a".to_owned(), "b".to_owned())]);
        assert_eq!((verify.requests, verify.max_added), (20, Duration::from_millis(5)));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for wrong in ["--relay b:1", "--accept all", "--requests 0", "--header x", "--timeout 0s", "--api messages"] {
            let text = format!("tokometer verify --upstream http://b:2 --relay http://a:1 {wrong}");
            let text = if wrong.starts_with("--relay") { text.replace("--relay http://a:1 ", "") } else { text };
            assert!(Cli::try_parse_from(text.split(' ')).is_err(), "{wrong}");
        }
        assert_eq!(header("A b: c").unwrap_err(), "write NAME: VALUE, such as \"Authorization: Bearer KEY\"");
    }
}
