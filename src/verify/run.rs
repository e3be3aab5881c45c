//! Runs a verification, one request at a time.

use serde_json::Value;

use crate::client::Caller;
use crate::client::Recording;
use crate::client::Target;
use crate::verify::bypass;
use crate::verify::canary;
use crate::verify::canary::Canary;
use crate::verify::canary::Kind;
use crate::verify::compare;
use crate::verify::compare::Outcome;
use crate::verify::compare::SideError;
use crate::verify::counted;
use crate::verify::counted::Counted;
use crate::verify::engine;
use crate::verify::report::Check;
use crate::verify::report::Grade;
use crate::verify::report::Report;
use crate::verify::settings::CheckName;
use crate::verify::settings::Settings;
use crate::verify::verdict;
use tokometer_decode::Engine;

/// Sends the canaries and evaluates the checks. Failures are part of the report, never an error.
pub fn run(settings: &Settings) -> Report {
    let mut report = Report {
        good: false,
        relay: settings.relay.to_string(),
        upstream: settings.upstream.to_string(),
        model: None,
        engine: None,
        requests: 0,
        latency: Vec::new(),
        checks: Vec::new(),
    };
    if let Err(unreached) = verify(settings, &mut report) {
        report.checks.push(unreached);
    }
    for check in &mut report.checks {
        if check.grade == Grade::Wrong && settings.accept.contains(&check.name) {
            check.grade = Grade::Accepted;
        }
    }
    report.good = report.checks.iter().all(|check| check.grade != Grade::Wrong);
    report
}

/// One side of the comparison: direct or proxied.
struct Side {
    caller: Caller,
    name: String,
}

impl Side {
    fn new(name: &str, target: &Target, settings: &Settings) -> Side {
        Side { caller: Caller::new(target, settings.timeout), name: format!("{name} at {}", target) }
    }

    fn wrong(&self, detail: &str) -> Check {
        Check::new(CheckName::Reach, Grade::Wrong, format!("{} {detail}", self.name))
    }

    fn ask(&mut self, request: &[u8]) -> Result<Recording, Check> {
        self.caller.ask(request).map_err(|failure| {
            self.wrong(&failure.to_string()).fix("start it, or correct its address with --relay or --upstream")
        })
    }

    /// Sends a canary; an error response is a failed check.
    fn canary(&mut self, settings: &Settings, body: &[u8]) -> Result<Canary, Check> {
        let request = canary::post(settings, self.caller.target(), body);
        let recording = self.ask(&request)?;
        let status = recording.status();
        if status != 200 {
            let detail = canary::excerpt(&recording.body());
            let refused = self.wrong(&format!("responds to a canary with status {status}: {detail}"));
            return Err(match status {
                401 | 403 => refused.fix("set the key: --header \"Authorization: Bearer ...\""),
                404 => refused.fix("set the model with --model, or use --api completions"),
                _ => refused,
            });
        }
        let canary = Canary::of(recording);
        match &canary.error {
            Some(error) => Err(self.wrong(&format!("reports an error in a canary's stream: {error}"))),
            None if canary.first_token.is_none() => Err(self.wrong("responds to a canary without any token")),
            None => Ok(canary),
        }
    }
}

fn verify(settings: &Settings, report: &mut Report) -> Result<(), Check> {
    let mut beside = Side::new("the server", &settings.upstream, settings);
    let mut through = Side::new("the proxy", &settings.relay, settings);
    let mut admin = Caller::new(&settings.admin, settings.timeout);

    let listed = beside.ask(&canary::get(settings, &settings.upstream, "/v1/models", "*/*"))?;
    let models = listed.body();
    let list: Value = serde_json::from_slice(&models).unwrap_or_default();
    let named = || list.pointer("/data/0/id").and_then(Value::as_str).map(str::to_owned);
    let Some(model) = settings.model.clone().or_else(named) else {
        let detail = format!("lists no models at /v1/models (status {})", listed.status());
        return Err(beside.wrong(&detail).fix("set one with --model"));
    };
    report.model = Some(model.clone());

    let before = counted::look(settings, &mut admin);
    let body = canary::body(settings, &model, Kind::Stream);
    // One warm-up canary on each side: opens the connections and triggers one-time work in the server.
    beside.canary(settings, &body)?;
    let warm = through.canary(settings, &body)?;
    let (mut straight, mut relayed) = (Vec::new(), Vec::new());
    for number in 0..settings.requests {
        // In alternating order, so that neither side always has the warmer caches.
        if number % 2 == 0 {
            straight.push(beside.canary(settings, &body)?);
            relayed.push(through.canary(settings, &body)?);
        } else {
            relayed.push(through.canary(settings, &body)?);
            straight.push(beside.canary(settings, &body)?);
        }
        report.requests += 1;
    }
    let sent = u64::from(settings.requests) + 1;
    let gained = before.and_then(|before| counted::settled(settings, &mut admin, &before, sent));
    let again = through.caller.retried();
    let engine = recognised(&list, gained.as_ref().ok());
    report.engine = engine.map(|engine| engine.info().title);
    let advice = engine::advice(engine);
    report.checks.push(Check::new(
        CheckName::Reach,
        Grade::Good,
        format!("all {} canaries on each side were answered", u64::from(report.requests) + 1),
    ));

    report.latency = verdict::rows(&straight, &relayed);
    report.checks.push(verdict::latency(&report.latency, settings.most_added));

    let recordings = |canaries: &[Canary]| canaries.iter().map(|canary| canary.recording.clone()).collect::<Vec<_>>();
    let streams = compare::compare_streams(&recordings(&straight), &recordings(&relayed));
    let others = exact(settings, &mut beside, &mut through, &model)?;
    report.checks.push(verdict::bytes(relayed.len(), &streams, &others));

    let unasked = beside.canary(settings, &canary::body(settings, &model, Kind::StreamWithoutUsage))?;
    report.checks.push(verdict::usage(advice, warm.usage.is_some(), &unasked));
    report.checks.push(verdict::queue(advice, gained.as_ref().ok()));
    report.checks.push(match &gained {
        Ok(gained) => {
            let canaries: Vec<&Canary> = std::iter::once(&warm).chain(&relayed).collect();
            verdict::counts(gained, &canaries, again)
        }
        Err(why) => {
            let grade = if settings.admin_is_named { Grade::Wrong } else { Grade::Unknown };
            let detail = format!("the admin server at {} {why}", settings.admin);
            Check::new(CheckName::Counts, grade, detail).fix("set its address with --admin http://HOST:PORT")
        }
    });
    report.checks.push(bypass::check(settings, &mut admin, advice, &models));
    Ok(())
}

fn recognised(models: &Value, gained: Option<&Counted>) -> Option<Engine> {
    let by_relay = || gained?.engines.keys().find_map(|name| Engine::of_name(name));
    engine::of_models(models).or_else(by_relay)
}

/// Compares non-streamed responses byte for byte.
fn exact(
    settings: &Settings,
    beside: &mut Side,
    through: &mut Side,
    model: &str,
) -> Result<Vec<(&'static str, Outcome)>, Check> {
    let whole = canary::body(settings, model, Kind::Whole);
    let get = |path: &'static str| move |caller: &Caller| canary::get(settings, caller.target(), path, "*/*");
    let post = |body: Vec<u8>| move |caller: &Caller| canary::post(settings, caller.target(), &body);
    let mut outcomes = Vec::new();
    let mut compare = |name: &'static str, request: &dyn Fn(&Caller) -> Vec<u8>| {
        let outcome = compare::compare_exact(&mut beside.caller, &mut through.caller, request);
        let outcome = outcome.map_err(|silent| match silent {
            SideError::Direct(failure) => beside.wrong(&format!("{failure} (request: {name})")),
            SideError::Proxied(failure) => through.wrong(&format!("{failure} (request: {name})")),
        });
        outcome.map(|outcome| outcomes.push((name, outcome)))
    };
    compare("model list", &get("/v1/models"))?;
    compare("unknown path", &get(canary::UNKNOWN_PATH))?;
    compare("rejected request", &post(canary::INVALID_JSON.to_vec()))?;
    compare("non-streamed response", &post(whole))?;
    Ok(outcomes)
}
