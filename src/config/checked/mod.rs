//! Converts the settings as written to the modules' settings, with all checks that involve more than one key.

mod files;
mod listeners;
mod otlp;
mod slo;

pub(super) use files::open as open_files;

use std::path::PathBuf;
use std::time::Duration;

use crate::admin;
use crate::config::raw::{
    AccessLog, Admin, Log, LogFormat, Observe, Process, Prometheus, PromptClasses, Raw, Relay, Semconv, Telemetry,
    Tokenizer, Unreachable, Wedge,
};
use crate::config::tree::Node;
use crate::config::{Environment, Problem, address, conform, otel};
use crate::logging::{self, AccessLogSettings};
use tokometer_engine::{engine_spans, scrape};
use tokometer_observe::observer;
use tokometer_proxy::listen::{Address, Listener};
use tokometer_proxy::relay;
use tokometer_telemetry::{accounting, export, live, tokenizer};

/// All settings, validated, by module.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The listeners (listen address and upstream), at least one.
    pub listeners: Vec<Listener>,
    /// How connections are forwarded.
    pub relay: relay::Settings,
    /// How requests are parsed and measured.
    pub observe: observer::Settings,
    /// Token counting by text.
    pub tokenizer: tokenizer::Settings,
    /// Scraping of the engines' own metrics.
    pub scrape: scrape::Settings,
    /// Requests in flight, and wedge detection.
    pub live: live::Settings,
    /// Both exporters.
    pub export: export::Settings,
    /// The receiver of the engine's spans; `None` when it is off.
    pub queue: Option<engine_spans::Settings>,
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
    /// Number of threads that forward traffic; `None` for one per CPU available to the process.
    pub threads: Option<usize>,
    /// How long open streams may continue after SIGTERM.
    pub grace_period: Duration,
    /// How long new connections are accepted after a drain request.
    pub lame_duck: Duration,
}

impl Settings {
    /// The defaults for this one listener, without files, environment or flags. Scraping is off.
    pub fn with_listener(listener: Listener) -> Settings {
        Settings {
            listeners: vec![listener],
            relay: relay::Settings::default(),
            observe: observer::Settings::default(),
            tokenizer: tokenizer::Settings::default(),
            scrape: scrape::Settings::default(),
            live: live::Settings::default(),
            export: export::Settings::default(),
            queue: None,
            admin: admin::Settings::default(),
            log: logging::Settings::default(),
            access_log: None,
            slo: tokometer_telemetry::slo::Settings::default(),
            accounting: accounting::Settings::default(),
            threads: None,
            grace_period: Duration::ZERO,
            lame_duck: Duration::ZERO,
        }
    }
}

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
        let (set, missing, what) = match (certificate, key) {
            (Some(certificate), Some(key)) => return Some((certificate.into(), key.into())),
            (None, None) => return None,
            (Some(_), None) => (certificate_key, key_key, "a certificate needs its key"),
            (None, Some(_)) => (key_key, certificate_key, "a key needs its certificate"),
        };
        self.error(&format!("{path}.{set}"), format!("{what}; set `{path}.{missing}` too, or neither"));
        None
    }
}

/// Converts everything, and adds problems; `None` if the settings cannot be built at all.
pub(crate) fn checked(raw: &Raw, environment: &Environment, problems: &mut Problems<'_>) -> Option<Settings> {
    // Blocks are taken apart by name here and below, so that a setting without conversion is an unused variable.
    let Process { threads, grace_period, lame_duck } = raw.process.clone();
    let Admin { listen, allowed_hosts, remote_drain } = &raw.admin;
    let Log { level, format: log_format } = &raw.log;
    let AccessLog { enabled: access_log_enabled, path: access_log_path, format: access_log_format } = &raw.access_log;
    let listeners = listeners::listeners(&raw.listeners, problems);
    let admin_address = problems.take("admin.listen", address::admin(listen));
    if let Some(address) = admin_address {
        listeners::keep_clear_of_admin(&listeners, &address.into(), problems);
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
    let tokenizer = tokenizer(&raw.observe.tokenizer, problems);
    let scrape = listeners::scrape(raw, &listeners, observe.engine, problems);
    let live = live(raw, problems);
    let export = export(raw, &listeners, environment, problems);
    let queue = listeners::engine_spans(&raw.engine_spans, &listeners, admin_address, &export.traces, problems);
    let levels = problems.take("log.level", level.parse::<logging::Levels>());
    if access_log_path.as_deref() == Some("") {
        problems.error("access_log.path", "the path is empty; write a path, or null for stdout");
    }
    let json = |format: &LogFormat| *format == LogFormat::Json;
    let fixed = admin::Settings::default();
    Some(Settings {
        listeners,
        relay: relay(&raw.relay),
        observe,
        tokenizer,
        scrape,
        live,
        export,
        queue,
        admin: admin::Settings {
            listen: admin_address?,
            header_timeout: fixed.header_timeout,
            max_connections: fixed.max_connections,
            allowed_hosts: allowed_hosts.clone(),
            remote_drain: *remote_drain,
        },
        log: logging::Settings {
            levels: levels?,
            json: json(log_format),
            max_repeats: logging::Settings::default().max_repeats,
        },
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
    })
}

fn relay(raw: &Relay) -> relay::Settings {
    let Relay {
        unreachable,
        connect_timeout,
        keepalive,
        idle_timeout,
        half_close_timeout,
        max_connections,
        port_sharing,
    } = raw.clone();
    let fixed = relay::Settings::default();
    relay::Settings {
        unreachable: match unreachable {
            Unreachable::Http503 => relay::Unreachable::Http503,
            Unreachable::Reset => relay::Unreachable::Reset,
        },
        connect_timeout: connect_timeout.unless_zero(),
        remainder_bytes: fixed.remainder_bytes,
        scratch_bytes: fixed.scratch_bytes,
        keepalive: keepalive.unless_zero(),
        idle_timeout: idle_timeout.unless_zero(),
        half_close_timeout: half_close_timeout.unless_zero(),
        max_connections: Some(size(max_connections)).filter(|max| *max > 0),
        port_sharing,
    }
}

fn observe(raw: &Observe, targets: observer::TargetHeaders, problems: &mut Problems<'_>) -> observer::Settings {
    let Observe { enabled, engine, memory, stall, min_rate_tokens, path_prefixes, routes, probes, tokenizer } = raw;
    for (index, prefix) in path_prefixes.iter().enumerate() {
        if !prefix.starts_with('/') || prefix.len() < 2 {
            problems.error(
                &format!("observe.path_prefixes[{index}]"),
                format!("invalid path prefix `{prefix}`; it must start with `/`, such as /engine1"),
            );
        }
    }
    let own_paths = routes.iter().filter_map(|(path, route)| own_path(path, route, problems)).collect();
    let fixed = observer::Settings::default();
    observer::Settings {
        enabled: *enabled,
        engine: engine.0.map(tokometer_decode::Engine::as_str),
        head_bytes: fixed.head_bytes,
        max_open_requests: fixed.max_open_requests,
        memory_bytes: (memory.0 > 0).then(|| size(memory.0)),
        max_observed: fixed.max_observed,
        stall: stall.0,
        min_rate_tokens: *min_rate_tokens,
        min_rate_span: fixed.min_rate_span,
        coding_window_bytes: fixed.coding_window_bytes,
        coding_ratio: fixed.coding_ratio,
        path_prefixes: path_prefixes.iter().map(|prefix| prefix.trim_end_matches('/').to_owned()).collect(),
        own_paths,
        probes: *probes,
        targets,
        text: text(tokenizer),
    }
}

fn own_path(path: &str, route: &str, problems: &mut Problems<'_>) -> Option<observer::OwnPath> {
    let message = match observer::OwnPath::new(path, route) {
        Ok(own) => return Some(own),
        Err(observer::OwnPathError::Path) => {
            format!("invalid path `{path}`; it must start with `/`, such as /llm, or /llm/* for everything below it")
        }
        Err(observer::OwnPathError::Route) => {
            let hint = match conform::nearest(route, observer::OwnPath::routes()) {
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
    listeners: &[Listener],
    environment: &Environment,
    problems: &mut Problems<'_>,
) -> export::Settings {
    let Telemetry { semconv, resource, max_models, max_label_sets, prompt_classes: classes } = &raw.telemetry;
    let Prometheus { native_histograms, exemplars } = raw.prometheus.clone();
    export::Settings {
        semconv: match semconv {
            Semconv::V141 => export::Semconv::V1_41,
            Semconv::Latest => export::Semconv::Latest,
            Semconv::Both => export::Semconv::Both,
        },
        resource: otel::resource(environment, resource, &raw.admin.listen),
        servers: listeners.iter().map(|listener| server(&listener.upstream)).collect(),
        max_models: size(*max_models),
        max_label_sets: size(*max_label_sets),
        label_idle: export::Settings::default().label_idle,
        prompt_classes: prompt_classes(classes, problems),
        native_histograms,
        exemplars,
        metrics: otlp::metrics(&raw.otlp, problems),
        traces: otlp::traces(&raw.otlp, problems),
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

/// Checks combinations of keys: a wedge bound must exceed the stall bound.
fn live(raw: &Raw, problems: &mut Problems<'_>) -> live::Settings {
    let (Wedge { decode, prefill }, stall) = (raw.wedge.clone(), raw.observe.stall);
    for (key, bound) in [("decode", decode), ("prefill", prefill)] {
        if bound <= stall {
            let message = format!(
                "{bound} is not above observe.stall ({stall}), so every stall would count as a wedge; write a higher value, such as 60s"
            );
            problems.error(&format!("wedge.{key}"), message);
        }
    }
    if !raw.observe.enabled && problems.is_set("wedge") {
        problems.warn("wedge", "has no effect: observe.enabled is false, so /engine/healthz always returns 200");
    }
    let fixed = live::Settings::default();
    live::Settings {
        max_in_flight: fixed.max_in_flight,
        recent_bytes: fixed.recent_bytes,
        stall: stall.0,
        bounds: live::Bounds { decode: decode.0, prefill: prefill.0 },
    }
}

fn tokenizer(raw: &Tokenizer, problems: &mut Problems<'_>) -> tokenizer::Settings {
    if raw.path.as_deref() == Some("") {
        problems
            .error("observe.tokenizer.path", "the path is empty; write the path of a tokenizer.json, or null for none");
    }
    for (model, _) in raw.models.iter().filter(|(_, path)| path.is_empty()) {
        let key = format!("observe.tokenizer.models.{model}");
        problems.error(&key, "the path is empty; write the path of a tokenizer.json, or remove the model");
    }
    tokenizer::Settings {
        path: raw.path.as_ref().map(PathBuf::from),
        models: raw.models.iter().map(|(model, path)| (model.clone(), PathBuf::from(path))).collect(),
        queue_responses: tokenizer::Settings::default().queue_responses,
    }
}

/// `None` if no vocabulary is set: no text is stored then.
fn text(raw: &Tokenizer) -> Option<observer::Text> {
    let on = raw.path.is_some() || !raw.models.is_empty();
    on.then_some(observer::Text { response_bytes: 256 << 10, memory_bytes: 64 << 20 })
}

const BOUNDS: &str = "telemetry.prompt_classes.input_length_bounds";

/// Checks that the bounds exist, are few, and ascend.
fn prompt_classes(raw: &PromptClasses, problems: &mut Problems<'_>) -> export::PromptClasses {
    let bounds = &raw.input_length_bounds;
    let most = export::PromptClasses::MOST_BOUNDS;
    if bounds.len() > most {
        problems.error(BOUNDS, format!("{} bounds are too many; write at most {most}", bounds.len()));
    }
    for (index, listener) in bounds.windows(2).enumerate() {
        if let [before, after] = listener
            && before >= after
        {
            let message = format!("{after} after {before}: bounds must be in ascending order");
            problems.error(&format!("{BOUNDS}[{}]", index + 1), message);
        }
    }
    if raw.input_length && bounds.is_empty() {
        problems.error(BOUNDS, "no bounds are set; write token counts such as 1024, 8192, or `input_length: false`");
    }
    if !raw.input_length && *bounds != PromptClasses::default().input_length_bounds {
        problems.warn(BOUNDS, "has no effect: `input_length` is off; set it to true");
    }
    export::PromptClasses {
        input_bounds: if raw.input_length { bounds.clone() } else { Vec::new() },
        cache_hit: raw.cache_hit,
    }
}

/// Values are range-checked before, so the conversion also fits a 32-bit `usize`.
fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
