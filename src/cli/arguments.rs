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

/// A speedometer for LLM token streams: a transparent sidecar that measures time to first token, tokens per second and
/// how every request ended.
#[derive(Clone, Debug, Parser)]
#[command(name = "tokometer", version, propagate_version = true, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  tokometer demo                                        see it work, nothing else needed
  tokometer run --listen :8000 --upstream :8001         put it in front of your server
  tokometer check --config tokometer.yaml               explain a configuration
  tokometer verify --relay http://127.0.0.1:8000 --upstream http://127.0.0.1:8001

Exit codes: 0 good, 1 failure, 2 wrong usage or configuration.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Relay traffic to a server and measure it.
    Run(RunArgs),
    /// Explain the configuration in effect, and warn of what deserves a second look.
    Check(ConfigArgs),
    /// Print the configuration in effect, the default one, or its JSON schema.
    Config(PrintArgs),
    /// Print the list of metrics: names, units, labels and meanings.
    #[command(after_help = "Examples:\n  tokometer metrics\n  tokometer metrics | grep first_token")]
    Metrics,
    /// Print rules for Prometheus and its kin, made from the objectives of the configuration.
    Rules(RulesArgs),
    /// Write dashboards for Grafana, made from the metric table and the objectives of the configuration.
    Dashboards(DashboardsArgs),
    /// Show it at work: a simulated server, the relay and a load in one process.
    Demo(DemoArgs),
    /// Imitate an inference server on the wire.
    Sim(SimArgs),
    /// Load a server and measure it from the client's side.
    Load(LoadArgs),
    /// Run recordings of real servers through the measurement.
    Replay(ReplayArgs),
    /// Watch what passes at this moment, in a terminal.
    Top(TopArgs),
    /// Send canaries beside and through the relay: is it fast, exact, and the only way to the server?
    Verify(VerifyArgs),
    /// Put the sidecar into the pods of Kubernetes manifests.
    Inject(InjectArgs),
    /// Begin a drain of a running tokometer, and wait for its end.
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
  tokometer run --pair :8000=:8001 --pair :9000=https://other:443
  tokometer run --config tokometer.yaml --set log.level=debug
  OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 tokometer run --listen :8000 --upstream :8001

SIGTERM drains and ends, SIGHUP reads the configuration again. docs/CONFIG.md lists every key and variable.")]
pub struct RunArgs {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Arguments that make a configuration.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  tokometer check
  tokometer check --config tokometer.yaml
  tokometer check --listen :8000 --upstream :8001 --set otlp.endpoint=http://collector:4318

Exit codes: 0 the configuration can be used, 2 it cannot.")]
pub struct ConfigArgs {
    /// Configuration file (YAML); TOKOMETER_CONFIG does the same
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where clients connect: 0.0.0.0:8000, :8000 (the same), [10.0.0.7,fd00::7]:8000 (both) or unix:/path
    #[arg(long, value_name = "ADDRESS", conflicts_with = "pairs")]
    pub listen: Option<String>,
    /// Where the server is: 127.0.0.1:8001, :8001, https://host:port, unix:/path or original
    #[arg(long, value_name = "ADDRESS", conflicts_with = "pairs")]
    pub upstream: Option<String>,
    /// A pair of both; may be given several times
    #[arg(long = "pair", value_name = "LISTEN=UPSTREAM")]
    pub pairs: Vec<String>,
    /// Where /metrics, health and drain are served [default: 0.0.0.0:9464]
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// Where the engine's OTLP traces are received: 127.0.0.1:4317; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    pub otlp_receiver: Vec<String>,
    /// Any other key, such as log.level=debug; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// The top layer of the configuration.
    pub fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            listen: self.listen.clone(),
            upstream: self.upstream.clone(),
            pairs: self.pairs.clone(),
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
  tokometer config --config tokometer.yaml             what is in effect, and where each value was set")]
pub struct PrintArgs {
    /// Print every key with its default and documentation
    #[arg(long, conflicts_with = "schema")]
    pub print_default: bool,
    /// Print the JSON schema of the file, for editors
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
  tokometer rules --time-scale 60                      for a trial: an hour's window is a minute

docs/SLO.md says what the rules ask, and docs/runbooks what to do about each alert.")]
pub struct RulesArgs {
    /// What reads them: a Prometheus (rule file), its operator, or Sloth, Pyrra and OpenSLO tools, which make rules of their own
    #[arg(long, value_name = "FORMAT", default_value = Format::Prometheus.as_str(), value_parser = format)]
    pub format: Format,
    /// For trials: time runs so many times faster, every window, wait and interval is divided by it
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
  tokometer dashboards                                  which boards there are
  tokometer dashboards --out /var/lib/grafana/dashboards
  tokometer dashboards --board tokometer-slo --import > slo.json
  tokometer dashboards --queries | jq -r .expr

docs/DASHBOARDS.md says what each board answers, and what Grafana needs.")]
pub struct DashboardsArgs {
    /// Write every board into this folder, a file each
    #[arg(long, value_name = "DIR", conflicts_with_all = ["board", "queries"])]
    pub out: Option<PathBuf>,
    /// Print this board alone
    #[arg(long, value_name = "NAME", value_parser = dashboards::NAMES, conflicts_with = "queries")]
    pub board: Option<String>,
    /// In the form for Grafana's import page, which asks for the data source
    #[arg(long, conflicts_with = "queries")]
    pub import: bool,
    /// Print every panel's queries, one JSON object per line
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

Without a terminal it prints plain lines and ends after 20 s.")]
pub struct DemoArgs {
    /// End after this time with a summary, such as 10s, 500ms or 2m
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Streams at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=10_000))]
    pub streams: u32,
    /// Print plain lines in place of a table that moves
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
    /// Where it listens: 127.0.0.1:8001, :8001 or unix:/path
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    pub listen: String,
    /// Name of the model that it serves
    #[arg(long, value_name = "NAME", default_value = "sim")]
    pub model: String,
    /// Tokens per second of each stream
    #[arg(long, value_name = "TOKENS_PER_SECOND", default_value_t = 50.0, value_parser = positive_number)]
    pub rate: f64,
    /// Milliseconds before the first token
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub ttft_ms: u64,
    /// Tokens of an answer, unless the request asks for fewer
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u64).range(1..))]
    pub tokens: u64,
    /// Engine that answers chat: vllm, sglang, lmdeploy, llama_cpp, tgi, ollama, dynamo, tensorrt_llm or triton. Each engine's own
    /// paths are always served
    #[arg(long, value_name = "ENGINE", default_value = "vllm")]
    pub engine: String,
    /// Share of each prompt that is found in the cache, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub cached_share: f64,
    /// Requests that are served at a time; further ones wait
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..))]
    pub max_concurrency: u32,
    /// Tell queue and generation times of each request where the engine can
    #[arg(long)]
    pub request_metrics: bool,
    /// Tokens in each event of a stream
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=100_000))]
    pub tokens_per_chunk: u32,
    /// Where spans of requests are sent, as vLLM does: http://127.0.0.1:4317
    #[arg(long, value_name = "URL", value_parser = plain_url)]
    pub otlp_traces_endpoint: Option<String>,
    /// How they are sent: grpc or http/protobuf
    #[arg(long, value_name = "PROTOCOL", default_value = "grpc")]
    pub otlp_traces_protocol: String,
    /// Faults, with commas between: NAME[:ARGUMENT][=SHARE OF REQUESTS]. NAME is status:CODE, error-event, cut, reset or bad-json
    /// (after so many EVENTS), stall, hang or slow-headers (of so many SECONDS), no-done, empty or garbage
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

Without --for and --requests it ends after 10 s.")]
pub struct LoadArgs {
    /// The server; a path in place of the API's own may follow
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// API to ask [default: the one whose path the URL has, else chat]
    #[arg(long, value_name = "NAME")]
    pub api: Option<String>,
    /// Ask over HTTP/2 with prior knowledge, a hundred requests at a time on a connection
    #[arg(long)]
    pub http2: bool,
    /// Requests at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=100_000))]
    pub concurrency: u32,
    /// End after this many requests
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// End after this time, such as 10s, 500ms or 2m
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Model to ask for [default: sim]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Most tokens of each answer
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
    /// Recordings, or folders that hold some
    #[arg(value_name = "FILE|DIR", required = true)]
    pub paths: Vec<PathBuf>,
    /// Print one JSON object per exchange and line; what is absent is null
    #[arg(long)]
    pub json: bool,
    /// Print when the tokens of each exchange came too, long answers coarsened to at most 48 points
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

New connections are taken for process.lame_duck_secs more, then no longer; streams that are open go on.

Exit codes: 0 it drains (with --wait: no stream is open any more), 1 it does not, 2 wrong usage.")]
pub struct DrainArgs {
    /// Where the admin server is [default: TOKOMETER_ADMIN_LISTEN, else http://127.0.0.1:9464]
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// Return when no stream is open any more
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this, such as 300s or 5m
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = positive_duration)]
    pub timeout: Duration,
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = duration::parse(text)?;
    if duration.is_zero() { Err("no time at all; write a longer one, such as 10s".to_owned()) } else { Ok(duration) }
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
        .ok_or_else(|| format!("`{text}` is no number above 0"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples_and_every_argument_a_meaning() {
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
    fn arguments_are_read() {
        let parse = |text: &str| Cli::try_parse_from(text.split(' ')).map(|cli| cli.command);
        let Ok(Command::Demo(demo)) = parse("tokometer demo --for 500ms --plain") else { panic!("demo") };
        assert_eq!((demo.duration, demo.streams, demo.plain), (Some(Duration::from_millis(500)), 8, true));
        let Ok(Command::Load(load)) = parse("tokometer load --requests 3 --json") else { panic!("load") };
        assert_eq!((load.requests, load.duration, load.json), (Some(3), None, true));
        let Ok(Command::Load(load)) = parse("tokometer load --api messages --http2") else { panic!("load") };
        assert_eq!((load.api.as_deref(), load.http2), (Some("messages"), true));
        let Ok(Command::Replay(replay)) = parse("tokometer replay a b --json") else { panic!("replay") };
        assert_eq!(replay.paths, [PathBuf::from("a"), PathBuf::from("b")]);
        let Ok(Command::Run(run)) = parse("tokometer run --pair a=b --pair c=d --admin :1") else { panic!("run") };
        assert_eq!((run.config.flags().pairs.len(), run.config.flags().admin.as_deref()), (2, Some(":1")));
        for bad in [
            "tokometer demo --for 0s",
            "tokometer demo --streams 0",
            "tokometer sim --rate 0",
            "tokometer sim --rate inf",
            "tokometer load --concurrency 0",
            "tokometer replay",
            "tokometer run --pair a=b --listen c",
            "tokometer config --schema --print-default",
            "tokometer rules --time-scale 0",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
