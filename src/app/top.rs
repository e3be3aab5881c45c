//! The command `top`.

use std::io;
use std::io::Write;
use std::process::ExitCode;

use crate::cli;
use crate::cli::TopArgs;
use crate::config::Environment;
use crate::top;

/// Runs until it is interrupted.
pub(super) fn top(arguments: &TopArgs, environment: &Environment) -> ExitCode {
    let settings = top::Settings {
        admin: arguments.admin.clone(),
        once: arguments.once,
        interval: arguments.interval,
        colour: environment.get("NO_COLOR").is_none(),
        ascii: arguments.ascii || !speaks_utf8(environment),
        dumb: environment.get("TERM").is_none_or(|terminal| terminal == "dumb"),
    };
    match top::run(&settings, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With stderr closed, the error cannot be reported.
            writeln!(io::stderr(), "tokometer: {error}").ok();
            ExitCode::from(cli::FAILURE)
        }
    }
}

/// By the locale: the first of these variables that is set is used.
fn speaks_utf8(environment: &Environment) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| environment.get(name)).unwrap_or_default();
    locale.to_ascii_lowercase().replace('-', "").contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_locale_variable_decides_utf8() {
        let speaks = |variables: &[(&str, &str)]| speaks_utf8(&variables.iter().copied().collect());
        assert!(speaks(&[("LANG", "en_US.UTF-8")]));
        assert!(speaks(&[("LC_ALL", "C.utf8"), ("LANG", "C")]));
        assert!(!speaks(&[("LC_ALL", "POSIX"), ("LANG", "en_US.UTF-8")]));
        assert!(!speaks(&[]));
    }
}
