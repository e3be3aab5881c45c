//! Commands and their arguments.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, value_parser};

use crate::cli::dashboards::DashboardsArgs;
use crate::cli::demo::DemoArgs;
use crate::cli::hooks::DrainArgs;
use crate::cli::inject::InjectArgs;
use crate::cli::replay::ReplayArgs;
use crate::cli::shared::one_of;
use crate::cli::simulator::{LoadArgs, SimArgs};
use crate::cli::top::display;
use crate::client::HealthCheck;
use crate::config::{Environment, Flags, TapFlags};
use crate::top::{self, Display};
use crate::verify;
use tokometer_operator::rules::Format;

/// A speedometer for LLM token streams: a transparent reverse proxy (sidecar) that measures time to first token, tokens
/// per second and the outcome of every request.
#[derive(Clone, Debug, Parser)]
#[command(name = "tokometer", version, propagate_version = true, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  tokometer demo                                  self-contained demonstration
  tokometer run --listen :8000 --upstream :8001   run it in front of your server
  tokometer check --config tokometer.yaml         explain a configuration
  tokometer top                                   watch live requests

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration.")]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses a command line, the program's name included.
    ///
    /// # Errors
    /// Help, the version, or wrong usage.
    pub fn parse_words(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Cli, clap::Error> {
        let mut words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        // clap's own command `help` has no flags.
        if words.get(1).is_some_and(|command| command == "help") {
            words.retain(|word| word != "--help" && word != "-h");
        }
        Cli::try_parse_from(words)
    }
}

/// Arguments of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The configuration
    #[command(flatten)]
    pub config: Flags,
    /// Instead of checking the configuration, report what `inject` would do with the pods in this manifest (-: stdin)
    #[arg(long, value_name = "FILE")]
    pub pod: Option<PathBuf>,
}

/// The command to run.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Proxy traffic to a server and measure it.
    #[command(after_help = "\
Examples:
  tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001
  tokometer run --listen :8000 --upstream unix:/run/vllm.sock --admin :9465
  tokometer run --listener :8000=:8001 --listener :9000=https://other:443
  tokometer run --config tokometer.yaml --set log.level=debug
  OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 \\
    tokometer run --listen :8000 --upstream :8001

On SIGTERM, tokometer drains and exits. Tokometer reloads a changed configuration file within 2 s, or immediately on \
SIGHUP. In a terminal, SIGHUP stops tokometer instead. docs/reference/configuration.md lists every key and variable.

Exit codes: 0 after a signal or a drain, 1 failure, 2 wrong usage or configuration.")]
    Run(Flags),
    /// Measure a running server from captured packets, without forwarding its traffic.
    Tap(TapArgs),
    /// Explain the effective configuration, connect to the servers and print warnings, or check whether pods can be
    /// injected. A server that cannot be reached is a warning: it may start later.
    #[command(after_help = "\
Examples:
  tokometer check
  tokometer check --config tokometer.yaml
  tokometer check --listen :8000 --upstream :8001 --set log.level=debug
  kubectl get deployment vllm -o yaml | tokometer check --pod -

Exit codes: 0 the configuration is valid, or every pod can be injected; 1 a pod would be left unchanged; 2 the \
configuration is invalid, or wrong usage.")]
    Check(CheckArgs),
    /// Print the effective configuration, the default one, or its JSON schema.
    Config(PrintArgs),
    /// Print the list of metrics: names, units, labels and meanings.
    #[command(after_help = "Examples:\n  tokometer metrics\n  tokometer metrics | grep first_token")]
    Metrics,
    /// Print alerting and recording rules generated from the configured objectives.
    Rules(RulesArgs),
    /// Write Grafana dashboards generated from the metrics and the configured objectives.
    Dashboards(DashboardsArgs),
    /// Run a demonstration: a simulated server, the proxy and a load generator in one process.
    Demo(DemoArgs),
    /// Simulate an inference server.
    Sim(SimArgs),
    /// Generate load on a server and measure it from the client side.
    Load(LoadArgs),
    /// Measure the requests in packet captures (tcpdump) and recordings.
    Replay(ReplayArgs),
    /// Show live requests in a terminal.
    Top(top::Settings),
    /// Compare direct and proxied requests: latency, correctness, and whether the proxy can be bypassed.
    Verify(verify::Settings),
    /// Add the sidecar to the pods in Kubernetes manifests.
    Inject(InjectArgs),
    /// Drain a running tokometer, and optionally wait until no stream is open.
    Drain(DrainArgs),
    /// Check once whether a server is healthy, like a probe of the kubelet.
    Probe(HealthCheck),
}

/// Arguments of `tap`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer tap --port 8000 --top
  tokometer tap --port 8000 --port 8001 --admin 127.0.0.1:9464
  tokometer tap --port 8000 --interface eth0 --config tokometer.yaml
  kubectl debug POD -it --image IMAGE --target CONTAINER --profile=general \\
    --custom tap.json -- tokometer tap --port 8000 --top

tap reads copies of the packets and never changes the traffic. It needs the capability NET_RAW, and cannot read TLS. \
docs/how-to/tap.md contains tap.json and compares tap with `run`. After SIGTERM, tap exits when no request is in \
flight, or when process.grace_period has passed. SIGHUP reloads the configuration. In a terminal, SIGHUP stops tap \
instead.")]
pub struct TapArgs {
    /// The captured ports and interface
    #[command(flatten)]
    pub captured: TapFlags,
    /// Show live requests in the terminal, like `tokometer top`
    #[arg(long)]
    pub top: bool,
    /// Configuration file (YAML); also TOKOMETER_CONFIG
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen address of the admin server (metrics, health, drain) [default: 0.0.0.0:9464]
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// Listen address for the engine's OTLP traces, such as 127.0.0.1:4317; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub otlp_receiver: Vec<String>,
    /// Set any other configuration key, such as log.level=debug; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl TapArgs {
    /// The display for `--top`; `None` without this flag.
    pub(super) fn display(&self, environment: &Environment) -> Option<Display> {
        self.top.then(|| display(environment))
    }

    /// Converts the arguments to flags of the configuration.
    pub(super) fn flags(&self, display: Option<Display>) -> Flags {
        let TapArgs { captured, top: _, config, admin, otlp_receiver, set } = self.clone();
        // Log lines would damage the screen. A flag also applies after a reload; the user's own flags override it.
        let is_hidden = display.is_some_and(|display| display.has_screen()) && io::stderr().is_terminal();
        let quiet = is_hidden.then(|| "log.level=off".to_owned());
        let set = quiet.into_iter().chain(set).collect();
        Flags { config, admin, otlp_receiver, set, tap: captured, ..Flags::default() }
    }
}

/// Arguments of `config`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer config --print-default > tokometer.yaml
  tokometer config --schema > schema.json
  tokometer config --config tokometer.yaml    effective values and origins")]
pub struct PrintArgs {
    /// Print every key with its default and documentation
    #[arg(long, conflicts_with = "schema")]
    pub print_default: bool,
    /// Print the JSON schema of the configuration file, for editors
    #[arg(long)]
    pub schema: bool,
    /// The configuration.
    #[command(flatten)]
    pub config: Flags,
}

/// Arguments of `rules`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer rules > tokometer.rules.yaml
  tokometer rules --format prometheusrule | kubectl apply -f -
  tokometer rules --format sloth | sloth generate -i /dev/stdin
  tokometer rules --time-scale 60    for a trial: an hour becomes a minute

docs/concepts/objectives.md describes the rules. docs/runbooks has a runbook for each alert.")]
pub struct RulesArgs {
    /// Output format: a Prometheus rule file, a PrometheusRule for the Prometheus operator, input for Sloth, Pyrra or
    /// OpenSLO tools, or Alertmanager inhibition rules
    #[arg(long, value_name = "FORMAT", default_value = Format::Prometheus.as_str(),
        value_parser = one_of(Format::ALL.map(|format| (format.as_str(), format))))]
    pub format: Format,
    /// For tests: divide all windows, `for` durations and evaluation intervals by this number
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=3600))]
    pub time_scale: u32,
    /// The configuration.
    #[command(flatten)]
    pub config: Flags,
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_definitions_are_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_have_examples_and_arguments_have_help() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("Examples:\n  tokometer {}", command.get_name())), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
        }
    }

    #[test]
    fn examples_are_not_wrapped() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for width in [80, 100] {
                let mut command = command.clone().term_width(width).max_term_width(100);
                for shown in [command.render_help().to_string(), command.render_long_help().to_string()] {
                    for line in shown.lines() {
                        assert!(line.chars().count() <= width, "{name}, {width} columns: {line}");
                    }
                    for example in examples.lines().filter(|line| line.starts_with("  ")) {
                        assert!(shown.lines().any(|line| line == example), "{name}, {width} columns: {example}");
                    }
                }
            }
            command.get_subcommands().for_each(check);
        }
        let mut all = Cli::command();
        all.build();
        check(&all);
    }

    #[test]
    fn help_has_help() {
        for words in ["help --help", "help -h", "help help", "help run", "help run --help", "run --help", "help"] {
            let parsed = Cli::parse_words(["tokometer"].into_iter().chain(words.split(' ')));
            let shown = parsed.expect_err("help is shown");
            assert!(!shown.use_stderr() && shown.to_string().contains("Usage: tokometer"), "{words}: {shown}");
        }
    }

    #[test]
    fn arguments_parse() {
        let parse = |text: &str| Cli::try_parse_from(text.split(' ')).map(|cli| cli.command);
        let Ok(Command::Demo(demo)) = parse("tokometer demo --for 500ms") else { panic!("demo") };
        assert_eq!((demo.duration, demo.streams), (Some(Duration::from_millis(500)), 8));
        let Ok(Command::Load(load)) = parse("tokometer load --requests 3 --json") else { panic!("load") };
        assert_eq!((load.requests, load.duration, load.json), (Some(3), None, true));
        let Ok(Command::Load(load)) = parse("tokometer load --api messages --http2") else { panic!("load") };
        assert_eq!((load.api, load.http2), (Some(tokometer_sim::load::Api::Messages), true));
        let Ok(Command::Replay(replay)) = parse("tokometer replay a b --json") else { panic!("replay") };
        assert_eq!(replay.paths, [PathBuf::from("a"), PathBuf::from("b")]);
        let Ok(Command::Tap(tap)) = parse("tokometer tap --port 8000 --port 8001 --interface eth0 --top") else {
            panic!("tap")
        };
        assert_eq!((tap.captured.ports, tap.captured.interface.as_deref()), (vec![8000, 8001], Some("eth0")));
        let Ok(Command::Run(run)) = parse("tokometer run --listener a=b --listener c=d --admin :1") else {
            panic!("run")
        };
        assert_eq!((run.listeners.len(), run.admin.as_deref()), (2, Some(":1")));
        for bad in [
            "tokometer demo --for 0s",
            "tokometer demo --streams 0",
            "tokometer sim --rate 0",
            "tokometer sim --rate inf",
            "tokometer load --concurrency 0",
            "tokometer load --api chat_completions",
            "tokometer sim --engine vlm",
            "tokometer replay",
            "tokometer run --listener a=b --listen c",
            "tokometer run --port 8000",
            "tokometer tap --port 65536",
            "tokometer tap --port 8000 --listen :1",
            "tokometer config --schema --print-default",
            "tokometer rules --time-scale 0",
            "tokometer probe 127.0.0.1:8000",
            "tokometer probe http://h/ --header x",
            "tokometer probe http://h/ --timeout 0s",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
