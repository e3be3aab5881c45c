//! `tokometer tap`: measures a running server without forwarding its traffic.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::Args;

use crate::cli::top;
use crate::config::{Environment, Flags, TapFlags};
use crate::top::Display;

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
        self.top.then(|| top::display(environment))
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
