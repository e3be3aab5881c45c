//! The implementations of the commands.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::net::ToSocketAddrs;
use std::process::ExitCode;

use crate::app;
use crate::app::ReplayError;
use crate::cli;
use crate::cli::{DemoArgs, LoadArgs, Programs, ReplayArgs, SimArgs, Start, top, verify};
use crate::logging;
use tokometer_observe::observer;
use tokometer_sim::load;
use tokometer_sim::server;
use tokometer_sim::server::{Fault, Listen, Pace, Simulator, Traces};
use tokometer_telemetry::export;

/// Every command.
pub fn programs() -> Programs {
    Programs {
        run: Some(start),
        demo: Some(show),
        sim: Some(simulate),
        load: Some(offer),
        replay: Some(replayed),
        top: Some(top::top),
        verify: Some(verify::verify),
        metrics: Some(export::metrics_markdown),
    }
}

fn failed(error: &dyn Display) -> ExitCode {
    complain(error);
    ExitCode::from(cli::FAILURE)
}

fn wrong(error: &dyn Display) -> ExitCode {
    complain(error);
    ExitCode::from(cli::WRONG_USAGE)
}

fn complain(error: &dyn Display) {
    // With stderr closed, the error cannot be reported.
    writeln!(io::stderr(), "tokometer: {error}").ok();
}

fn ended<E: Display>(result: Result<(), E>) -> ExitCode {
    result.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

fn start(start: Start) -> ExitCode {
    let Start { config, flags, environment } = start;
    let logs = match logging::install(&config.settings.log) {
        Ok(logs) => logs,
        Err(error) => return failed(&error),
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let result = app::run(config, &flags, &environment, &logs);
    drop(logs);
    match result {
        Err(error) if error.is_of_configuration() => wrong(&error),
        result => ended(result),
    }
}

fn show(arguments: &DemoArgs) -> ExitCode {
    let settings = app::DemoSettings {
        duration: arguments.duration,
        streams: arguments.streams as usize,
        plain: arguments.plain,
        ..app::DemoSettings::default()
    };
    match app::demo(&settings, &mut io::stdout().lock()) {
        // A closed reader (`| head`) counts as success.
        Err(app::DemoError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        result => ended(result),
    }
}

fn simulate(arguments: &SimArgs) -> ExitCode {
    let listen = match listen(&arguments.listen) {
        Ok(listen) => listen,
        Err(error) => return wrong(&error),
    };
    let imitate = match arguments.engine.parse() {
        Ok(imitate) => imitate,
        Err(error) => {
            let error: server::UnknownImitation = error;
            return wrong(&format!("--engine: {error}"));
        }
    };
    let faults = match faults(arguments.faults.as_deref().unwrap_or_default()) {
        Ok(faults) => faults,
        Err(error) => return wrong(&format!("--faults: {error}")),
    };
    let protocol = match arguments.otlp_traces_protocol.parse() {
        Ok(protocol) => protocol,
        Err(error) => {
            let error: server::UnknownProtocol = error;
            return wrong(&format!("--otlp-traces-protocol: {error}"));
        }
    };
    let delay = std::time::Duration::from_secs(5);
    let traces = arguments.otlp_traces_endpoint.clone().map(|endpoint| Traces { endpoint, protocol, delay });
    let pace = Pace {
        time_to_first_token: std::time::Duration::from_millis(arguments.ttft_ms),
        tokens_per_second: arguments.rate,
        tokens_per_chunk: arguments.tokens_per_chunk,
        ..Pace::default()
    };
    let settings = server::Settings {
        listen,
        model: arguments.model.clone(),
        pace,
        imitate,
        cached_share: arguments.cached_share,
        max_concurrency: arguments.max_concurrency as usize,
        per_request_metrics: arguments.request_metrics,
        answer_tokens: arguments.tokens..=arguments.tokens,
        faults,
        traces,
        ..server::Settings::default()
    };
    let served = runtime().and_then(|runtime| {
        runtime.block_on(async {
            let simulator = Simulator::start(settings).await.map_err(io::Error::other)?;
            match simulator.local_address() {
                unix if unix.port() == 0 => writeln!(io::stderr(), "simulated {imitate} on {}", arguments.listen)?,
                address => writeln!(io::stderr(), "simulated {imitate} on http://{address}")?,
            }
            let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            tokio::select! {
                stopped = tokio::signal::ctrl_c() => stopped?,
                _ = terminate.recv() => {}
            }
            let stats = simulator.stop().await;
            writeln!(
                io::stderr(),
                "{} requests, {} refused, {} aborted by their clients; {} tokens",
                stats.requests,
                stats.refused,
                stats.aborted,
                stats.generation_tokens
            )
        })
    });
    ended(served)
}

/// `IP:PORT`, `:PORT` or `unix:PATH`.
fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Listen::Unix(path.into()));
    }
    let any = text.strip_prefix(':').map(|port| format!("0.0.0.0:{port}"));
    let found = any.as_deref().unwrap_or(text).to_socket_addrs().ok().and_then(|mut found| found.next());
    let wrong = || format!("--listen {text}: not an address; write IP:PORT, such as 127.0.0.1:8001, or unix:/path");
    found.map(Listen::Tcp).ok_or_else(wrong)
}

/// `NAME[:ARG]=PROBABILITY`, separated by commas.
fn faults(text: &str) -> Result<Vec<(Fault, f64)>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let fault = |part: &str| {
        let (name, chance) = part.split_once('=').unwrap_or((part, "1"));
        let fault: Fault = name.parse().map_err(|error: server::UnknownFault| error.to_string())?;
        let chance = chance.parse().ok().filter(|p| (0.0..=1.0).contains(p));
        Ok((fault, chance.ok_or_else(|| format!("`{part}`: a probability is a number from 0 to 1"))?))
    };
    parts.map(fault).collect()
}

fn offer(arguments: &LoadArgs) -> ExitCode {
    let api = match arguments.api.as_deref().map(str::parse).transpose() {
        Ok(api) => api,
        Err(error) => {
            let error: load::UnknownApi = error;
            return wrong(&format!("--api: {error}"));
        }
    };
    let mut settings = load::Settings {
        url: arguments.url.clone(),
        api,
        http2: arguments.http2,
        concurrency: arguments.concurrency as usize,
        requests: arguments.requests,
        duration: arguments.duration,
        max_tokens: arguments.max_tokens,
        ..load::Settings::default()
    };
    if let Some(model) = &arguments.model {
        settings.model.clone_from(model);
    }
    if settings.requests.is_none() && settings.duration.is_none() {
        settings.duration = Some(std::time::Duration::from_secs(10));
    }
    let terminal = io::stderr().is_terminal();
    let progress = move |progress: load::Progress| {
        let line = format!(
            "{:>6.1} s  open {:>5}  ended {:>6}  failed {:>4}  token events {:>8}  TTFT p50 {} ms",
            progress.elapsed.as_secs_f64(),
            progress.open,
            progress.ended,
            progress.failed,
            progress.token_events,
            if progress.token_events == 0 { "-".to_owned() } else { format!("{:.1}", progress.time_to_first_token_ms) },
        );
        // A failure to print progress does not end the load.
        if terminal {
            write!(io::stderr(), "\r{line}").ok()
        } else {
            writeln!(io::stderr(), "{line}").ok()
        };
    };
    let offered =
        runtime().and_then(|runtime| runtime.block_on(load::run(settings, progress)).map_err(io::Error::other));
    if terminal {
        writeln!(io::stderr()).ok();
    }
    let summary = match offered {
        Ok(summary) => summary,
        Err(error) => return failed(&error),
    };
    let all_failed = summary.all_failed();
    let mut out = io::stdout().lock();
    let written = if arguments.json {
        serde_json::to_string(&summary).map_err(io::Error::from).and_then(|text| writeln!(out, "{text}"))
    } else {
        writeln!(out, "{summary}")
    };
    match ended(written) {
        ExitCode::SUCCESS if all_failed => failed(&format!("no request to {} got a complete response", arguments.url)),
        code => code,
    }
}

fn replayed(arguments: &ReplayArgs) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let show = app::Show { json: arguments.json, timeline: arguments.timeline };
    for path in &arguments.paths {
        match app::replay(path, show, &observer::Settings::default(), &mut out) {
            Ok(()) => {}
            // A closed reader (`| head`) counts as success.
            Err(ReplayError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Err(error) => {
                out.flush().ok();
                return failed(&error);
            }
        }
    }
    ended(out.flush())
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
