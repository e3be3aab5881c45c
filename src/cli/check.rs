//! Explains the configuration.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::config::{Config, Settings};
use tokometer_decode::Engine;
use tokometer_proxy::listen::{self, Address, Listener, Probe, Reached};
use tokometer_proxy::relay::{self, Unreached};
use tokometer_telemetry::tokenizer::Vocabularies;
use tokometer_telemetry::{accounting, export, slo};

/// Maximum time for connecting to the servers.
const CONNECTING: Duration = Duration::from_secs(5);

/// Describes the effective configuration, its consequences for traffic and metrics, and its warnings. Connects to the
/// servers.
pub fn explain(config: &Config) -> String {
    let servers = servers(&config.settings);
    let source = match &config.file {
        Some(file) => format!("File: {}.", file.display()),
        None => "Sources: defaults, variables and flags, no file.".to_owned(),
    };
    let mut text = format!("The configuration is valid. {source}\n");
    let mut section = |title: &str, lines: Vec<String>| {
        let lines: String = lines.into_iter().map(|line| format!("  {line}\n")).collect();
        text.push_str(&format!("\n{title}\n{lines}"));
    };
    section("Traffic", traffic(config));
    section("Servers", servers.iter().map(|(server, found, _)| format!("{server}: {found}")).collect());
    section("Measurements", measurements(&config.settings));
    // A configuration is valid while its server is down.
    let down = servers.into_iter().filter_map(|(server, found, advice)| {
        Some(format!("the server at {server} cannot be reached now: {found}. {}", advice?))
    });
    match warnings(config).into_iter().chain(down).collect::<Vec<String>>() {
        none if none.is_empty() => section("No warnings.", none),
        some => section("Warnings", some.into_iter().map(|warning| format!("- {warning}")).collect()),
    }
    text
}

/// Problems with the content of files that can be opened, each with its key and fix.
pub(super) fn unusable_files(config: &Config) -> Vec<String> {
    let accounting =
        accounting::Accounting::new(config.settings.accounting.clone()).err().map(|error| error.to_string());
    let vocabularies = Vocabularies::read(&config.settings.tokenizer).err().map(|error| error.to_string());
    unusable_tls(config).into_iter().chain(accounting).chain(vocabularies).collect()
}

/// The subset that is fast to check: certificates and keys.
pub(super) fn unusable_tls(config: &Config) -> Vec<String> {
    let Settings { listeners, export, .. } = &config.settings;
    let listeners = listeners.iter().enumerate().filter_map(|(index, listener)| {
        let error = listen::usable_tls(listener).err()?;
        Some(format!("listeners[{index}]: {error}"))
    });
    let endpoints = [("metrics", &export.metrics.endpoint), ("traces", &export.traces.endpoint)];
    let endpoints = endpoints.into_iter().filter_map(|(signal, endpoint)| {
        let error = export::usable_endpoint(endpoint.as_ref()?).err()?;
        Some(format!("otlp.{signal}: {error}"))
    });
    listeners.chain(endpoints).collect()
}

/// Connects to each server: its address, what was found, and what to do if it cannot be reached.
fn servers(settings: &Settings) -> Vec<(String, String, Option<&'static str>)> {
    let listeners = if settings.tap.is_some() { &[] } else { settings.listeners.as_slice() };
    let until = Instant::now() + CONNECTING;
    let started = listeners.iter().map(|listener| {
        let (found, result) = channel();
        if let Ok(probe) = Probe::new(listener) {
            // Name resolution cannot be interrupted: the thread ends with the process.
            thread::spawn(move || found.send(probe.reach()));
        }
        (listener.upstream.to_string(), result)
    });
    // All threads are started before the first result is awaited.
    let started: Vec<_> = started.collect();
    let result = |(server, result): (String, std::sync::mpsc::Receiver<Reached>)| {
        let (found, advice) = match result.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Reached::Accepts) => ("connected".to_owned(), None),
            Ok(Reached::Unknown) => ("not checked".to_owned(), None),
            Ok(Reached::Refuses(error) | Reached::Fails(error)) => {
                let why = Unreached::of(&error);
                (format!("{} ({error})", word(why)), Some(why.advice()))
            }
            Err(_) => {
                let limit = seconds(CONNECTING);
                (format!("no result within {limit}"), Some(Unreached::NameResolution.advice()))
            }
        };
        (server, found, advice)
    };
    started.into_iter().map(result).collect()
}

fn word(why: Unreached) -> &'static str {
    match why {
        Unreached::Refused => "refused",
        Unreached::Timeout => "timed out",
        Unreached::NameResolution => "DNS failure",
        Unreached::Unreachable => "no route",
        Unreached::Tls => "TLS failure",
        Unreached::Other => "failed",
    }
}

fn describe(listener: &Listener) -> String {
    let listen = &listener.listen;
    let tls = if listener.tls.is_some() { " with TLS" } else { "" };
    let upstream = match (&listener.upstream, &listener.upstream_tls) {
        (Address::OriginalDestination, _) => "the original destination of redirected connections".to_owned(),
        (upstream, Some(tls)) if tls.insecure => format!("{upstream} with TLS, any certificate accepted"),
        (upstream, Some(_)) => format!("{upstream} with TLS"),
        (upstream, None) => upstream.to_string(),
    };
    format!("clients connect to {listen}{tls}; all bytes are forwarded to {upstream}.")
}

fn traffic(config: &Config) -> Vec<String> {
    let settings = &config.settings;
    if let Some(tap) = &settings.tap {
        let ports: Vec<String> = tap.ports.iter().map(u16::to_string).collect();
        return vec![format!(
            "`tokometer tap` captures TCP port {} on interface {}; no traffic is forwarded, and TLS cannot be read.",
            ports.join(", "),
            tap.interface
        )];
    }
    let listeners = settings.listeners.iter().zip(&config.raw().listeners).map(|(listener, raw)| {
        let name = raw.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        format!("{name}{}", describe(listener))
    });
    let relay = &settings.relay;
    let response = match relay.unreachable {
        relay::Unreachable::Refuse => "no connection: the listener is open only while the server accepts connections",
        relay::Unreachable::Http503 => "a 503 with a JSON error",
        relay::Unreachable::Reset => "a TCP reset",
    };
    let timeout =
        relay.connect_timeout.map_or("the kernel's timeout".to_owned(), |limit| format!("{} ms", limit.as_millis()));
    let idle = relay.idle_timeout.map_or("Requests and streams have no time limit.".to_owned(), |limit| {
        format!("Connections without traffic for {} are closed.", seconds(limit))
    });
    let threads = settings.threads.map_or("one thread per CPU".to_owned(), |threads| format!("{threads} threads"));
    let grace = seconds(settings.grace_period);
    let others = [
        format!("When the server cannot be reached, clients get {response}; connect timeout: {timeout}."),
        idle,
        format!("Tokometer runs on {threads}; after SIGTERM, open streams may continue for {grace}."),
    ];
    listeners.chain(others).collect()
}

fn measurements(settings: &Settings) -> Vec<String> {
    let mut lines = Vec::new();
    if settings.observe.enabled {
        let engine = settings.observe.engine.0.map_or("detected from its responses", Engine::as_str);
        lines.push(format!("Requests are measured; the engine is {engine}."));
    } else {
        lines.push("Requests are not measured (observe.enabled is false).".to_owned());
    }
    lines.push(objectives(&settings.slo));
    lines.extend(spending(&settings.accounting));
    if settings.observe.enabled && settings.tokenizer.is_on() {
        lines.push("If the engine does not report a token count, it is estimated from the response text.".to_owned());
    }
    let admin = settings.admin.listen;
    lines.push(format!("Prometheus scrapes http://{admin}/metrics; the same address serves health and drain."));
    lines.push(match &settings.export.metrics.endpoint {
        None => "OTLP metrics: off.".to_owned(),
        Some(endpoint) => {
            format!("OTLP metrics: {} every {}.", target(endpoint), seconds(settings.export.metrics.interval))
        }
    });
    let traces = &settings.export.traces;
    lines.push(match &traces.endpoint {
        None => "OTLP traces: off.".to_owned(),
        Some(endpoint) => {
            let share = match traces.sampler {
                export::Sampler::AlwaysOn => "all".to_owned(),
                export::Sampler::AlwaysOff => "none".to_owned(),
                export::Sampler::Ratio(share) => format!("{}%", share * 100.0),
            };
            let parent = if traces.parent_based { " unless the caller decides" } else { "" };
            format!("OTLP traces: {}; sampled: {share}{parent}{}.", target(endpoint), kept_besides(traces))
        }
    });
    let resource = |name| settings.export.resource.get(name);
    if let (Some(name), Some(instance)) = (resource("service.name"), resource("service.instance.id")) {
        lines.push(format!("Service name: {name}, instance: {instance}."));
    }
    lines.push(match &settings.access_log {
        None => "Access log: off.".to_owned(),
        Some(log) => {
            let place = log.path.as_ref().map_or("stdout".to_owned(), |path| path.display().to_string());
            format!("Access log: {place}.")
        }
    });
    lines
}

fn objectives(slo: &slo::Settings) -> String {
    let all = slo.objectives.iter().map(|objective| {
        let limits = objective.goal.thresholds().into_iter().map(|(name, value)| format!(", {name} {value}"));
        // Four decimal places: the maximum target is 99.9999 %.
        let percent = (objective.target * 1e6).round() / 1e4;
        format!("{} {percent} %{}", objective.name, limits.collect::<String>())
    });
    match all.collect::<Vec<String>>() {
        none if none.is_empty() => "Objectives: none.".to_owned(),
        all => format!("Objectives: {}.", all.join("; ")),
    }
}

/// Tenants, prices and budgets that are configured; `tokometer config` prints their values.
fn spending(accounting: &accounting::Settings) -> Vec<String> {
    let tenants = accounting.tenants.as_ref().map(|tenants| {
        let others =
            if tenants.only_named { "no others".to_owned() } else { format!("at most {} others", tenants.most) };
        format!("Tenants: {} named, {others}.", tenants.names.len())
    });
    let prices = accounting.prices.as_ref();
    let prices =
        prices.map(|prices| format!("Prices in {}, model patterns: {}.", prices.currency, prices.models.len()));
    let names: Vec<&str> = accounting.budgets.iter().map(|budget| budget.name.as_str()).collect();
    let budgets = (!names.is_empty()).then(|| format!("Daily budgets: {}.", names.join(", ")));
    [tenants, prices, budgets].into_iter().flatten().collect()
}

/// The traces kept regardless of the sampler.
fn kept_besides(traces: &export::Traces) -> String {
    let kinds = [
        (traces.keep_failed, "failed"),
        (traces.keep_stalled, "stalled"),
        (traces.keep_first_token_over.is_some(), "slow"),
    ];
    let kinds: Vec<&str> = kinds.into_iter().filter(|(is_kept, _)| *is_kept).map(|(_, kind)| kind).collect();
    match traces.keep_per_second {
        _ if kinds.is_empty() => String::new(),
        Some(max) => format!(", plus at most {max} per second that are {}", kinds.join(" or ")),
        None => format!(", plus all that are {}", kinds.join(" or ")),
    }
}

fn warnings(config: &Config) -> Vec<String> {
    let settings = &config.settings;
    let mut warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    let otlp = &config.raw().otlp;
    let switched_off = [&otlp.metrics.destination, &otlp.traces.destination].map(|to| to.enabled) == [Some(false); 2];
    if settings.export.metrics.endpoint.is_none() && settings.export.traces.endpoint.is_none() && !switched_off {
        warnings.push(
            "OTLP is not configured, so metrics are not pushed and traces are off; set otlp.endpoint or \
             OTEL_EXPORTER_OTLP_ENDPOINT. The Prometheus endpoint works without it."
                .to_owned(),
        );
    }
    if !settings.observe.enabled {
        warnings.push("observe.enabled is false: traffic is forwarded, but not measured.".to_owned());
    }
    if settings.grace_period.is_zero() {
        warnings.push("process.grace_period is 0: SIGTERM closes every open stream.".to_owned());
    }
    if let Some(limit) = settings.relay.idle_timeout.filter(|limit| *limit < Duration::from_secs(60)) {
        warnings.push(format!(
            "relay.idle_timeout is {}: streams whose first token takes longer are closed.",
            crate::config::Duration(limit)
        ));
    }
    warnings
}

fn target(endpoint: &export::Endpoint) -> String {
    let protocol = match endpoint.protocol {
        export::Protocol::HttpProtobuf => "http/protobuf",
        export::Protocol::Grpc => "gRPC",
    };
    let gzip = if endpoint.gzip { ", gzip" } else { "" };
    format!("{} ({protocol}{gzip})", crate::config::shown_url(&endpoint.url))
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
