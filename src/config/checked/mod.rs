//! Converts the raw settings to the settings of each module, and checks combinations of keys.

mod files;
mod listeners;
mod otlp;
mod problems;
mod slo;
mod tap;

pub(super) use files::open as open_files;
pub(super) use listeners::free_port;
pub(super) use problems::Problems;

use std::path::{Path, PathBuf};
use std::time;

use crate::admin;
use crate::config::checked::problems::{size, unknown_route};
use crate::config::raw::{AccessLog, Admin, Log, LogFormat, Observe, Process, Raw};
use crate::config::sources::Environment;
use crate::config::{address, otel};
use crate::logging::{self, AccessLogSettings};
use tokometer_engine::{engine_spans, scrape};
use tokometer_observe::observer;
use tokometer_proxy::listen::{Address, Listener};
use tokometer_proxy::relay;
use tokometer_settings::Duration;
use tokometer_tap::capture;
use tokometer_telemetry::{accounting, export, live, tokenizer};

/// All settings, validated, by module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The listeners (listen address and upstream), at least one.
    pub listeners: Vec<Listener>,
    /// Set if packets are captured instead of forwarded: `listeners` are then the servers whose packets are captured.
    pub tap: Option<capture::Settings>,
    /// How connections are forwarded.
    pub relay: relay::Settings,
    /// How requests are parsed and measured.
    pub observe: observer::Settings,
    /// Token counting from response text.
    pub tokenizer: tokenizer::Settings,
    /// Scraping of the engines' own metrics.
    pub scrape: scrape::Settings,
    /// Requests in flight, and wedge detection.
    pub live: live::Settings,
    /// Both exporters.
    pub export: export::Settings,
    /// The receiver of the engine's spans; `None` when it is off.
    pub engine_spans: Option<engine_spans::Settings>,
    /// The admin server.
    pub admin: admin::Settings,
    /// Logs of tokometer itself.
    pub log: logging::Settings,
    /// The access log; `None` when it is off.
    pub access_log: Option<AccessLogSettings>,
    /// The objectives.
    pub slo: tokometer_telemetry::slo::Settings,
    /// Tenants, prices and budgets.
    pub accounting: accounting::Settings,
    /// Number of threads that forward traffic; `None`: one per CPU available to the process.
    pub threads: Option<usize>,
    /// Maximum time that open streams may continue after SIGTERM.
    pub grace_period: time::Duration,
    /// Time for which new connections are accepted after a drain request.
    pub lame_duck: time::Duration,
    /// File to which the program is copied at startup.
    pub probe_file: Option<PathBuf>,
    /// True in a Kubernetes pod, where only the pod's own containers can hold a listen address.
    pub in_pod: bool,
}

impl Settings {
    /// The defaults for a single listener, without files, environment or flags. Scraping is off.
    pub fn with_listener(listener: Listener) -> Settings {
        Settings { listeners: vec![listener], ..Settings::default() }
    }
}

/// Converts all settings and adds problems; `None` if the settings cannot be built.
pub(crate) fn checked(raw: &Raw, environment: &Environment, problems: &mut Problems<'_>) -> Option<Settings> {
    // Here and below, blocks are destructured by name: the compiler then reports a setting that is not converted.
    let Process { threads, grace_period, lame_duck, probe_file } = raw.process.clone();
    let Admin { listen, allowed_hosts, remote_drain } = &raw.admin;
    let Log { level, format: log_format } = &raw.log;
    let AccessLog { enabled: access_log_enabled, path: access_log_path, format: access_log_format } = &raw.access_log;
    let tap = tap::capture(&raw.tap, problems);
    let listeners = match &tap {
        Some(tap) => tap::listeners(tap),
        None => listeners::listeners(raw, problems),
    };
    let admin_address = problems.take("admin.listen", address::admin(listen));
    if let Some(address) = admin_address {
        listeners::keep_clear_of_admin(raw, &listeners, &address.into(), problems);
    }
    for (index, host) in allowed_hosts.iter().enumerate() {
        let is_name =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        if host != "*" && !is_name(host) {
            let message = format!(
                "invalid host name `{host}`; write a name without scheme and port, such as tokometer.example.com, `.example.com` for every name below it, or `*`"
            );
            problems.error(&format!("admin.allowed_hosts[{index}]"), message);
        }
    }
    let observe = observe(&raw.observe, slo::headers(raw), problems);
    let slo = slo::objectives(raw, problems);
    let accounting = slo::accounting(raw, problems);
    check_vocabularies(&raw.observe.tokenizer, problems);
    let scrape = listeners::scrape(raw, &listeners, observe.engine.0, problems);
    let live = live(raw, &listeners, problems);
    let export = export(raw, &listeners, environment, problems);
    let engine_spans = listeners::engine_spans(raw, &listeners, admin_address, &export.traces, problems);
    let levels = problems.take("log.level", level.parse::<logging::Levels>());
    problems.not_empty("access_log.path", access_log_path.as_deref(), "write a path, or null for stdout");
    problems.not_empty("process.probe_file", probe_file.as_deref(), "write a path, or null for no copy");
    let json = |format: &LogFormat| *format == LogFormat::Json;
    Some(Settings {
        listeners,
        tap,
        relay: raw.relay.clone(),
        observe,
        tokenizer: raw.observe.tokenizer.clone(),
        scrape,
        live,
        export,
        engine_spans,
        admin: admin::Settings {
            listen: admin_address?,
            allowed_hosts: allowed_hosts.clone(),
            remote_drain: *remote_drain,
            ..admin::Settings::default()
        },
        log: logging::Settings { levels: levels?, json: json(log_format), ..logging::Settings::default() },
        access_log: access_log_enabled.then(|| AccessLogSettings {
            path: access_log_path.as_ref().map(PathBuf::from),
            json: json(access_log_format),
            queue_lines: AccessLogSettings::QUEUE_LINES,
        }),
        slo,
        accounting,
        threads: Some(size(threads)).filter(|threads| *threads > 0),
        grace_period: grace_period.0,
        lame_duck: lame_duck.0,
        probe_file: probe_file.map(PathBuf::from),
        // The kubelet sets this variable in every container.
        in_pod: environment.get("KUBERNETES_SERVICE_HOST").is_some(),
    })
}

fn observe(raw: &Observe, targets: observer::TargetHeaders, problems: &mut Problems<'_>) -> observer::Settings {
    let Observe { observer, tokenizer } = raw;
    for (index, prefix) in observer.path_prefixes.iter().enumerate() {
        if !prefix.starts_with('/') || prefix.len() < 2 {
            problems.error(
                &format!("observe.path_prefixes[{index}]"),
                format!("invalid path prefix `{prefix}`; it must start with `/`, such as /engine1"),
            );
        }
    }
    for (path, route) in &observer.routes.written {
        let message = match observer::OwnPath::new(path, route) {
            Ok(_) => continue,
            Err(observer::OwnPathError::Path) => format!(
                "invalid path `{path}`; it must start with `/`, such as /llm, or /llm/* for everything below it"
            ),
            Err(observer::OwnPathError::Route) => unknown_route(route),
        };
        problems.error(&format!("observe.routes.{path}"), message);
    }
    // Text is stored only for the tokenizer, which needs a vocabulary.
    let text = tokenizer.is_on().then_some(observer::Text { response_bytes: 256 << 10, memory_bytes: 64 << 20 });
    observer::Settings { targets, text, ..observer.clone() }
}

fn export(
    raw: &Raw,
    listeners: &[Listener],
    environment: &Environment,
    problems: &mut Problems<'_>,
) -> export::Settings {
    let of = &raw.telemetry;
    export::Settings {
        resource: otel::resource(environment, &of.resource, &raw.admin.listen, !raw.tap.ports.is_empty()),
        listeners: listeners.iter().map(named).collect(),
        prometheus: raw.prometheus,
        metrics: otlp::metrics(&raw.otlp, problems),
        traces: otlp::traces(&raw.otlp, problems),
        ..of.clone()
    }
}

/// `server.address` and `server.port` of an upstream (semantic conventions, "server": for a Unix socket, the path is
/// the address, without a port).
fn named(listener: &Listener) -> tokometer_metrics::Listener {
    let (address, port) = match &listener.upstream {
        Address::Tcp { host, port } => (host.clone(), Some(*port)),
        Address::Unix(path) => (path.display().to_string(), None),
        Address::OriginalDestination => ("original".to_owned(), None),
    };
    tokometer_metrics::Listener { name: listener.name.clone(), address, port }
}

/// Checks combinations of keys: a wedge bound must exceed the stall bound.
fn live(raw: &Raw, listeners: &[Listener], problems: &mut Problems<'_>) -> live::Settings {
    let stall = Duration(raw.observe.observer.stall);
    for (key, bound) in
        [("decode", raw.wedge.decode), ("prefill", raw.wedge.prefill)].map(|(key, b)| (key, Duration(b)))
    {
        if bound <= stall {
            let message = format!(
                "{bound} is not above observe.stall ({stall}), so every stall would count as a wedge; write a higher value, such as 60s"
            );
            problems.error(&format!("wedge.{key}"), message);
        }
    }
    if !raw.observe.observer.enabled && problems.is_set("wedge") {
        problems.warn("wedge", "has no effect: observe.enabled is false, so /engine/healthz always returns 200");
    }
    let servers = listeners::servers(listeners);
    live::Settings { stall: stall.0, bounds: raw.wedge, servers, ..live::Settings::default() }
}

fn check_vocabularies(raw: &tokenizer::Settings, problems: &mut Problems<'_>) {
    let fix = "write the path of a tokenizer.json";
    let path = raw.path.as_deref().and_then(Path::to_str);
    problems.not_empty("observe.tokenizer.path", path, &format!("{fix}, or null for none"));
    for (model, path) in &raw.models {
        let key = format!("observe.tokenizer.models.{model}");
        problems.not_empty(&key, path.to_str(), &format!("{fix}, or remove the model"));
    }
}
