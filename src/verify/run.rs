//! Runs a verification, one request at a time.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;

use crate::client::{Caller, Failure, Recording, Target};
use crate::verify::canary::{Canary, Kind};
use crate::verify::compare::Outcome;
use crate::verify::counted::{Counted, REQUESTS};
use crate::verify::report::{Check, Grade, Report};
use crate::verify::settings::{CheckName, Settings};
use crate::verify::{bypass, canary, compare, counted, verdict};
use tokometer_decode::Engine;
use tokometer_decode::engine::Advice;

/// Sends the canaries and evaluates the checks. Failures are part of the report, never an error. `progress` is called
/// with the number of timed canaries sent on each side.
pub fn run(settings: &Settings, mut progress: impl FnMut(u32)) -> Report {
    let mut report = Report {
        passed: false,
        relay: settings.relay.to_string(),
        upstream: settings.upstream.to_string(),
        model: None,
        engine: None,
        requests: 0,
        latency: Vec::new(),
        checks: Vec::new(),
    };
    if let Err(unreached) = verify(settings, &mut progress, &mut report) {
        report.checks.push(unreached);
    }
    for check in &mut report.checks {
        if matches!(check.grade, Grade::Fail | Grade::Warn) && settings.accept.contains(&check.name) {
            check.grade = Grade::Accepted;
        }
    }
    report.passed = report.checks.iter().all(|check| check.grade != Grade::Fail);
    report
}

/// Returns a request to a target.
type Make<'a> = &'a dyn Fn(&Target) -> Request<Full<Bytes>>;

/// One side of the comparison: direct or proxied.
struct Side {
    caller: Caller,
    name: String,
}

impl Side {
    fn new(name: &str, target: &Target, settings: &Settings) -> Side {
        Side { caller: Caller::new(target, settings.timeout), name: format!("{name} at {target}") }
    }

    fn wrong(&self, detail: &str) -> Check {
        Check::new(CheckName::Reach, Grade::Fail, format!("{} {detail}", self.name))
    }

    /// Sends a request that is not a canary.
    fn ask(&mut self, request: Make<'_>) -> Result<Recording, Failure> {
        let request = request(self.caller.target());
        self.caller.ask(&request)
    }

    fn unreached(&self, failure: &Failure) -> Check {
        self.wrong(&failure.to_string()).fix("start it, or correct its address with --relay or --upstream")
    }

    /// Sends a canary; an error response is a failed check.
    fn canary(&mut self, settings: &Settings, body: &Bytes) -> Result<Canary, Check> {
        let recording = self.ask(&|to| canary::post(settings, to, body.clone()));
        let recording = recording.map_err(|failure| self.unreached(&failure))?;
        let status = recording.status();
        if status != 200 {
            let detail = canary::excerpt(recording.body());
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

fn verify(settings: &Settings, progress: &mut dyn FnMut(u32), report: &mut Report) -> Result<(), Check> {
    let mut direct = Side::new("the server", &settings.upstream, settings);
    let mut proxied = Side::new("the proxy", &settings.relay, settings);
    let admin_target = settings.admin.as_ref().unwrap_or(&settings.default_admin);
    let (mut admin, port) = (Caller::new(admin_target, settings.timeout), settings.upstream.port());

    let listed = direct.ask(&|to| canary::get(settings, to, "/v1/models"));
    let listed = listed.map_err(|failure| direct.unreached(&failure))?;
    let models = listed.body();
    let list: Value = serde_json::from_slice(models).unwrap_or_default();
    let named = || list.pointer("/data/0/id").and_then(Value::as_str).map(str::to_owned);
    let Some(model) = settings.model.clone().or_else(named) else {
        let detail = format!("lists no models at /v1/models (status {})", listed.status());
        return Err(direct.wrong(&detail).fix("set one with --model"));
    };
    report.model = Some(model.clone());

    let before = counted::scrape(&mut admin, port);
    let body = canary::body(settings, &model, Kind::Stream);
    // One warm-up canary on each side: opens the connections and triggers one-time work in the server.
    direct.canary(settings, &body)?;
    let warm = proxied.canary(settings, &body)?;
    let (mut direct_canaries, mut proxied_canaries) = (Vec::new(), Vec::new());
    for number in 0..settings.requests {
        // In alternating order: the second request of a pair may benefit from the server's caches.
        if number % 2 == 0 {
            direct_canaries.push(direct.canary(settings, &body)?);
            proxied_canaries.push(proxied.canary(settings, &body)?);
        } else {
            proxied_canaries.push(proxied.canary(settings, &body)?);
            direct_canaries.push(direct.canary(settings, &body)?);
        }
        report.requests += 1;
        progress(report.requests);
    }
    let sent = u64::from(settings.requests) + 1;
    let gained = before.and_then(|before| counted::settled(&mut admin, port, &before, sent));
    let retried = proxied.caller.retried();
    let engine = recognised(&list, gained.as_ref().ok());
    report.engine = engine.map(|engine| engine.info().title);
    let advice = advice(engine);
    let detail = format!("all {sent} canaries on each side got a response");
    report.checks.push(Check::new(CheckName::Reach, Grade::Pass, detail));

    report.latency = verdict::rows(&direct_canaries, &proxied_canaries);
    report.checks.push(verdict::latency(&report.latency, settings.max_added));

    let recordings: fn(&[Canary]) -> Vec<&Recording> =
        |canaries| canaries.iter().map(|canary| &canary.recording).collect();
    let mut outcomes = vec![compare::compare_streams(&recordings(&direct_canaries), &recordings(&proxied_canaries))];
    outcomes.extend(exact(settings, &mut direct, &mut proxied, &model)?);
    report.checks.push(verdict::bytes(&outcomes));

    let unasked = direct.canary(settings, &canary::body(settings, &model, Kind::StreamWithoutUsage))?;
    report.checks.push(verdict::usage(advice, warm.usage.is_some(), &unasked));
    report.checks.push(verdict::queue(advice, gained.as_ref().ok()));
    report.checks.push(match &gained {
        Ok(gained) => {
            let canaries: Vec<&Canary> = std::iter::once(&warm).chain(&proxied_canaries).collect();
            verdict::counts(gained, &canaries, retried)
        }
        Err(why) => {
            let grade = if settings.admin.is_some() { Grade::Fail } else { Grade::Unknown };
            let detail = format!("the admin server at {admin_target} {why}");
            Check::new(CheckName::Counts, grade, detail).fix("set its address with --admin http://HOST:PORT")
        }
    });
    report.checks.push(bypass::check(settings, &mut admin, advice, models));
    Ok(())
}

/// The engine settings that make counts and queue times exact.
fn advice(engine: Option<Engine>) -> Advice {
    engine.map_or(Advice::GENERAL, |engine| engine.info().advice)
}

/// The engine: from the owner of the first model (engines write their own name), otherwise as recognised by the proxy.
fn recognised(models: &Value, gained: Option<&Counted>) -> Option<Engine> {
    let owner = models.pointer("/data/0/owned_by").and_then(Value::as_str);
    let by_proxy = || gained?.by_label(REQUESTS).find_map(|(name, _)| Engine::of_name(name));
    owner.and_then(Engine::of_owner).or_else(by_proxy)
}

/// Compares non-streamed responses byte for byte.
fn exact(settings: &Settings, direct: &mut Side, proxied: &mut Side, model: &str) -> Result<Vec<Outcome>, Check> {
    let whole = canary::body(settings, model, Kind::Whole);
    let requests: [(&str, Make<'_>); 4] = [
        ("model list", &|to| canary::get(settings, to, "/v1/models")),
        ("unknown path", &|to| canary::get(settings, to, canary::UNKNOWN_PATH)),
        ("rejected request", &|to| canary::post(settings, to, canary::INVALID_JSON)),
        ("non-streamed response", &|to| canary::post(settings, to, whole.clone())),
    ];
    let compare = |(name, request)| {
        let ask =
            |side: &mut Side| side.ask(request).map_err(|failure| side.wrong(&format!("{failure} (request: {name})")));
        compare::compare_exact(name, || ask(direct), || ask(proxied))
    };
    requests.into_iter().map(compare).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn engine_is_recognised_by_the_owner_of_its_first_model() {
        let engine = |models| recognised(&models, None);
        assert_eq!(engine(json!({"data": [{"id": "m", "owned_by": "vllm"}]})), Some(Engine::Vllm));
        assert_eq!(engine(json!({"data": []})), None);
    }

    #[test]
    fn advice_names_the_flags_of_the_engine() {
        assert!(advice(Some(Engine::Vllm)).usage.contains("--enable-force-include-usage"));
        assert!(advice(Some(Engine::Sglang)).usage.contains("--stream-response-default-include-usage"));
        assert!(advice(Some(Engine::Vllm)).queue.contains("--enable-per-request-metrics"));
        assert!(advice(None).bypass.contains("127.0.0.1"));
    }
}
