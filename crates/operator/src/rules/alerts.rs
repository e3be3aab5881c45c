//! Alerts that need no objective: hanging or unreachable engines, problems of tokometer itself, and daily budgets.

use crate::rules::document::DAY;
use crate::rules::document::Group;
use crate::rules::document::Rule;
use crate::rules::document::STEP;
use crate::rules::objective::series;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::slo::Settings;

/// Labels that identify a process. Outside of a cluster only `instance` is set.
const POD: &str = "namespace, pod, instance";

/// The group of alerts on engines, the group on tokometer, and that of the daily budgets.
pub(super) fn groups(settings: &Settings) -> Vec<Group> {
    vec![
        Group::new("tokometer-engine", "30s", engine(settings)),
        Group::new("tokometer-self", "30s", own(settings)),
        Group::new("tokometer-budgets", STEP, budgets(settings)),
    ]
}

fn engine(settings: &Settings) -> Vec<Rule> {
    let alert = |name, severity| Rule::alert(settings, name, severity);
    let in_flight = series(Id::InFlight);
    let live = series(Id::LiveTokens);
    let phase = Key::Phase.label();
    let waiting = format!("sum by ({POD}) ({in_flight}{{{phase}=\"waiting_first_token\"}})");
    let requests = series(Id::Requests);
    let outcome = Key::Outcome.label();
    let ended = |matchers: &str, window| format!("sum by ({POD}) (increase({requests}{matchers}[{window}]))");
    let truncated = format!("{{{outcome}=\"truncated\"}}");
    let left = format!("{{{outcome}=~\"client_abort_.*\"}}");
    let (failures, opened) = (series(Id::ConnectFailures), series(Id::ConnectionsOpened));
    let failed = format!("sum by ({POD}) (increase({failures}[2m]))");
    vec![
        alert("LLMTokensStalled", "critical")
            .pending("2m")
            .when(format!("sum by ({POD}) ({in_flight}) > 0\nunless\nsum by ({POD}) (rate({live}[2m])) > 0"))
            .about(
                "Requests are open, and no token comes",
                "{{ $value }} requests are open at {{ $labels.pod }}{{ $labels.instance }}, and no token came \
                 for more than 2 minutes. An engine that hangs may still call itself healthy.",
            ),
        alert("LLMQueueGrowing", "warning")
            .pending("5m")
            .when(format!("min_over_time({waiting}[10m:30s]) >= 5\nand\nderiv({waiting}[10m:30s]) > 0"))
            .about(
                "More and more requests wait for their first token",
                "At least {{ $value }} requests waited for their first token at {{ $labels.pod }}{{ \
                 $labels.instance }} in the last 10 minutes, and they become more.",
            ),
        alert("LLMPodSlowOutlier", "warning").pending("15m").when(outlier()).about(
            "One server is much slower than others with the same model",
            "Half of the streams of {{ $labels.pod }}{{ $labels.instance }} have less than {{ $value | \
                 humanize }} tokens per second: less than 0.7 of what the servers of this model have \
                 together.",
        ),
        alert("LLMTruncatedStreams", "warning")
            .pending("5m")
            .when(format!(
                "{} > 0.01 * {}\nand\n{} >= 5",
                ended(&truncated, "15m"),
                ended("", "15m"),
                ended(&truncated, "15m")
            ))
            .about(
                "Streams end before their end mark",
                "{{ $value | humanize }} streams of the last 15 minutes, more than 1 % of all exchanges, \
                 ended without their end mark.",
            ),
        alert("LLMUpstreamDown", "critical")
            .pending("1m")
            .when(format!("{failed} > 0.9 * sum by ({POD}) (increase({opened}[2m]))\nand\n{failed} >= 3"))
            .about(
                "The server cannot be reached",
                "{{ $value | humanize }} connections of the last 2 minutes, nine of ten or more, found no server.",
            ),
        alert("LLMClientDisconnectsHigh", "warning")
            .pending("15m")
            .when(format!("{} > 0.2 * {}\nand\n{} >= 10", ended(&left, "15m"), ended("", "15m"), ended(&left, "15m")))
            .about(
                "Clients give up",
                "{{ $value | humanize }} exchanges of the last 15 minutes, more than a fifth, ended because \
                 the client went away.",
            ),
    ]
}

/// The median decode rate of a server compared with that of all servers of its model, for classic and native
/// histograms.
fn outlier() -> String {
    let rate = series(Id::DecodeRate);
    let model = Key::ResponseModel.label();
    let one = format!("{POD}, {model}");
    let all = format!("namespace, {model}");
    let compare = |median: &dyn Fn(&str) -> String, count: String| {
        format!(
            "(\n  {} < on ({all}) group_left () (0.7 * {})\n  and on ({one})\n  {count} >= 10\n)",
            median(&one),
            median(&all)
        )
    };
    let classic = |by: &str| format!("histogram_quantile(0.5, sum by ({by}, le) (rate({rate}_bucket[15m])))");
    let native = |by: &str| format!("histogram_quantile(0.5, sum by ({by}) (rate({rate}[15m])))");
    let count = format!("sum by ({one}) (increase({rate}_count[15m]))");
    let native_count = format!("histogram_count(sum by ({one}) (increase({rate}[15m])))");
    format!("{}\nor\n{}", compare(&classic, count), compare(&native, native_count))
}

fn own(settings: &Settings) -> Vec<Rule> {
    let alert = |name, severity| Rule::alert(settings, name, severity);
    let info = series(Id::BuildInfo);
    let ended = |requests: &str| format!("sum by (namespace, pod) (increase({requests}[15m]))");
    let lost = |id| format!("sum by ({POD}) (increase({}[15m])) > 0", series(id));
    let missing = format!("kube_pod_labels{{label_tokometer_inject=\"true\"}}\nunless on (namespace, pod)\n{info}");
    let (detached, reason) = (series(Id::ObserverDetached), Key::Reason.label());
    let detached = format!("sum by ({POD}, {reason}) (increase({detached}{{{reason}!=\"upgraded\"}}[15m])) >= 5");
    let (started, lag) = (series(Id::StartTime), series(Id::EventLoopLag));
    vec![
        alert("LLMSidecarDown", "critical")
            .pending("5m")
            .when(format!("up == 0\nand on (job, instance)\nlast_over_time({info}[1h])"))
            .about(
                "A tokometer that was there is not scraped any more",
                "{{ $labels.instance }} was scraped within the last hour and does not answer now. Where \
                 clients reach the server through it, they may not reach it.",
            ),
        alert("LLMSidecarMissing", "warning").pending("10m").when(missing).about(
            "A pod that should have a tokometer has none",
            "The pod {{ $labels.pod }} has the label tokometer/inject=true, and no tokometer is scraped in it.",
        ),
        alert("LLMSidecarBypassed", "warning")
            .pending("15m")
            .when(format!("{}\n> 5 + 1.1 * {}", ended("vllm:request_success_total"), ended(&series(Id::Requests))))
            .about(
                "The server answers more requests than pass tokometer",
                "vLLM in {{ $labels.pod }} ended {{ $value | humanize }} requests in the last 15 minutes, a \
                 tenth more than passed: some clients reach it past tokometer, and no figure knows of them.",
            ),
        alert("LLMSidecarTelemetryDropped", "warning")
            .pending("10m")
            .when(format!("{}\nor\n{}", lost(Id::SpansDropped), lost(Id::ExportsFailed)))
            .about(
                "Spans or metrics do not reach the collector",
                "{{ $value | humanize }} spans or exports of the last 15 minutes were lost.",
            ),
        alert("LLMSidecarParseFallback", "warning").pending("5m").when(detached).about(
            "Connections pass without being read",
            "{{ $value | humanize }} connections of the last 15 minutes are relayed without being read, \
                 because of {{ $labels.reason }}.",
        ),
        alert("LLMSidecarRestarting", "warning")
            .pending("1m")
            .when(format!(
                "increase(kube_pod_init_container_status_restarts_total{{container=\"tokometer\"}}[1h]) > 2\nor\n\
                 changes({started}[1h]) > 2\nand on (job, instance)\n{info}"
            ))
            .about(
                "A tokometer restarts again and again",
                "It began anew {{ $value | humanize }} times within an hour; every restart ends the streams \
                 that pass it.",
            ),
        alert("LLMSidecarOverheadHigh", "warning")
            .pending("10m")
            .when(format!("quantile_over_time(0.99, {lag}[10m]) > 0.005"))
            .about(
                "A tokometer is late with its work",
                "In one of a hundred looks its data path was late by {{ $value | humanizeDuration }} or more: \
                 it has too little CPU, and tokens wait for it.",
            ),
    ]
}

/// Share of the budget below which no forecast is made: early in the day the rate of one hour predicts little.
const MIN_USED: &str = "0.1";

const STEPS: &str = "tokometer:budget_spent:step5m";
const TODAY: &str = "tokometer:budget_spent:today";
const BY_MIDNIGHT: &str = "tokometer:budget_spent:by_midnight";

/// Label value and remainder: the number of the day since 1970 is even or odd.
const DAYS: [(&str, u8); 2] = [("even", 0), ("odd", 1)];

/// Rules of the daily budgets: use since midnight (UTC), forecast for the next midnight, and alerts on both. Without
/// budgets their series stay empty.
///
/// PromQL has no window from midnight to now, and a counter restarts with its process. Use is therefore recorded per
/// step, with even and odd days in separate series: of the last 24 hours, the steps of today are all in one series.
fn budgets(settings: &Settings) -> Vec<Rule> {
    // A budget applies to all its models together.
    let apart: Vec<&str> =
        settings.rules.group_by.iter().map(String::as_str).filter(|label| *label != Key::Model.label()).collect();
    let by = apart.iter().copied().chain([Key::Budget.label()]).collect::<Vec<&str>>().join(", ");
    let (spent, limit) = (series(Id::BudgetSpent), format!("max by ({by}) ({})", series(Id::BudgetLimit)));
    let on_day = |number: u8| format!("and on ()\n(floor(vector(time()) / {DAY}) % 2 == {number})");
    let mut rules: Vec<Rule> = Vec::new();
    for (day, number) in DAYS {
        let expr = format!("sum by ({by}) (increase({spent}[{STEP}]))\n{}", on_day(number));
        rules.push(Rule::record(STEPS, expr, &[("day", day)]));
    }
    let today = DAYS.map(|(day, number)| {
        format!(
            "(\n  sum without (day) (sum_over_time({STEPS}{{day=\"{day}\"}}[1d]))\n  {}\n)",
            on_day(number).replace('\n', "\n  ")
        )
    });
    rules.push(Rule::record(TODAY, today.join("\nor\n"), &[]));
    let left = format!("({DAY} - vector(time()) % {DAY})");
    let expr = format!("{TODAY}\n+\nsum by ({by}) (rate({spent}[1h])) * on () group_left () {left}");
    rules.push(Rule::record(BY_MIDNIGHT, expr, &[]));

    let whose: String = apart.iter().map(|label| format!(" {label}={{{{ $labels.{label} }}}}")).collect();
    let service = &settings.rules.service;
    let budget_alert = |name: &str, expr: String, what: &str, description: &str| {
        let summary = format!("{service}: budget {{{{ $labels.budget }}}} {what},{whose}");
        Rule::alert(settings, name, "warning").when(expr).about(&summary, description)
    };
    let of_limit = format!(
        "{{{{ with printf `{}{{{}=%q}}` $labels.budget | query }}}}{{{{ . | first | value | humanize }}}}\
         {{{{ end }}}}",
        series(Id::BudgetLimit),
        Key::Budget.label(),
    );
    rules.push(
        budget_alert(
            "LLMTokenBudgetBurn",
            format!(
                "{BY_MIDNIGHT} > on ({by}) {limit}\nand on ({by})\n{TODAY} >= on ({by}) ({MIN_USED} * {limit})\n\
             unless on ({by})\n{TODAY} >= on ({by}) {limit}"
            ),
            "will be used up today",
            &format!(
                "At the rate of the last hour {{{{ $value | humanize }}}} will be used by midnight (UTC), and \
                 {of_limit} may be."
            ),
        )
        .pending("15m"),
    );
    rules.push(budget_alert(
        "LLMTokenBudgetExhausted",
        format!("{TODAY} >= on ({by}) {limit}"),
        "is used up",
        &format!("{{{{ $value | humanize }}}} was used since midnight (UTC), and {of_limit} may be."),
    ));
    rules
}
