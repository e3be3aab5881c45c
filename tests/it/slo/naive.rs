//! Reference implementation of the default objectives, written only from docs/concepts/objectives.md. Times are seconds
//! as plain numbers.

use tokometer_observe::measure::Record;

/// `good`, `bad: reason` or `excluded: reason` by objective. Empty if the objectives do not cover the request.
pub(super) fn evaluate(record: &Record) -> Vec<(&'static str, String)> {
    if !record.labels.route.generates() {
        return Vec::new();
    }
    let available = available(record);
    let parts = [("ttft", ttft(record)), ("decode_rate", rate(record)), ("stall", stall(record))];
    let worst = parts.iter().map(|(_, stated)| stated).find(|stated| stated.starts_with("bad"));
    let goodput = if available.starts_with("bad") { available.clone() } else { worst.unwrap_or(&available).clone() };
    [("availability", available)].into_iter().chain(parts).chain([("goodput", goodput)]).collect()
}

fn available(record: &Record) -> String {
    let outcome = record.outcome.as_str();
    match outcome {
        "ok" if record.unread => "excluded: unread".to_owned(),
        "ok" => "good".to_owned(),
        "http_4xx" => "excluded: client_error".to_owned(),
        "drained" => "excluded: drained".to_owned(),
        "unobserved" => "excluded: unobserved".to_owned(),
        abort if abort.starts_with("client_abort") => "excluded: client_abort".to_owned(),
        _ => format!("bad: {outcome}"),
    }
}

fn is_stream(record: &Record) -> bool {
    let response_complete = record.response.status.is_some_and(|status| status == 101 || status / 100 == 2);
    if response_complete { record.labels.streaming == Some(true) } else { record.request.stream == Some(true) }
}

fn ttft(record: &Record) -> String {
    let prompt = match (record.tokens.input, record.tokens.cached) {
        (Some(input), cached) if input.source.is_exact() => (input.tokens as f64 - cached.unwrap_or(0) as f64).max(0.0),
        _ => (record.request.bytes / 4) as f64,
    };
    let asked = record.request.targets.as_ref().and_then(|targets| targets.first_token);
    let limit = asked.map_or(2.0 + 0.5 * prompt / 1000.0, |asked| asked.as_secs_f64().clamp(0.1, 600.0));
    let blocked = record.blocked.waiting.as_secs_f64();
    let end_or_token = record.times.first_token.unwrap_or(record.times.ended).as_secs_f64();
    let wait = record.times.requested.map(|requested| (end_or_token - requested.as_secs_f64()).max(0.0));
    let stated = if record.outcome.as_str() == "http_4xx" {
        "excluded: client_error"
    } else if !is_stream(record) {
        "excluded: not_streamed"
    } else if record.times.first_token.is_none() && record.outcome.as_str() == "unobserved" {
        "excluded: unobserved"
    } else if record.times.first_token.is_none() && record.unread {
        "excluded: unread"
    } else if record.times.first_token.is_none() && record.outcome.is_ok() {
        "excluded: no_token"
    } else {
        match (wait, record.times.first_token) {
            (None, _) => "excluded: unknown",
            (Some(wait), Some(_)) if wait <= limit => "good",
            (Some(wait), Some(_)) if wait - blocked <= limit => "excluded: client_limited",
            (Some(_), Some(_)) => "bad: late_first_token",
            (Some(wait), None) if wait - blocked > limit => "bad: no_first_token",
            (Some(_), None) => "excluded: ended_early",
        }
    };
    stated.to_owned()
}

fn rate(record: &Record) -> String {
    let seconds = match (record.times.first_token, record.times.last_token) {
        (Some(first), Some(last)) => last.as_secs_f64() - first.as_secs_f64(),
        _ if is_stream(record) => return "excluded: no_token".to_owned(),
        _ => return "excluded: not_streamed".to_owned(),
    };
    let asked = record.request.targets.as_ref().and_then(|targets| targets.per_token);
    let floor = asked.map_or(20.0, |asked| 1.0 / asked.as_secs_f64().clamp(0.005, 10.0));
    let stated = match record.tokens.output {
        _ if record.unread => "excluded: unread",
        None => "excluded: unknown",
        Some(count) if count.tokens < 16 || seconds < 0.2 => "excluded: too_few_tokens",
        _ if record.request.choices > 1 => "excluded: several_choices",
        _ if record.blocked.total().as_secs_f64() > seconds / 10.0 => "excluded: client_limited",
        Some(_) => match (record.rate.exact, record.rate.at_least) {
            (Some(rate), _) if rate < floor => "bad: slow_decode",
            (Some(_), _) => "good",
            (None, Some(rate)) if rate >= floor => "good",
            (None, Some(_)) => "excluded: unknown",
            (None, None) => "excluded: too_few_tokens",
        },
    };
    stated.to_owned()
}

fn stall(record: &Record) -> String {
    let Some(last) = record.times.last_token else {
        return if is_stream(record) { "excluded: no_token" } else { "excluded: not_streamed" }.to_owned();
    };
    let paused = record.gaps.longest_pause.is_some_and(|pause| pause.as_secs_f64() > 5.0);
    let allowed = record.gaps.usual.map_or(10.0, |usual| (2.0 * usual.as_secs_f64()).max(5.0));
    let broke_off = !record.outcome.is_ok() && record.blocked.total().is_zero() && !record.unread;
    let silent = broke_off && record.times.ended.as_secs_f64() - last.as_secs_f64() > allowed;
    let stated = if paused || silent {
        "bad: stalled"
    } else if record.outcome.as_str() == "unobserved" {
        "excluded: unobserved"
    } else if record.unread {
        "excluded: unread"
    } else {
        "good"
    };
    stated.to_owned()
}
