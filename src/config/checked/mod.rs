//! Converts the raw configuration to the modules' settings, with all checks that involve more than one key.

mod classes;
pub(super) mod files;
mod objectives;
mod otlp;
mod pairs;
mod reading;
mod receiver;
mod spending;
mod vocabulary;
mod wedge;

use std::path::PathBuf;
use std::time::Duration;

use crate::admin;
use crate::app::access_log;
use crate::app::log;
use crate::config::Settings;
use crate::config::address;
use crate::config::environment::Environment;
use crate::config::error::Problem;
use crate::config::nearest::nearest;
use crate::config::raw::LogFormat;
use crate::config::raw::Observe;
use crate::config::raw::Raw;
use crate::config::raw::Relay;
use crate::config::raw::Semconv;
use crate::config::raw::Unreachable;
use crate::config::resource;
use crate::config::value::Node;
use tokometer_decode::Engine;
use tokometer_observe::observer;
use tokometer_proxy::listen::Address;
use tokometer_proxy::relay;
use tokometer_telemetry::export;

/// Collects problems, each with the place where the value was set.
pub(crate) struct Problems<'a> {
    set: &'a Node,
    pub(crate) errors: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

impl<'a> Problems<'a> {
    pub(crate) fn new(set: &'a Node) -> Problems<'a> {
        Problems { set, errors: Vec::new(), warnings: Vec::new() }
    }

    fn error(&mut self, path: &str, message: impl Into<String>) {
        self.errors.push(self.problem(path, message.into()));
    }

    fn warn(&mut self, path: &str, message: impl Into<String>) {
        self.warnings.push(self.problem(path, message.into()));
    }

    fn problem(&self, path: &str, message: String) -> Problem {
        Problem { origin: self.set.origin(path), path: path.to_owned(), message }
    }

    /// True if a layer set this key.
    fn is_set(&self, path: &str) -> bool {
        self.set.find(path).is_some()
    }

    /// The value, or `None` and a problem at this path.
    fn take<T>(&mut self, path: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.error(path, message)).ok()
    }

    /// A certificate and its key: both or neither.
    fn identity(
        &mut self,
        path: &str,
        (certificate_key, certificate): (&str, &Option<String>),
        (key_key, key): (&str, &Option<String>),
    ) -> Option<(PathBuf, PathBuf)> {
        match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            (Some(_), None) => {
                self.error(
                    &format!("{path}.{certificate_key}"),
                    format!("a certificate needs its key; set `{path}.{key_key}` too, or neither"),
                );
                None
            }
            (None, Some(_)) => {
                self.error(
                    &format!("{path}.{key_key}"),
                    format!("a key needs its certificate; set `{path}.{certificate_key}` too, or neither"),
                );
                None
            }
        }
    }
}

/// Checks everything; `None` if a problem prevents the start (it is in `problems.errors`).
pub(crate) fn checked(raw: &Raw, environment: &Environment, problems: &mut Problems<'_>) -> Option<Settings> {
    let pairs = pairs::checked(&raw.pairs, problems);
    let admin_address = problems.take("admin.listen", address::admin(&raw.admin.listen));
    if let Some(address) = admin_address {
        pairs::keep_clear_of_admin(&pairs, &address.into(), problems);
    }
    for (index, host) in raw.admin.allowed_hosts.iter().enumerate() {
        let is_name =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        if host != "*" && !is_name(host) {
            let message = format!(
                "invalid host name `{host}`; write a name without scheme and port, such as tokometer.example.com, `.example.com` for every name below it, or `*`"
            );
            problems.error(&format!("admin.allowed_hosts[{index}]"), message);
        }
    }
    let observe = observer::Settings { targets: objectives::headers(raw, problems), ..observe(&raw.observe, problems) };
    let slo = objectives::checked(raw, problems);
    let ledger = spending::checked(raw, problems);
    let tokenizer = vocabulary::checked(&raw.observe.tokenizer, problems);
    let scrape = reading::checked(raw, &pairs, observe.engine, problems);
    let live = wedge::checked(raw, problems);
    let export = export(raw, &pairs, environment, problems);
    let queue = receiver::checked(&raw.queue, &pairs, admin_address, &export.traces, problems);
    let levels = problems.take("log.level", raw.log.level.parse::<log::Levels>());
    if raw.access_log.path.as_deref() == Some("") {
        problems.error("access_log.path", "the path is empty; write a path, or null for stdout");
    }
    if !problems.errors.is_empty() {
        return None;
    }
    let json = |format| format == LogFormat::Json;
    Some(Settings {
        pairs,
        relay: relay(&raw.relay),
        observe,
        tokenizer,
        scrape,
        live,
        export,
        queue,
        admin: admin::Settings {
            listen: admin_address?,
            header_timeout: Duration::from_millis(raw.admin.header_timeout_ms),
            max_connections: size(raw.admin.max_connections),
            allowed_hosts: raw.admin.allowed_hosts.clone(),
            remote_drain: raw.admin.remote_drain,
        },
        log: log::Settings { levels: levels?, json: json(raw.log.format), max_repeats: raw.log.max_repeats },
        access_log: raw.access_log.enabled.then(|| access_log::Settings {
            path: raw.access_log.path.as_ref().map(PathBuf::from),
            json: json(raw.access_log.format),
            queue_lines: size(raw.access_log.queue_lines),
        }),
        slo,
        ledger,
        threads: Some(size(raw.process.threads)).filter(|threads| *threads > 0),
        grace_period: Duration::from_secs(raw.process.grace_period_secs),
        lame_duck: Duration::from_secs(raw.process.lame_duck_secs),
    })
}

fn relay(raw: &Relay) -> relay::Settings {
    relay::Settings {
        unreachable: match raw.unreachable {
            Unreachable::Http503 => relay::Unreachable::Http503,
            Unreachable::Reset => relay::Unreachable::Reset,
        },
        connect_timeout: unless_zero(Duration::from_millis(raw.connect_timeout_ms)),
        remainder_bytes: size(raw.remainder_bytes),
        scratch_bytes: size(raw.scratch_bytes),
        keepalive: unless_zero(Duration::from_secs(raw.keepalive_secs)),
        idle_timeout: unless_zero(Duration::from_secs(raw.idle_timeout_secs)),
        half_close_timeout: unless_zero(Duration::from_secs(raw.half_close_timeout_secs)),
        max_connections: Some(size(raw.max_connections)).filter(|max| *max > 0),
        port_sharing: raw.port_sharing,
    }
}

fn observe(raw: &Observe, problems: &mut Problems<'_>) -> observer::Settings {
    for (index, prefix) in raw.path_prefixes.iter().enumerate() {
        if !prefix.starts_with('/') || prefix.len() < 2 {
            problems.error(
                &format!("observe.path_prefixes[{index}]"),
                format!("invalid path prefix `{prefix}`; it must start with `/`, such as /engine1"),
            );
        }
    }
    if !raw.coding_window_bytes.is_power_of_two() {
        let above = raw.coding_window_bytes.next_power_of_two();
        problems.error(
            "observe.coding_window_bytes",
            format!("{} is not a power of two; write {} or {above}", raw.coding_window_bytes, above / 2),
        );
    }
    let own_paths = raw.routes.iter().filter_map(|(path, route)| own_path(path, route, problems)).collect();
    observer::Settings {
        enabled: raw.enabled,
        engine: raw.engine.0.map(Engine::as_str),
        head_bytes: size(raw.head_bytes),
        max_open_requests: size(raw.max_open_requests),
        memory_bytes: (raw.memory_bytes > 0).then(|| size(raw.memory_bytes)),
        max_observed: size(raw.max_observed),
        stall: Duration::from_millis(raw.stall_ms),
        min_rate_tokens: raw.min_rate_tokens,
        min_rate_span: Duration::from_millis(raw.min_rate_span_ms),
        coding_window_bytes: size(raw.coding_window_bytes),
        coding_ratio: raw.coding_ratio,
        path_prefixes: raw.path_prefixes.iter().map(|prefix| prefix.trim_end_matches('/').to_owned()).collect(),
        own_paths,
        probes: raw.probes,
        text: vocabulary::text(&raw.tokenizer),
        ..observer::Settings::default()
    }
}

fn own_path(path: &str, route: &str, problems: &mut Problems<'_>) -> Option<observer::OwnPath> {
    let message = match observer::OwnPath::new(path, route) {
        Ok(own) => return Some(own),
        Err(observer::OwnPathError::Path) => {
            format!("invalid path `{path}`; it must start with `/`, such as /llm, or /llm/* for everything below it")
        }
        Err(observer::OwnPathError::Route) => {
            let hint = match nearest(route, observer::OwnPath::routes()) {
                Some(near) => format!("; did you mean `{near}`?"),
                None => format!("; write one of {}", observer::OwnPath::routes().collect::<Vec<_>>().join(", ")),
            };
            format!("unknown route `{route}`{hint}")
        }
    };
    problems.error(&format!("observe.routes.{path}"), message);
    None
}

fn export(
    raw: &Raw,
    pairs: &[tokometer_proxy::listen::Pair],
    environment: &Environment,
    problems: &mut Problems<'_>,
) -> export::Settings {
    export::Settings {
        semconv: match raw.telemetry.semconv {
            Semconv::V141 => export::Semconv::V1_41,
            Semconv::Latest => export::Semconv::Latest,
            Semconv::Both => export::Semconv::Both,
        },
        resource: resource::attributes(environment, &raw.telemetry.resource, &raw.admin.listen),
        servers: pairs.iter().map(|pair| server(&pair.upstream)).collect(),
        max_models: size(raw.telemetry.max_models),
        max_label_sets: size(raw.telemetry.max_label_sets),
        prompt_classes: classes::checked(&raw.telemetry.prompt_classes, problems),
        native_histograms: raw.prometheus.native_histograms,
        exemplars: raw.prometheus.exemplars,
        metrics: otlp::metrics(&raw.otlp, problems),
        traces: otlp::traces(&raw.otlp, problems),
        ..export::Settings::default()
    }
}

/// `server.address` and `server.port` of an upstream (semantic conventions, "server": for a Unix socket, the path is
/// the address, without a port).
fn server(upstream: &Address) -> (String, Option<u16>) {
    match upstream {
        Address::Tcp { host, port } => (host.clone(), Some(*port)),
        Address::Unix(path) => (path.display().to_string(), None),
        Address::OriginalDestination => ("original".to_owned(), None),
    }
}

fn unless_zero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

/// Values are range-checked before, so the conversion also fits a 32-bit `usize`.
fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
