//! The command `top`.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::cli::shared::finish;
use crate::client::Target;
use crate::config::Environment;
use crate::top::{self, Display};
use tokometer_settings::duration;

/// Arguments of `top`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer top
  tokometer top --admin http://10.0.0.7:9464
  tokometer top --once
  tokometer top --interval 10s | tee top.log

Keys: q quits; p pauses; s changes the order (age, wait, speed, tokens); up and down scroll; left and right select one \
of the slowest requests. Without a terminal, top prints one line per snapshot. NO_COLOR disables colors.")]
pub struct TopArgs {
    /// URL of the admin server to watch
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464")]
    pub admin: Target,
    /// Print one snapshot and exit
    #[arg(long)]
    pub once: bool,
    /// Time between snapshots, such as 500ms or 10s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
}

/// Shorter intervals show nothing new: one snapshot is created per second.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    if interval < MIN_INTERVAL { Err("write 100ms or more, such as 1s".to_owned()) } else { Ok(interval) }
}

/// Runs until it is interrupted.
pub(super) fn top(arguments: &TopArgs, environment: &Environment) -> ExitCode {
    let settings = top::Settings {
        admin: arguments.admin.clone(),
        once: arguments.once,
        interval: arguments.interval,
        display: display(environment),
        end: None,
        hangup_ends: true,
    };
    finish(top::run(&settings, &mut io::stdout()))
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
