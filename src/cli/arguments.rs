//! Commands and their arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::Parser;
use clap::Subcommand;
use clap::value_parser;

use crate::admin::duration;
use crate::cli::InjectArgs;
use crate::cli::top::TopArgs;
use crate::cli::verify::VerifyArgs;
use crate::client::Target;
use crate::config::Flags;
use tokometer_operator::dashboards;
use tokometer_operator::rules::Format;

/// A speedometer for LLM token streams: a transparent reverse proxy (sidecar) that measures time to first token, tokens
/// per second and the outcome of every request.
#[derive(Clone, Debug, Parser)]
#[command(name = "tokometer", version, propagate_version = true, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  tokometer demo                                        self-contained demonstration
  tokometer run --listen :8000 --upstream :8001         put it in front of your server
  tokometer check --config tokometer.yaml               explain a configuration
  tokometer verify --relay http://127.0.0.1:8000 --upstream http://127.0.0.1:8001

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration.")]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The command to run.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Proxy traffic to a server and measure it.
    Run(RunArgs),
    /// Explain the effective configuration and print warnings.
    Check(ConfigArgs),
    /// Print the effective configuration, the default one, or its JSON schema.
    Config(PrintArgs),
    /// Print the list of metrics: names, units, labels and meanings.
    #[command(after_help = "Examples:\n  tokometer metrics\n  tokometer metrics | grep first_token")]
    Metrics,
    /// Print alerting and recording rules generated from the configured objectives.
    Rules(RulesArgs),
    /// Write Grafana dashboards generated from the metrics and the configured objectives.
    Dashboards(DashboardsArgs),
    /// Run a demonstration: a simulated server, the proxy and a load in one process.
    Demo(DemoArgs),
    /// Simulate an inference server.
    Sim(SimArgs),
    /// Load a server and measure it from the client side.
    Load(LoadArgs),
    /// Measure the requests in recordings of real servers.
    Replay(ReplayArgs),
    /// Show live requests in a terminal.
    Top(TopArgs),
    /// Compare direct and proxied requests: latency, correctness, and whether the proxy can be bypassed.
    Verify(VerifyArgs),
    /// Add the sidecar to the pods in Kubernetes manifests.
    Inject(InjectArgs),
    /// Start a drain of a running tokometer, optionally waiting for its end.
    Drain(DrainArgs),
    /// Print the version.
    #[command(after_help = "Examples:\n  tokometer version")]
    Version,
}

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001
  tokometer run --listen :8000 --upstream unix:/run/vllm.sock --admin 127.0.0.1:9464
  tokometer run --listener :8000=:8001 --listener :9000=https://other:443
  tokometer run --config tokometer.yaml --set log.level=debug
  OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 tokometer run --listen :8000 --upstream :8001

SIGTERM drains and exits, SIGHUP reloads the configuration. docs/CONFIG.md lists every key and variable.")]
pub struct RunArgs {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Arguments that define a configuration.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  tokometer check
  tokometer check --config tokometer.yaml
  tokometer check --listen :8000 --upstream :8001 --set otlp.endpoint=http://collector:4318

Exit codes: 0 the configuration is valid, 2 it is invalid.")]
pub struct ConfigArgs {
    /// Configuration file (YAML); also TOKOMETER_CONFIG
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address that clients connect to: 0.0.0.0:8000, :8000 (the same), [10.0.0.7,fd00::7]:8000 (both) or unix:/path
    #[arg(long, value_name = "ADDRESS", conflicts_with = "listeners")]
    pub listen: Option<String>,
    /// Address of the server: 127.0.0.1:8001, :8001, https://host:port, unix:/path or original
    #[arg(long, value_name = "ADDRESS", conflicts_with = "listeners")]
    pub upstream: Option<String>,
    /// A listener with both addresses; can be repeated
    #[arg(long = "listener", value_name = "LISTEN=UPSTREAM")]
    pub listeners: Vec<String>,
    /// Address of /metrics, health and drain [default: 0.0.0.0:9464]
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// Address that receives the engine's OTLP traces: 127.0.0.1:4317; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub otlp_receiver: Vec<String>,
    /// Any other key, such as log.level=debug; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// The flags layer of the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            listen: self.listen.clone(),
            upstream: self.upstream.clone(),
            listeners: self.listeners.clone(),
            admin: self.admin.clone(),
            otlp_receiver: self.otlp_receiver.clone(),
            set: self.set.clone(),
        }
    }
}

/// Arguments of `config`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer config --print-default > tokometer.yaml
  tokometer config --schema > schema.json
  tokometer config --config tokometer.yaml             effective values, and where each was set")]
pub struct PrintArgs {
    /// Print every key with its default and documentation
    #[arg(long, conflicts_with = "schema")]
    pub print_default: bool,
    /// Print the JSON schema of the configuration file, for editors
    #[arg(long)]
    pub schema: bool,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Arguments of `rules`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer rules > tokometer.rules.yaml
  tokometer rules --config tokometer.yaml --format prometheusrule | kubectl apply -f -
  tokometer rules --format sloth | sloth generate -i /dev/stdin
  tokometer rules --time-scale 60                      for a trial: a one-hour window becomes a minute

docs/SLO.md describes the rules, and docs/runbooks the response to each alert.")]
pub struct RulesArgs {
    /// Output format: a Prometheus rule file, a PrometheusRule for its operator, or input for Sloth, Pyrra or OpenSLO
    /// tools
    #[arg(long, value_name = "FORMAT", default_value = Format::Prometheus.as_str(), value_parser = format)]
    pub format: Format,
    /// For trials: divide every window, wait and interval by this number
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=3600))]
    pub time_scale: u32,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
}

fn format(text: &str) -> Result<Format, String> {
    let known = || Format::ALL.map(Format::as_str).join(", ");
    Format::ALL.into_iter().find(|format| format.as_str() == text).ok_or_else(|| format!("write one of {}", known()))
}

/// Arguments of `dashboards`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer dashboards                                  list the dashboards
  tokometer dashboards --out /var/lib/grafana/dashboards
  tokometer dashboards --board tokometer-slo --import > slo.json
  tokometer dashboards --queries | jq -r .expr

docs/DASHBOARDS.md describes each dashboard and the Grafana requirements.")]
pub struct DashboardsArgs {
    /// Write every dashboard into this directory, one file each
    #[arg(long, value_name = "DIR", conflicts_with_all = ["board", "queries"])]
    pub out: Option<PathBuf>,
    /// Print only this dashboard
    #[arg(long, value_name = "NAME", value_parser = dashboards::NAMES, conflicts_with = "queries")]
    pub board: Option<String>,
    /// Use the format of Grafana's import page, which asks for the data source
    #[arg(long, conflicts_with = "queries")]
    pub import: bool,
    /// Print the queries of every panel, one JSON object per line
    #[arg(long)]
    pub queries: bool,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Arguments of `demo`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer demo
  tokometer demo --for 10s --streams 32
  tokometer demo --plain | tee demo.txt

Without a terminal it prints plain lines and exits after 20 s.")]
pub struct DemoArgs {
    /// Exit after this time with a summary, such as 10s, 500ms or 2m
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Number of concurrent streams
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=10_000))]
    pub streams: u32,
    /// Print plain lines instead of a live table
    #[arg(long)]
    pub plain: bool,
}

/// Arguments of `sim`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer sim --listen 127.0.0.1:8001
  tokometer sim --rate 120 --ttft-ms 80 --tokens 512 --tokens-per-chunk 4
  tokometer sim --engine tensorrt_llm --cached-share 0.5
  tokometer sim --faults status:503=0.1,cut:10=0.05,stall:2
  tokometer sim --listen unix:/tmp/sim.sock --model my-model")]
pub struct SimArgs {
    /// Listen address: 127.0.0.1:8001, :8001 or unix:/path
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    pub listen: String,
    /// Name of the served model
    #[arg(long, value_name = "NAME", default_value = "sim")]
    pub model: String,
    /// Tokens per second of each stream
    #[arg(long, value_name = "TOKENS_PER_SECOND", default_value_t = 50.0, value_parser = positive_number)]
    pub rate: f64,
    /// Milliseconds until the first token
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub ttft_ms: u64,
    /// Tokens per response, unless the request asks for fewer
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u64).range(1..))]
    pub tokens: u64,
    /// Engine to imitate for chat: vllm, sglang, lmdeploy, llama_cpp, tgi, ollama, dynamo, tensorrt_llm or triton. Each
    /// engine's own paths are always served
    #[arg(long, value_name = "ENGINE", default_value = "vllm")]
    pub engine: String,
    /// Share of each prompt that is read from the cache, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub cached_share: f64,
    /// Maximum number of concurrent requests; further ones wait
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..))]
    pub max_concurrency: u32,
    /// Report queue and generation times of each request, if the engine supports it
    #[arg(long)]
    pub request_metrics: bool,
    /// Tokens per event of a stream
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=100_000))]
    pub tokens_per_chunk: u32,
    /// Endpoint for request spans, as with vLLM: http://127.0.0.1:4317
    #[arg(long, value_name = "URL", value_parser = plain_url)]
    pub otlp_traces_endpoint: Option<String>,
    /// Protocol for request spans: grpc or http/protobuf
    #[arg(long, value_name = "PROTOCOL", default_value = "grpc")]
    pub otlp_traces_protocol: String,
    /// Faults, separated by commas: NAME[:ARGUMENT][=SHARE OF REQUESTS]. NAME is status:CODE; error-event, cut, reset
    /// or bad-json (ARGUMENT: number of events before the fault); stall, hang or slow-headers (ARGUMENT: seconds);
    /// no-done, empty or garbage
    #[arg(long, value_name = "SPEC")]
    pub faults: Option<String>,
}

/// Arguments of `load`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer load --url http://127.0.0.1:8000
  tokometer load --url http://127.0.0.1:8000 --concurrency 64 --for 30s
  tokometer load --requests 100 --max-tokens 64 --model my-model --json
  tokometer load --api messages --http2 --requests 20

APIs: chat, completions, responses, messages, generate (SGLang), lmdeploy_generate, llama_completion, infill,
tgi_generate, tgi_compat, ollama_chat, ollama_generate, triton_generate, vllm_generate, cohere_chat,
audio_transcription, audio_translation.

Without --for and --requests it exits after 10 s.")]
pub struct LoadArgs {
    /// URL of the server, optionally with a path that replaces the API's own
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// API to call [default: the one with the URL's path, otherwise chat]
    #[arg(long, value_name = "NAME")]
    pub api: Option<String>,
    /// Use HTTP/2 with prior knowledge, up to 100 concurrent requests per connection
    #[arg(long)]
    pub http2: bool,
    /// Number of concurrent requests
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=100_000))]
    pub concurrency: u32,
    /// Exit after this many requests
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Exit after this time, such as 10s, 500ms or 2m
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Model to request [default: sim]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Maximum tokens per response
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u64).range(1..))]
    pub max_tokens: u64,
    /// Print the summary as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `replay`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer replay recording.jsonl
  tokometer replay recordings/ --json | jq .output_tokens
  tokometer replay recording.jsonl --timeline")]
pub struct ReplayArgs {
    /// Recordings, or directories with recordings
    #[arg(value_name = "FILE|DIR", required = true)]
    pub paths: Vec<PathBuf>,
    /// Print one JSON object per request and line; absent values are null
    #[arg(long)]
    pub json: bool,
    /// Print also when the tokens of each request arrived, reduced to at most 48 points
    #[arg(long)]
    pub timeline: bool,
}

/// Arguments of `drain`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer drain
  tokometer drain --wait --timeout 300s
  tokometer drain --admin http://127.0.0.1:9464 --wait

New connections are accepted for another process.lame_duck. Open streams continue.

Exit codes: 0 draining (with --wait: no stream is open), 1 failure, 2 wrong usage.")]
pub struct DrainArgs {
    /// URL of the admin server [default: TOKOMETER_ADMIN_LISTEN, otherwise http://127.0.0.1:9464]
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// Wait until no stream is open
    #[arg(long)]
    pub wait: bool,
    /// Maximum time to wait, such as 300s or 5m
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = positive_duration)]
    pub timeout: Duration,
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = duration::parse(text)?;
    if duration.is_zero() { Err("must be above zero; write a duration such as 10s".to_owned()) } else { Ok(duration) }
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "write a number from 0 to 1".to_owned())
}

fn plain_url(text: &str) -> Result<String, String> {
    text.parse::<Target>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn positive_number(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .ok_or_else(|| format!("`{text}` is not a number above 0"))
}

#[cfg(test)]
mod tests {
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
    fn every_flag_of_run_is_documented() {
        let document = crate::config::document();
        let command = Cli::command();
        let run = command.find_subcommand("run").expect("`run` is a command");
        for flag in run.get_arguments().filter_map(|argument| argument.get_long()).filter(|flag| *flag != "help") {
            assert!(document.contains(&format!("| `--{flag} ")), "--{flag} is not in docs/CONFIG.md");
        }
    }

    #[test]
    fn arguments_parse() {
        let parse = |text: &str| Cli::try_parse_from(text.split(' ')).map(|cli| cli.command);
        let Ok(Command::Demo(demo)) = parse("tokometer demo --for 500ms --plain") else { panic!("demo") };
        assert_eq!((demo.duration, demo.streams, demo.plain), (Some(Duration::from_millis(500)), 8, true));
        let Ok(Command::Load(load)) = parse("tokometer load --requests 3 --json") else { panic!("load") };
        assert_eq!((load.requests, load.duration, load.json), (Some(3), None, true));
        let Ok(Command::Load(load)) = parse("tokometer load --api messages --http2") else { panic!("load") };
        assert_eq!((load.api.as_deref(), load.http2), (Some("messages"), true));
        let Ok(Command::Replay(replay)) = parse("tokometer replay a b --json") else { panic!("replay") };
        assert_eq!(replay.paths, [PathBuf::from("a"), PathBuf::from("b")]);
        let Ok(Command::Run(run)) = parse("tokometer run --listener a=b --listener c=d --admin :1") else {
            panic!("run")
        };
        assert_eq!((run.config.flags().listeners.len(), run.config.flags().admin.as_deref()), (2, Some(":1")));
        for bad in [
            "tokometer demo --for 0s",
            "tokometer demo --streams 0",
            "tokometer sim --rate 0",
            "tokometer sim --rate inf",
            "tokometer load --concurrency 0",
            "tokometer replay",
            "tokometer run --listener a=b --listen c",
            "tokometer config --schema --print-default",
            "tokometer rules --time-scale 0",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
