//! Arguments of `verify`.

use std::time::Duration;

use clap::Args;
use clap::value_parser;

use crate::admin::duration;
use crate::client::Target;
use crate::verify::Api;
use crate::verify::CheckName;

/// Arguments of `verify`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer verify --relay http://127.0.0.1:8000 --upstream http://127.0.0.1:8001
  tokometer verify --relay http://127.0.0.1:8000 --upstream http://127.0.0.1:8001 --requests 100 --json
  tokometer verify --relay http://localhost:8000 --upstream http://localhost:8001 --accept usage --accept bypass

It checks reach, latency, bytes, usage, queue, counts and bypass; docs/VERIFY.md says what each means.

Exit codes: 0 nothing is wrong, 1 something is, 2 wrong usage.")]
pub struct VerifyArgs {
    /// Where clients connect
    #[arg(long, value_name = "URL")]
    pub relay: Target,
    /// Where the server is
    #[arg(long, value_name = "URL")]
    pub upstream: Target,
    /// Where the relay's admin server is [default: http://127.0.0.1:9464, if it answers]
    #[arg(long, value_name = "URL")]
    pub admin: Option<Target>,
    /// Model to ask for [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// API to ask: chat, or completions for models without a chat template
    #[arg(long, value_name = "NAME", default_value = "chat")]
    pub api: Api,
    /// Canaries on each of the two ways
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(1..=10_000))]
    pub requests: u32,
    /// Most tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(2..=10_000))]
    pub max_tokens: u32,
    /// Most time that the relay may add to a median
    #[arg(long, value_name = "DURATION", default_value = "5ms", value_parser = duration::parse)]
    pub most_added: Duration,
    /// Longest that one answer may take
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = positive)]
    pub timeout: Duration,
    /// Request header, such as "Authorization: Bearer KEY"; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Check that may fail; may be given several times
    #[arg(long, value_name = "CHECK")]
    pub accept: Vec<CheckName>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<Duration, String> {
    duration::parse(text).and_then(|time| {
        if time.is_zero() { Err("no time at all; write a longer one, such as 10s".to_owned()) } else { Ok(time) }
    })
}

fn header(text: &str) -> Result<(String, String), String> {
    let wrong = || "write NAME: VALUE, such as \"Authorization: Bearer KEY\"".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let (name, value) = (name.trim(), value.trim());
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let fits = !name.is_empty() && name.chars().all(is_token) && !value.contains(|c: char| c.is_control());
    if fits { Ok((name.to_owned(), value.to_owned())) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;
    use crate::cli::Command;

    #[test]
    fn arguments_are_read() {
        let text =
            "tokometer verify --relay http://a:1 --upstream http://b:2 --accept usage --accept bypass --header a:b";
        let Ok(Command::Verify(verify)) = Cli::try_parse_from(text.split(' ')).map(|cli| cli.command) else {
            panic!("it is a good command")
        };
        assert_eq!(verify.accept, [CheckName::Usage, CheckName::Bypass]);
        assert_eq!(verify.headers, [("a".to_owned(), "b".to_owned())]);
        assert_eq!((verify.requests, verify.most_added), (20, Duration::from_millis(5)));
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for wrong in ["--relay b:1", "--accept all", "--requests 0", "--header x", "--timeout 0s", "--api messages"] {
            let text = format!("tokometer verify --upstream http://b:2 --relay http://a:1 {wrong}");
            let text = if wrong.starts_with("--relay") { text.replace("--relay http://a:1 ", "") } else { text };
            assert!(Cli::try_parse_from(text.split(' ')).is_err(), "{wrong}");
        }
        assert_eq!(header("A b: c").unwrap_err(), "write NAME: VALUE, such as \"Authorization: Bearer KEY\"");
    }
}
