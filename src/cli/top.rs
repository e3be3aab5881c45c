//! The command `top`.

use std::io;
use std::process::ExitCode;

use crate::cli::shared::finish;
use crate::config::Environment;
use crate::top::{self, Display, Settings};

/// Runs until it is interrupted.
pub(super) fn top(settings: Settings, environment: &Environment) -> ExitCode {
    finish(top::run(&Settings { display: display(environment), ..settings }, &mut io::stdout()))
}

/// What the terminal can show.
pub(super) fn display(environment: &Environment) -> Display {
    Display {
        colour: environment.get("NO_COLOR").is_none(),
        ascii: !speaks_utf8(environment),
        plain: environment.get("TERM").is_none_or(|terminal| terminal == "dumb"),
    }
}

/// Decided by the locale: the first of these variables that is set.
fn speaks_utf8(environment: &Environment) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| environment.get(name)).unwrap_or_default();
    locale.to_ascii_lowercase().replace('-', "").contains("utf8")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn arguments_parse() {
        let parse = |text: &str| Cli::try_parse_from(text.split(' ')).map(|cli| cli.command);
        let Ok(Command::Top(top)) = parse("tokometer top --once --interval 500ms") else { panic!("top") };
        assert_eq!((top.once, top.interval), (true, Duration::from_millis(500)));
        for wrong in ["--interval 0s", "--interval 99ms", "--admin 127.0.0.1:9464"] {
            assert!(parse(&format!("tokometer top {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn first_locale_variable_decides_utf8() {
        let speaks = |variables: &[(&str, &str)]| speaks_utf8(&variables.iter().copied().collect());
        assert!(speaks(&[("LANG", "en_US.UTF-8")]));
        assert!(speaks(&[("LC_ALL", "C.utf8"), ("LANG", "C")]));
        assert!(!speaks(&[("LC_ALL", "POSIX"), ("LANG", "en_US.UTF-8")]));
        assert!(!speaks(&[]));
    }
}
