//! The block `slo`.

use std::collections::HashSet;
use std::time::Duration;

use crate::config::checked::Problems;
use crate::config::checked::size;
use crate::config::checked::spending::is_header;
use crate::config::nearest::nearest;
use crate::config::raw::AppliesTo;
use crate::config::raw::Raw;
use crate::config::raw::Rules;
use tokometer_observe::observer;
use tokometer_telemetry::slo;

/// An objective as written by the user.
struct Written<'a> {
    path: String,
    name: &'a str,
    target_percent: f64,
    applies_to: &'a AppliesTo,
    goal: slo::Goal,
}

/// Checks names, scopes and bounds.
pub(super) fn checked(raw: &Raw, problems: &mut Problems<'_>) -> slo::Settings {
    let of = &raw.slo;
    let written = written(raw);
    let mut names = HashSet::new();
    for one in &written {
        let path = format!("{}.name", one.path);
        if !is_name(one.name, "-_") {
            let message =
                format!("invalid name `{}`; use lowercase letters, digits, `-` and `_`, at most 63", one.name);
            problems.error(&path, message);
        }
        if !names.insert(one.name) {
            problems.error(&path, format!("two objectives have the name `{}`; use unique names", one.name));
        }
    }
    let ms = Duration::from_millis;
    let asked = &of.request_targets;
    for (low, low_key, high, high_key) in [
        (asked.ttft_min_ms, "ttft_min_ms", asked.ttft_max_ms, "ttft_max_ms"),
        (asked.tpot_min_ms, "tpot_min_ms", asked.tpot_max_ms, "tpot_max_ms"),
    ] {
        if low > high {
            let message = format!("{low} is above `{high_key}` ({high}); swap the two values");
            problems.error(&format!("slo.request_targets.{low_key}"), message);
        }
    }
    let tenants = written.iter().any(|one| !one.applies_to.tenants.is_empty());
    if tenants && of.tenant_header.is_none() && !raw.tenants.enabled {
        problems.error(
            "slo.tenant_header",
            "an objective applies to tenants, but no header is set; write the header's name",
        );
    }
    if of.tenant_header.is_some() && raw.tenants.enabled {
        let message = "objectives use the tenant of the block `tenants`; remove this key";
        problems.error("slo.tenant_header", message);
    }
    let objectives = written.iter().map(|one| slo::Objective {
        name: one.name.to_owned(),
        target: one.target_percent / 100.0,
        scope: scope(one, problems),
        goal: one.goal,
    });
    let objectives: Vec<slo::Objective> = objectives.collect();
    let settings = slo::Settings {
        objectives: if of.enabled { objectives } else { Vec::new() },
        models: of.models.clone(),
        max_models: size(raw.telemetry.max_models),
        busy_is_bad: of.busy_is_bad,
        min_tokens: of.min_tokens,
        min_decode: ms(of.min_decode_ms),
        client_limited: of.client_limited_percent / 100.0,
        asked_first_token: ms(asked.ttft_min_ms)..=ms(asked.ttft_max_ms),
        asked_per_token: ms(asked.tpot_min_ms)..=ms(asked.tpot_max_ms),
        rules: rules(&of.rules, problems),
    };
    if of.enabled && raw.observe.min_rate_tokens > of.min_tokens {
        let message =
            "is below `observe.min_rate_tokens`: requests in between have no decode rate and are not evaluated";
        problems.warn("slo.min_tokens", message);
    }
    settings
}

/// Request headers that are read.
pub(super) fn headers(raw: &Raw, problems: &mut Problems<'_>) -> observer::TargetHeaders {
    let tenant = raw.slo.tenant_header.as_deref();
    if let Some(name) = tenant.filter(|name| !is_header(name)) {
        problems.error("slo.tenant_header", format!("invalid header name `{name}`; write one such as x-tenant"));
    }
    let of_objectives = tenant.filter(|_| raw.slo.enabled);
    let of_tenants = raw.tenants.from_headers.iter().map(String::as_str).filter(|_| raw.tenants.enabled);
    let claim = raw.tenants.from_jwt_claim.as_deref().filter(|_| raw.tenants.enabled);
    observer::TargetHeaders {
        speed: raw.slo.enabled && raw.slo.request_targets.enabled,
        tenant: of_objectives.into_iter().chain(of_tenants).map(|name| name.to_ascii_lowercase().into()).collect(),
        claim: claim.map(Into::into),
    }
}

/// All objectives of all kinds, in the order of the blocks.
fn written(raw: &Raw) -> Vec<Written<'_>> {
    let ms = Duration::from_millis;
    let mut all = Vec::new();
    let mut add = |kind: &str, at: usize, name, target_percent, applies_to, goal| {
        all.push(Written { path: format!("slo.{kind}[{at}]"), name, target_percent, applies_to, goal });
    };
    let of = &raw.slo;
    for (at, one) in of.availability.iter().enumerate() {
        add("availability", at, one.name.as_str(), one.target_percent, &one.applies_to, slo::Goal::Availability);
    }
    for (at, one) in of.ttft.iter().enumerate() {
        let per_1k_uncached = ms(one.per_1k_uncached_tokens_ms);
        let goal = slo::Goal::FirstToken { base: ms(one.max_ms), per_1k_uncached };
        add("ttft", at, &one.name, one.target_percent, &one.applies_to, goal);
    }
    for (at, one) in of.decode_rate.iter().enumerate() {
        let goal = slo::Goal::DecodeRate { floor: one.min_tokens_per_second };
        add("decode_rate", at, &one.name, one.target_percent, &one.applies_to, goal);
    }
    for (at, one) in of.stall.iter().enumerate() {
        let goal = slo::Goal::Stall { longest: ms(one.max_gap_ms) };
        add("stall", at, &one.name, one.target_percent, &one.applies_to, goal);
    }
    for (at, one) in of.goodput.iter().enumerate() {
        add("goodput", at, &one.name, one.target_percent, &one.applies_to, slo::Goal::Goodput);
    }
    all
}

fn scope(one: &Written<'_>, problems: &mut Problems<'_>) -> slo::Scope {
    let mut routes = Vec::new();
    for (index, name) in one.applies_to.routes.iter().enumerate() {
        match slo::Scope::route(name) {
            Some(route) => routes.push(route),
            None => {
                let hint = nearest(name, slo::Scope::routes()).map(|near| format!("did you mean `{near}`?"));
                let hint = hint
                    .unwrap_or_else(|| format!("write one of {}", slo::Scope::routes().collect::<Vec<_>>().join(", ")));
                let path = format!("{}.applies_to.routes[{index}]", one.path);
                problems.error(&path, format!("unknown route `{name}`; {hint}"));
            }
        }
    }
    for (index, name) in one.applies_to.models.iter().enumerate() {
        if name.is_empty() || name.trim_end_matches('*').contains('*') || name.ends_with("**") {
            let path = format!("{}.applies_to.models[{index}]", one.path);
            problems.error(&path, format!("invalid model name `{name}`; `*` is allowed only at the end"));
        }
    }
    slo::Scope { models: one.applies_to.models.clone(), routes, tenants: one.applies_to.tenants.clone() }
}

fn rules(raw: &Rules, problems: &mut Problems<'_>) -> slo::RuleSettings {
    if !is_name(&raw.service, "-_") {
        let message = format!("invalid name `{}`; use lowercase letters, digits, `-` and `_`, at most 63", raw.service);
        problems.error("slo.rules.service", message);
    }
    for (index, label) in raw.group_by.iter().enumerate() {
        let begins = label.starts_with(|c: char| c.is_ascii_alphabetic());
        if !begins || !label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') || label == "slo" {
            let path = format!("slo.rules.group_by[{index}]");
            problems.error(&path, format!("invalid label `{label}`; write one such as namespace or model"));
        }
    }
    for (key, text) in [("runbook_url", Some(&raw.runbook_url)), ("dashboard_url", raw.dashboard_url.as_ref())] {
        if text.is_some_and(|text| text.is_empty() || text.contains(char::is_whitespace) || text.contains("{{")) {
            problems.error(&format!("slo.rules.{key}"), "invalid URL; write one such as https://host/path");
        }
    }
    slo::RuleSettings {
        service: raw.service.clone(),
        period_days: u32::try_from(raw.period_days).unwrap_or(u32::MAX),
        min_bad_events: u32::try_from(raw.min_bad_events).unwrap_or(u32::MAX),
        group_by: raw.group_by.clone(),
        runbook_url: raw.runbook_url.trim_end_matches('/').to_owned(),
        dashboard_url: raw.dashboard_url.clone(),
    }
}

pub(super) fn is_name(name: &str, besides: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || besides.contains(c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 63 && name.chars().all(plain) && ends(name.chars().next()) && ends(name.chars().next_back())
}
