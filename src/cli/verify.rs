//! The command `verify`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use crate::cli::shared::{FAILURE, print};
use crate::verify;

/// Verifies, and prints the report. The exit code is 1 if a check fails.
pub(super) fn verify(settings: &verify::Settings) -> ExitCode {
    let terminal = io::stderr().is_terminal();
    let show = |text: &str| {
        if terminal {
            // Clears the line first (ECMA-48, EL). A failure to print progress does not end the verification.
            write!(io::stderr(), "\r\x1b[K{text}").ok();
        }
    };
    let report = verify::run(settings, |sent| show(&format!("{sent} of {} canaries on each side", settings.requests)));
    show("");
    let text = if settings.json { serde_json::to_string(&report).unwrap_or_default() } else { report.to_string() };
    match print(&(text + "\n")) {
        ExitCode::SUCCESS if !report.passed => ExitCode::from(FAILURE),
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use std::time::Duration;

    use crate::cli::{Cli, Command};
    use crate::verify::CheckName;

    #[test]
    fn arguments_parse() {
        let text =
            "tokometer verify --relay http://a:1 --upstream http://b:2 --accept usage --accept bypass --header a:b";
        let Ok(Command::Verify(verify)) = Cli::try_parse_from(text.split(' ')).map(|cli| cli.command) else {
            panic!("the command is valid")
        };
        assert_eq!(verify.accept, [CheckName::Usage, CheckName::Bypass]);
        assert_eq!(verify.headers, [("a".parse().unwrap(), "b".parse().unwrap())]);
        assert_eq!((verify.requests, verify.max_added), (20, Duration::from_millis(5)));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for wrong in ["--relay b:1", "--accept all", "--requests 0", "--header x", "--timeout 0s", "--api messages"] {
            let text = format!("tokometer verify --upstream http://b:2 --relay http://a:1 {wrong}");
            let text = if wrong.starts_with("--relay") { text.replace("--relay http://a:1 ", "") } else { text };
            assert!(Cli::try_parse_from(text.split(' ')).is_err(), "{wrong}");
        }
        let text = "tokometer verify --upstream http://b:2 --relay http://a:1 --header";
        let error = Cli::parse_words(text.split(' ').chain(["A b: c"])).unwrap_err().to_string();
        assert!(error.contains("write NAME: VALUE, such as \"Authorization: Bearer KEY\""), "{error}");
    }
}
