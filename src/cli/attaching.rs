//! `tokometer inject`: manifests in on stdin, manifests out on stdout, what was decided on stderr.

use std::fs;
use std::io;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::value_parser;

use crate::cli::FAILURE;
use crate::cli::WRONG_USAGE;
use crate::cli::arguments::positive_duration;
use crate::cli::complain;
use crate::cli::print;
use tokometer_operator::inject;
use tokometer_operator::inject::Engine;
use tokometer_operator::inject::Mode;
use tokometer_operator::inject::Options;
use tokometer_operator::inject::Outcome;
use tokometer_operator::inject::Report;

/// The image of the release that this binary is of; nothing in a build of one's own.
const IMAGE: Option<&str> = option_env!("TOKOMETER_IMAGE");

/// Arguments of `inject`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer inject -f deployment.yaml --image IMAGE | kubectl apply -f -
  kubectl get deployment vllm -o yaml | tokometer inject --image IMAGE --explain | kubectl apply -f -
  tokometer inject -f deployment.yaml --image IMAGE --mode uds --env OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318
  tokometer inject -f deployment.yaml --remove

Modes: auto (address-split, and a way out where that cannot be), address-split, uds, shadow-bind, port-swap, redirect,
explicit; docs/ATTACHING.md says what each is for. Doing it twice is as doing it once. Comments of YAML are lost.

Exit codes: 0 good, 1 nothing was injected (the manifest is written all the same), 2 wrong usage or no manifest.")]
pub struct InjectArgs {
    /// The manifest, YAML or JSON, one document or many [default: stdin]
    #[arg(short = 'f', long = "filename", value_name = "FILE", default_value = "-", hide_default_value = true)]
    pub file: PathBuf,
    /// How clients come to the sidecar
    #[arg(long, value_name = "MODE", default_value = Mode::Auto.as_str(), value_parser = mode)]
    pub mode: Mode,
    /// The server's engine, if it is not recognised: vllm, sglang, llama_cpp, tgi or ollama
    #[arg(long, value_name = "ENGINE", value_parser = engine)]
    pub engine: Option<Engine>,
    /// The server's container, if it is not recognised
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// The port on which the server listens, if it is not recognised
    #[arg(long, value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The sidecar's image
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// An image with nft in it, for the mode redirect
    #[arg(long, value_name = "IMAGE")]
    pub redirect_image: Option<String>,
    /// Port of /metrics, health and drain
    #[arg(long, value_name = "PORT", default_value_t = inject::ADMIN_PORT, value_parser = value_parser!(u16).range(1..))]
    pub admin_port: u16,
    /// Most time that open streams get when the pod ends, such as 300s or 5m
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = positive_duration)]
    pub drain: Duration,
    /// A variable of the sidecar, such as OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318; may be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub variables: Vec<(String, String)>,
    /// Tell every decision and its reason, on stderr
    #[arg(long)]
    pub explain: bool,
    /// Take out what was put in
    #[arg(long)]
    pub remove: bool,
}

fn mode(text: &str) -> Result<Mode, String> {
    let known = || Mode::ALL.map(Mode::as_str).join(", ");
    Mode::ALL.into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| format!("write one of {}", known()))
}

fn engine(text: &str) -> Result<Engine, String> {
    let known = || Engine::ALL.map(Engine::as_str).join(", ");
    Engine::ALL.into_iter().find(|engine| engine.as_str() == text).ok_or_else(|| format!("write one of {}", known()))
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

/// Does it.
pub(super) fn inject(arguments: &InjectArgs) -> ExitCode {
    let text = match read(arguments) {
        Ok(text) => text,
        Err(message) => return wrong(&message),
    };
    let done = match (arguments.remove, arguments.image.as_deref().or(IMAGE)) {
        (true, _) => inject::remove(&text),
        (false, Some(image)) => inject::inject(&text, &options(arguments, image)),
        (false, None) => return wrong("say which image the sidecar has: --image REGISTRY/tokometer:VERSION"),
    };
    match done {
        Ok((manifest, reports)) => {
            tell(&reports, arguments.explain);
            let printed = print(&manifest);
            let is_done = |report: &Report| matches!(report.outcome, Outcome::Injected | Outcome::Removed);
            if reports.iter().any(is_done) {
                return printed;
            }
            let what = if arguments.remove { "taken out" } else { "injected" };
            complain(&format!("tokometer: nothing was {what}"));
            ExitCode::from(FAILURE)
        }
        Err(error) => wrong(&error.to_string()),
    }
}

fn options(arguments: &InjectArgs, image: &str) -> Options {
    Options {
        mode: arguments.mode,
        engine: arguments.engine,
        container: arguments.container.clone(),
        port: arguments.port,
        redirect_image: arguments.redirect_image.clone(),
        admin_port: arguments.admin_port,
        drain: arguments.drain,
        variables: arguments.variables.clone(),
        ..Options::new(image)
    }
}

fn read(arguments: &InjectArgs) -> Result<String, String> {
    let mut text = String::new();
    if arguments.file.as_os_str() == "-" {
        io::stdin().read_to_string(&mut text).map_err(|error| format!("cannot read stdin: {error}"))?;
        return Ok(text);
    }
    let path = arguments.file.display();
    fs::read_to_string(&arguments.file).map_err(|error| format!("cannot read {path}: {error}; check the path with -f"))
}

/// What was left out is always told: the manifest goes on without it.
fn tell(reports: &[Report], explain: bool) {
    for report in reports {
        if explain || report.outcome == Outcome::Skipped {
            complain(&format!("{}: {}", report.object, report.outcome.as_str()));
            report.notes.iter().for_each(|note| complain(&format!("  - {note}")));
        }
    }
}

fn wrong(message: &str) -> ExitCode {
    complain(&format!("tokometer: {message}"));
    ExitCode::from(WRONG_USAGE)
}
