//! The blocks `slo`, `tenants`, `prices` and `budgets`.

use std::collections::HashSet;
use std::path::Path;

use crate::config::checked::problems::{Problems, is_name, unknown_route};
use crate::config::raw::{AppliesTo, Budget, Raw, Tenants};
use tokometer_observe::observer;
use tokometer_telemetry::{accounting, slo};

/// An objective as written by the user.
struct Written<'a> {
    path: String,
    name: &'a str,
    target_percent: f64,
    applies_to: &'a AppliesTo,
    goal: slo::Goal,
}

/// Checks names, scopes and bounds.
pub(super) fn objectives(raw: &Raw, problems: &mut Problems<'_>) -> slo::Settings {
    let of = &raw.slo;
    let written = written(raw);
    let mut names = HashSet::new();
    for one in &written {
        problems.unique_name(&format!("{}.name", one.path), "objectives", one.name, &mut names);
    }
    let source = !raw.tenants.headers().is_empty() || raw.tenants.from_jwt_claim.is_some();
    if by_tenant(raw) && !source && !raw.tenants.enabled {
        let message = "an objective applies to tenants, but nothing names the tenant; write a header such as x-tenant";
        problems.error("tenants.from_headers", message);
    }
    let objectives = written.iter().map(|one| slo::Objective {
        name: one.name.to_owned(),
        target: one.target_percent / 100.0,
        scope: scope(one, problems),
        goal: one.goal,
    });
    let objectives: Vec<slo::Objective> = objectives.collect();
    if of.enabled && raw.observe.observer.min_rate_tokens > of.shared.min_tokens {
        let message =
            "is below `observe.min_rate_tokens`: requests in between have no decode rate and are not evaluated";
        problems.warn("slo.min_tokens", message);
    }
    reading(of.shared.reading, problems);
    rules(&of.shared.rules, problems);
    let objectives = if of.enabled { objectives } else { Vec::new() };
    slo::Settings { objectives, max_models: raw.telemetry.max_models, ..of.shared.clone() }
}

/// True if an objective applies to some tenants only.
fn by_tenant(raw: &Raw) -> bool {
    raw.slo.enabled && written(raw).iter().any(|one| !one.applies_to.tenants.is_empty())
}

/// Selects the request headers to read.
pub(super) fn headers(raw: &Raw) -> observer::TargetHeaders {
    let tenants = Some(&raw.tenants).filter(|tenants| tenants.enabled || by_tenant(raw));
    let lower = |name: &String| name.to_ascii_lowercase().into();
    observer::TargetHeaders {
        speed: raw.slo.enabled && raw.slo.request_targets.enabled,
        tenant: tenants.map(|tenants| tenants.headers().iter().map(lower).collect()).unwrap_or_default(),
        claim: tenants.and_then(|tenants| tenants.from_jwt_claim.as_deref()).map(Into::into),
    }
}

/// All objectives of all kinds, in the order of the blocks.
fn written(raw: &Raw) -> Vec<Written<'_>> {
    let mut all = Vec::new();
    let mut add = |kind: &str, at: usize, name, target_percent, applies_to, goal| {
        all.push(Written { path: format!("slo.{kind}[{at}]"), name, target_percent, applies_to, goal });
    };
    let of = &raw.slo;
    for (at, one) in of.availability.iter().enumerate() {
        add("availability", at, one.name.as_str(), one.target_percent, &one.applies_to, slo::Goal::Availability);
    }
    for (at, one) in of.ttft.iter().enumerate() {
        let goal = slo::Goal::FirstToken { base: one.max.0, per_1k_uncached: one.per_1k_uncached_tokens.0 };
        add("ttft", at, &one.name, one.target_percent, &one.applies_to, goal);
    }
    for (at, one) in of.decode_rate.iter().enumerate() {
        let goal = slo::Goal::DecodeRate { floor: one.min_tokens_per_second };
        add("decode_rate", at, &one.name, one.target_percent, &one.applies_to, goal);
    }
    for (at, one) in of.stall.iter().enumerate() {
        let goal = slo::Goal::Stall { longest: one.max_gap.0 };
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
            None => problems.error(&format!("{}.applies_to.routes[{index}]", one.path), unknown_route(name)),
        }
    }
    for (index, name) in one.applies_to.models.iter().enumerate() {
        pattern(&format!("{}.applies_to.models[{index}]", one.path), name, problems);
    }
    slo::Scope { models: one.applies_to.models.clone(), routes, tenants: one.applies_to.tenants.clone() }
}

fn reading(raw: slo::ReadingSpeed, problems: &mut Problems<'_>) {
    let rates = [("slow", raw.slow), ("comfortable", raw.comfortable), ("fast", raw.fast)];
    for (one, next) in rates.iter().zip(rates.iter().skip(1)) {
        if one.1 >= next.1 {
            let message = format!("must be above `{}` ({} tokens per second)", one.0, one.1);
            problems.error(&format!("slo.reading.{}", next.0), message);
        }
    }
}

fn rules(raw: &slo::RuleSettings, problems: &mut Problems<'_>) {
    if !is_name(&raw.service) {
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
    for (key, text) in [("runbook_url", &raw.runbook_url), ("dashboard_url", &raw.dashboard_url)] {
        let is_url = |text: &String| {
            ["http://", "https://"].iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme))
                && !text.contains(char::is_whitespace)
                && !text.contains("{{")
        };
        if text.as_ref().is_some_and(|text| !is_url(text)) {
            problems.error(&format!("slo.rules.{key}"), "invalid URL; write one such as https://host/path");
        }
    }
}

/// Headers that cannot identify a tenant: the whole value is a secret, and not even a hash of it may be stored.
const SECRET: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "set-cookie"];

/// Headers that contain an API key: they can identify a tenant, but only a hash of the value may be used as the label.
const KEYS: [&str; 3] = ["x-api-key", "api-key", "x-goog-api-key"];

/// Maximum bytes of a tenant label.
const MAX_LABEL_BYTES: usize = 128;

/// Checks names, patterns, numbers and combinations of keys.
pub(super) fn accounting(raw: &Raw, problems: &mut Problems<'_>) -> accounting::Settings {
    accounting::Settings {
        tenants: tenants(&raw.tenants, problems),
        prices: prices(&raw.prices, problems),
        budgets: budgets(raw, problems),
        models: raw.slo.shared.models.clone(),
        max_models: raw.telemetry.max_models,
    }
}

fn tenants(raw: &Tenants, problems: &mut Problems<'_>) -> Option<accounting::Tenants> {
    for (index, name) in raw.headers().iter().enumerate() {
        let path = format!("tenants.from_headers[{index}]");
        let lower = name.to_ascii_lowercase();
        if !is_header(name) {
            problems.error(&path, format!("invalid header name `{name}`; write one such as x-tenant"));
        } else if SECRET.contains(&lower.as_str()) {
            let message =
                format!("`{name}` contains secrets; use another header, or a claim of the token in `from_jwt_claim`");
            problems.error(&path, message);
        } else if KEYS.contains(&lower.as_str()) && raw.counted.form == accounting::TenantForm::Plain {
            problems.error(
                &path,
                format!("`{name}` contains keys, which `label: plain` would expose; write `label: hash`"),
            );
        }
    }
    if raw.from_jwt_claim.as_deref() == Some("") {
        problems.error("tenants.from_jwt_claim", "the claim is empty; write one such as sub, or null for none");
    }
    if raw.enabled && raw.headers().is_empty() && raw.from_jwt_claim.is_none() {
        let message =
            "no source of the tenant is set; write a header such as x-tenant here, or a claim in `from_jwt_claim`";
        problems.error("tenants.from_headers", message);
    }
    let counted = &raw.counted;
    let plain = counted.form == accounting::TenantForm::Plain;
    let key_file = counted.hash_key_file.as_deref().and_then(Path::to_str);
    problems.not_empty("tenants.hash_key_file", key_file, "write the path of a file, or null for no key");
    if counted.hash_key_file.is_some() && plain {
        problems.warn("tenants.hash_key_file", "has no effect with `label: plain`");
    }
    for (stated, label) in &counted.names {
        let readable = label.chars().all(|c| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric());
        if label.trim().is_empty() || !readable || label.len() > MAX_LABEL_BYTES {
            let message = format!(
                "invalid label `{label}`; use letters, digits, spaces and ASCII punctuation, at most {MAX_LABEL_BYTES} bytes"
            );
            problems.error(&format!("tenants.names.{stated}"), message);
        }
    }
    if raw.enabled && counted.only_named && counted.names.is_empty() {
        problems
            .error("tenants.only_named", "`names` is empty, so all tenants would be `other`; add entries to `names`");
    }
    if raw.enabled && !plain && counted.hash_key_file.is_none() {
        let message = "is not set: a guessed tenant name can be confirmed by its hash; set it to a file with a key";
        problems.warn("tenants.hash_key_file", message);
    }
    let hash_key_file = counted.hash_key_file.clone().filter(|_| !plain);
    raw.enabled.then(|| accounting::Tenants { hash_key_file, ..counted.clone() })
}

fn prices(raw: &accounting::Prices, problems: &mut Problems<'_>) -> Option<accounting::Prices> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if raw.currency.is_empty() || raw.currency.len() > 16 || !raw.currency.chars().all(is_word) {
        let message =
            format!("invalid currency `{}`; write a word such as USD or credits, at most 16 characters", raw.currency);
        problems.error("prices.currency", message);
    }
    if raw.currency == "tokens" {
        problems.error("prices.currency", "`tokens` is the unit of token budgets; write a word such as USD or credits");
    }
    for (index, price) in raw.models.iter().enumerate() {
        let path = |key: &str| format!("prices.models[{index}].{key}");
        pattern(&path("model"), &price.model, problems);
        let covered = raw.models.iter().take(index).any(|before| covers(&before.model, &price.model));
        if covered {
            problems.warn(&path("model"), format!("`{}` is never used: an entry above matches it", price.model));
        }
    }
    (!raw.models.is_empty()).then(|| raw.clone())
}

fn budgets(raw: &Raw, problems: &mut Problems<'_>) -> Vec<accounting::Budget> {
    let mut names = HashSet::new();
    let mut checked = Vec::with_capacity(raw.budgets.len());
    for (index, budget) in raw.budgets.iter().enumerate() {
        let path = |key: &str| format!("budgets[{index}].{key}");
        problems.unique_name(&path("name"), "budgets", &budget.name, &mut names);
        for (at, model) in budget.models.iter().enumerate() {
            pattern(&format!("budgets[{index}].models[{at}]"), model, problems);
        }
        if !budget.tenants.is_empty() && !raw.tenants.enabled {
            let message = "the budget applies to tenants, but tenants are off; set `tenants.enabled: true`";
            problems.error(&path("tenants"), message);
        }
        checked.extend(limit(raw, budget, &path, problems).map(|limit| accounting::Budget {
            name: budget.name.clone(),
            limit,
            models: budget.models.clone(),
            tenants: budget.tenants.clone(),
        }));
    }
    checked
}

fn limit(
    raw: &Raw,
    budget: &Budget,
    path: &dyn Fn(&str) -> String,
    problems: &mut Problems<'_>,
) -> Option<accounting::Limit> {
    let (key, message) = match (budget.tokens_per_day, budget.cost_per_day) {
        (Some(tokens), None) => return Some(accounting::Limit::Tokens(tokens)),
        (None, Some(cost)) if !raw.prices.models.is_empty() => return Some(accounting::Limit::Cost(cost)),
        (None, Some(_)) => ("cost_per_day", "no prices are set; add some to `prices.models`"),
        (Some(_), Some(_)) => {
            ("cost_per_day", "a budget has one limit; remove this or `tokens_per_day`, and define a second budget")
        }
        (None, None) => ("tokens_per_day", "the budget has no limit; set this or `cost_per_day`"),
    };
    problems.error(&path(key), message);
    None
}

/// Checks a model name, in which `*` is allowed only at the end.
fn pattern(path: &str, name: &str, problems: &mut Problems<'_>) {
    let rest = name.strip_suffix('*').unwrap_or(name);
    if name.is_empty() || rest.contains('*') {
        problems.error(path, format!("invalid model name `{name}`; `*` is allowed only at the end"));
    }
}

/// True if the first pattern matches every model that the second one matches.
fn covers(pattern: &str, other: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begin) => other.trim_end_matches('*').starts_with(begin),
        None => pattern == other,
    }
}

/// True for a valid header name.
fn is_header(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}
