//! `tokometer sim` and `tokometer load`: a simulated server, and a load generator that measures on the client side.

use std::io::{self, IsTerminal, Write};
use std::net::ToSocketAddrs;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};

use crate::cli::shared::{fail, finish, one_of, print, wrong_usage};
use crate::client::Target;
use tokometer_settings::duration;
use tokometer_sim::UnknownName;
use tokometer_sim::load::{self, Api};
use tokometer_sim::server::{self, Fault, Imitation, Listen, Pace, Simulator, Traces};

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
    /// Engine to imitate for chat requests. The native paths of all engines are always served
    #[arg(long, value_name = "ENGINE", default_value = "vllm", value_parser = one_of(Imitation::NAMES.iter().copied()))]
    pub engine: Imitation,
    /// Share of each prompt that is read from the cache, from 0 to 1; if above 0, each response reports the number of
    /// cached tokens
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub cached_share: f64,
    /// Maximum number of concurrent requests; further requests wait
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..))]
    pub max_concurrency: u32,
    /// Report queue and generation times of each request, if the imitated engine supports it
    #[arg(long)]
    pub request_metrics: bool,
    /// Tokens per event of a stream
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=100_000))]
    pub tokens_per_chunk: u32,
    /// Endpoint that receives the request spans, as in vLLM: http://127.0.0.1:4317
    #[arg(long, value_name = "URL", value_parser = plain_url)]
    pub otlp_traces_endpoint: Option<String>,
    /// Faults, separated by commas, each as NAME[:ARGUMENT][=SHARE]. SHARE is the share of affected requests, from 0 to
    /// 1 (default 1). Names and arguments: status:CODE; error-event, cut, reset and bad-json with the number of events
    /// before the fault; stall, hang and slow-headers with seconds; no-done, empty and garbage without argument
    #[arg(long, value_name = "SPEC")]
    pub faults: Option<String>,
}

fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "write a number from 0 to 1".to_owned())
}

fn plain_url(text: &str) -> Result<String, String> {
    text.parse::<Target>().map(|_| text.to_owned())
}

fn positive_number(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .ok_or_else(|| format!("`{text}` is not a number above 0"))
}

/// Runs until it is interrupted.
pub(super) fn simulate(arguments: &SimArgs) -> ExitCode {
    let listen = match listen(&arguments.listen) {
        Ok(listen) => listen,
        Err(error) => return wrong_usage(&error),
    };
    let faults = match faults(arguments.faults.as_deref().unwrap_or_default()) {
        Ok(faults) => faults,
        Err(error) => return wrong_usage(&format!("--faults: {error}")),
    };
    let delay = Duration::from_secs(5);
    let traces = arguments.otlp_traces_endpoint.clone().map(|endpoint| Traces { endpoint, delay });
    let pace = Pace {
        time_to_first_token: Duration::from_millis(arguments.ttft_ms),
        tokens_per_second: arguments.rate,
        tokens_per_chunk: arguments.tokens_per_chunk,
        ..Pace::default()
    };
    let settings = server::Settings {
        listen,
        model: arguments.model.clone(),
        pace,
        imitate: arguments.engine,
        cached_share: arguments.cached_share,
        prompt_tokens_details: arguments.cached_share > 0.0,
        // Room for `max_concurrency` requests of 1,024 tokens.
        kv_cache_tokens: u64::from(arguments.max_concurrency) * 1024,
        max_concurrency: arguments.max_concurrency as usize,
        per_request_metrics: arguments.request_metrics,
        response_tokens: arguments.tokens..=arguments.tokens,
        faults,
        traces,
        ..server::Settings::default()
    };
    let served = runtime().and_then(|runtime| {
        runtime.block_on(async {
            let simulator = Simulator::start(settings).await.map_err(io::Error::other)?;
            let imitate = arguments.engine;
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
    finish(served)
}

/// Parses `IP:PORT`, `:PORT` or `unix:PATH`.
fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Listen::Unix(path.into()));
    }
    let any = text.strip_prefix(':').map(|port| format!("0.0.0.0:{port}"));
    let found = any.as_deref().unwrap_or(text).to_socket_addrs().ok().and_then(|mut found| found.next());
    let wrong = || format!("--listen {text}: not an address; write IP:PORT, such as 127.0.0.1:8001, or unix:/path");
    found.map(Listen::Tcp).ok_or_else(wrong)
}

/// Parses `NAME[:ARG]=PROBABILITY`, separated by commas.
fn faults(text: &str) -> Result<Vec<(Fault, f64)>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let fault = |part: &str| {
        let (name, chance) = part.split_once('=').unwrap_or((part, "1"));
        let fault: Fault = name.parse().map_err(|error: UnknownName| error.to_string())?;
        let chance = chance.parse().ok().filter(|p| (0.0..=1.0).contains(p));
        Ok((fault, chance.ok_or_else(|| format!("`{part}`: a probability is a number from 0 to 1"))?))
    };
    parts.map(fault).collect()
}

/// Arguments of `load`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer load --url http://127.0.0.1:8000
  tokometer load --url http://127.0.0.1:8000 --concurrency 64 --for 30s
  tokometer load --requests 100 --max-tokens 64 --model my-model --json
  tokometer load --api messages --http2 --requests 20

Without --for and --requests, load exits after 10 s.")]
pub struct LoadArgs {
    /// URL of the server, optionally with a path that replaces the API's default path
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// API to call [default: the API that has the URL's path, otherwise chat]
    #[arg(long, value_name = "NAME", value_parser = one_of(Api::NAMES.iter().copied()))]
    pub api: Option<Api>,
    /// Use HTTP/2 with prior knowledge, with up to 100 concurrent requests per connection
    #[arg(long)]
    pub http2: bool,
    /// Number of concurrent requests
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=100_000))]
    pub concurrency: u32,
    /// Exit after this many requests
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Exit after this time, such as 10s, 500ms or 2m
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::positive)]
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

/// Generates the load; prints progress and a summary.
pub(super) fn load(arguments: &LoadArgs) -> ExitCode {
    let mut settings = load::Settings {
        url: arguments.url.clone(),
        api: arguments.api,
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
        settings.duration = Some(Duration::from_secs(10));
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
        let (start, end) = if terminal { ("\r", "") } else { ("", "\n") };
        write!(io::stderr(), "{start}{line}{end}").ok();
    };
    let result = match runtime() {
        Ok(runtime) => runtime.block_on(load::run(settings, progress)),
        Err(error) => return fail(&error),
    };
    if terminal {
        writeln!(io::stderr()).ok();
    }
    let summary = match result {
        Ok(summary) => summary,
        Err(load::Error::Url(error)) => return wrong_usage(&format!("--url: {error}")),
        Err(error) => return fail(&error),
    };
    let text = if arguments.json { serde_json::to_string(&summary).unwrap_or_default() } else { summary.to_string() };
    match print(&(text + "\n")) {
        ExitCode::SUCCESS if summary.all_failed() => {
            fail(&format!("no request to {} got a complete response", arguments.url))
        }
        code => code,
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
