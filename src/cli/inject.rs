//! `tokometer inject`: reads manifests from stdin, writes manifests to stdout and decisions to stderr.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};

use crate::cli::shared::{complain, fail, one_of, print, wrong_usage};
use tokometer_decode::Engine;
use tokometer_operator::inject::{self, Mode, Options, Outcome, Report};
use tokometer_settings::duration;

/// The image of this binary's release; `None` in local builds.
const IMAGE: Option<&str> = option_env!("TOKOMETER_IMAGE");

/// Arguments of `inject`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer inject -f deployment.yaml --image IMAGE | kubectl apply -f -
  kubectl get deployment vllm -o yaml | \\
    tokometer inject --image IMAGE --explain | kubectl apply -f -
  tokometer inject -f deployment.yaml --image IMAGE --mode uds \\
    --env OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318
  tokometer inject -f deployment.yaml --remove

The mode auto uses address-split. If address-split is not possible, the pod stays unchanged, and the reason is \
reported. docs/how-to/attach.md describes the modes. Injecting an injected pod again changes nothing. YAML comments in \
the manifest are lost.

Exit codes: 0 success, 1 nothing was injected (the manifest is still written), 2 wrong usage or no manifest.")]
pub struct InjectArgs {
    /// The manifest, YAML or JSON, with one or more documents [default: stdin]
    #[arg(short = 'f', long = "filename", value_name = "FILE", default_value = "-", hide_default_value = true)]
    pub file: PathBuf,
    /// How client traffic is routed to the sidecar
    #[arg(long, value_name = "MODE", default_value = Mode::Auto.as_str(),
        value_parser = one_of(Mode::ALL.map(|mode| (mode.as_str(), mode))))]
    pub mode: Mode,
    /// Engine of the server, if not detected
    #[arg(long, value_name = "ENGINE", value_parser = one_of(engines()))]
    pub engine: Option<Engine>,
    /// Container of the server, if not detected
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// Port of the server, if not detected; can be repeated, for example for data-parallel ranks
    #[arg(long = "port", value_name = "PORT", value_parser = value_parser!(u16).range(1..))]
    pub ports: Vec<u16>,
    /// Image of the sidecar
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Image that contains nft, for the mode redirect
    #[arg(long, value_name = "IMAGE")]
    pub redirect_image: Option<String>,
    /// Port of the admin server (metrics, health, drain)
    #[arg(long, value_name = "PORT", default_value_t = inject::ADMIN_PORT, value_parser = value_parser!(u16).range(1..))]
    pub admin_port: u16,
    /// How long open streams may continue when the pod terminates, such as 300s or 5m
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = duration::positive)]
    pub drain: Duration,
    /// Secret with the engine's certificate (tls.crt, tls.key), mounted in the pod; used by the sidecar to terminate
    /// TLS. A leading * matches any prefix
    #[arg(long, value_name = "NAME")]
    pub tls_secret: Option<String>,
    /// Environment variable of the sidecar, such as OTEL_SERVICE_NAME=vllm; can be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub variables: Vec<(String, String)>,
    /// Print every decision and its reason on stderr
    #[arg(long)]
    pub explain: bool,
    /// Remove the sidecar
    #[arg(long)]
    pub remove: bool,
}

/// The engines whose flags for address and port are known.
fn engines() -> impl Iterator<Item = (&'static str, Engine)> {
    let known = Engine::ALL.into_iter().filter(|engine| engine.info().listen.is_some());
    known.map(|engine| (engine.as_str(), engine))
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

/// Runs the command.
pub(super) fn inject(arguments: &InjectArgs) -> ExitCode {
    let text = match read(&arguments.file) {
        Ok(text) => text,
        Err(message) => return wrong_usage(&message),
    };
    let done = match (arguments.remove, arguments.image.as_deref().or(IMAGE)) {
        (true, _) => inject::remove(&text),
        (false, Some(image)) => inject::inject(&text, &options(arguments, image)),
        (false, None) => return wrong_usage(&"set the sidecar's image: --image REGISTRY/tokometer:VERSION"),
    };
    match done {
        Ok((manifest, reports)) => {
            report(&reports, arguments.explain);
            let printed = print(&manifest);
            let is_done = |report: &Report| matches!(report.outcome, Outcome::Injected | Outcome::Removed);
            if reports.iter().any(is_done) {
                return printed;
            }
            let what = if arguments.remove { "removed" } else { "injected" };
            fail(&format!("nothing was {what}"))
        }
        Err(error) => wrong_usage(&error),
    }
}

fn options(arguments: &InjectArgs, image: &str) -> Options {
    Options {
        mode: arguments.mode,
        engine: arguments.engine,
        container: arguments.container.clone(),
        ports: arguments.ports.clone(),
        redirect_image: arguments.redirect_image.clone(),
        admin_port: arguments.admin_port,
        drain: arguments.drain,
        tls_secret: arguments.tls_secret.clone(),
        variables: arguments.variables.clone(),
        ..Options::new(image)
    }
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    if file.as_os_str() == "-" {
        io::stdin().read_to_string(&mut text).map_err(|error| format!("cannot read stdin: {error}"))?;
        return Ok(text);
    }
    let path = file.display();
    fs::read_to_string(file).map_err(|error| format!("cannot read {path}: {error}; check the path with -f"))
}

/// Always reports warnings and skipped objects, because skipped objects are written unchanged.
fn report(reports: &[Report], explain: bool) {
    for report in reports {
        let shown = explain || report.outcome == Outcome::Skipped;
        if shown || !report.warnings.is_empty() {
            complain(&format!("{}: {}", report.object, report.outcome.as_str()));
        }
        report.notes.iter().filter(|_| shown).for_each(|note| complain(&format!("  - {note}")));
        report.warnings.iter().for_each(|warning| complain(&format!("  - warning: {warning}")));
    }
}

/// `tokometer check --pod FILE`: reports what `inject` would do. Fails if any pod would be left unchanged.
pub(super) fn check(file: &Path) -> ExitCode {
    let done =
        read(file).and_then(|text| inject::inject(&text, &Options::new("check")).map_err(|error| error.to_string()));
    match done {
        Ok((_, reports)) => {
            report(&reports, true);
            let is_skipped = reports.iter().any(|report| report.outcome == Outcome::Skipped);
            if is_skipped { fail(&"a pod would be left unchanged") } else { ExitCode::SUCCESS }
        }
        Err(message) => wrong_usage(&message),
    }
}
