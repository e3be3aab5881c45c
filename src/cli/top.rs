//! Arguments of `top`.

use std::time::Duration;

use clap::Args;

use crate::admin::duration;
use crate::client::Target;

/// Arguments of `top`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer top
  tokometer top --admin http://10.0.0.7:9464
  tokometer top --once
  tokometer top --interval 10s | tee top.log

Keys: q quits, p pauses, s sorts by age, wait, speed and tokens, up and down scroll, left and right select one of the
slowest requests. Without a terminal it prints one line per snapshot. NO_COLOR disables colors.")]
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
    /// Use only ASCII characters, as without a UTF-8 locale
    #[arg(long)]
    pub ascii: bool,
}

/// Shorter intervals show nothing new: a snapshot is made once per second.
const LEAST: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    if interval < LEAST { Err("write 100ms or more, such as 1s".to_owned()) } else { Ok(interval) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;
    use crate::cli::Command;

    #[test]
    fn arguments_parse() {
        let parse = |text: &str| Cli::try_parse_from(text.split(' ')).map(|cli| cli.command);
        let Ok(Command::Top(top)) = parse("tokometer top --once --interval 500ms") else { panic!("top") };
        assert_eq!((top.once, top.interval, top.ascii), (true, Duration::from_millis(500), false));
        for wrong in ["--interval 0s", "--interval 99ms", "--admin 127.0.0.1:9464"] {
            assert!(parse(&format!("tokometer top {wrong}")).is_err(), "{wrong}");
        }
    }
}
