//! The command `verify`.

use std::io;
use std::io::Write;
use std::process::ExitCode;

use crate::cli;
use crate::cli::VerifyArgs;
use crate::verify;

/// Verifies, and prints the report. The exit code is a failure if a check fails.
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
        most_added: arguments.most_added,
        accept: arguments.accept.clone(),
        ..defaults
    };
    let report = verify::run(&settings);
    let text = if arguments.json { serde_json::to_string(&report).unwrap_or_default() } else { report.to_string() };
    let written = writeln!(io::stdout(), "{text}");
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            writeln!(io::stderr(), "tokometer: cannot write to stdout: {error}").ok();
            ExitCode::from(cli::FAILURE)
        }
        _ if report.good => ExitCode::SUCCESS,
        _ => ExitCode::from(cli::FAILURE),
    }
}
