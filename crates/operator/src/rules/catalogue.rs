//! Alerts that need no objective: hanging or unreachable engines, and problems of tokometer itself.

use crate::rules::budget::annotations;
use crate::rules::file::Group;
use crate::rules::file::Rule;
use crate::rules::file::map;
use crate::rules::names::series;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::slo::Settings;

/// Labels that identify a process. Outside of a cluster only `instance` is set.
const POD: &str = "namespace, pod, instance";

/// The group of alerts on engines, and the group on tokometer.
pub(super) fn groups(settings: &Settings) -> Vec<Group> {
    let group = |name: &str, alerts: Vec<Alert>| Group {
        name: name.to_owned(),
        interval: "30s".to_owned(),
        rules: alerts.into_iter().map(|alert| alert.rule(settings)).collect(),
    };
    vec![group("tokometer-engine", engine()), group("tokometer-self", own())]
}

struct Alert {
    name: &'static str,
    severity: &'static str,
    pending: &'static str,
    expr: String,
    summary: &'static str,
    description: &'static str,
}

impl Alert {
    fn rule(self, settings: &Settings) -> Rule {
        Rule {
            alert: Some(self.name.to_owned()),
            expr: self.expr,
            pending: Some(self.pending.to_owned()),
            labels: map(&[("severity", self.severity), ("service", &settings.rules.service)]),
            annotations: annotations(settings, self.name, self.summary, self.description),
            ..Rule::default()
        }
    }
}

fn engine() -> Vec<Alert> {
    let in_flight = series(Id::InFlight);
    let live = series(Id::LiveTokens);
    let phase = Key::Phase.label();
    let waiting = format!("sum by ({POD}) ({in_flight}{{{phase}=\"waiting_first_token\"}})");
    let exchanges = series(Id::Exchanges);
    let outcome = Key::Outcome.label();
    let ended = |matchers: &str, window| format!("sum by ({POD}) (increase({exchanges}{matchers}[{window}]))");
    let truncated = format!("{{{outcome}=\"truncated\"}}");
    let left = format!("{{{outcome}=~\"client_abort_.*\"}}");
    let (failures, opened) = (series(Id::ConnectFailures), series(Id::ConnectionsOpened));
    let failed = format!("sum by ({POD}) (increase({failures}[2m]))");
    vec![
        Alert {
            name: "LLMTokensStalled",
            severity: "critical",
            pending: "2m",
            expr: format!("sum by ({POD}) ({in_flight}) > 0\nunless\nsum by ({POD}) (rate({live}[2m])) > 0"),
            summary: "Requests are open, and no token comes",
            description: "{{ $value }} requests are open at {{ $labels.pod }}{{ $labels.instance }}, and no token came for more \
                          than 2 minutes. An engine that hangs may still call itself healthy.",
        },
        Alert {
            name: "LLMQueueGrowing",
            severity: "warning",
            pending: "5m",
            expr: format!("min_over_time({waiting}[10m:30s]) >= 5\nand\nderiv({waiting}[10m:30s]) > 0"),
            summary: "More and more requests wait for their first token",
            description: "At least {{ $value }} requests waited for their first token at {{ $labels.pod }}{{ $labels.instance }} \
                          in the last 10 minutes, and they become more.",
        },
        Alert {
            name: "LLMPodSlowOutlier",
            severity: "warning",
            pending: "15m",
            expr: outlier(),
            summary: "One server is much slower than others with the same model",
            description: "Half of the streams of {{ $labels.pod }}{{ $labels.instance }} have less than {{ $value | humanize }} \
                          tokens per second: less than 0.7 of what the servers of this model have together.",
        },
        Alert {
            name: "LLMTruncatedStreams",
            severity: "warning",
            pending: "5m",
            expr: format!(
                "{} > 0.01 * {}\nand\n{} >= 5",
                ended(&truncated, "15m"),
                ended("", "15m"),
                ended(&truncated, "15m")
            ),
            summary: "Streams end before their end mark",
            description: "{{ $value | humanize }} streams of the last 15 minutes, more than 1 % of all exchanges, ended without \
                          their end mark.",
        },
        Alert {
            name: "LLMUpstreamDown",
            severity: "critical",
            pending: "1m",
            expr: format!("{failed} > 0.9 * sum by ({POD}) (increase({opened}[2m]))\nand\n{failed} >= 3"),
            summary: "The server cannot be reached",
            description: "{{ $value | humanize }} connections of the last 2 minutes, nine of ten or more, found no server.",
        },
        Alert {
            name: "LLMClientDisconnectsHigh",
            severity: "warning",
            pending: "15m",
            expr: format!("{} > 0.2 * {}\nand\n{} >= 10", ended(&left, "15m"), ended("", "15m"), ended(&left, "15m")),
            summary: "Clients give up",
            description: "{{ $value | humanize }} exchanges of the last 15 minutes, more than a fifth, ended because the client \
                          went away.",
        },
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

fn own() -> Vec<Alert> {
    let info = series(Id::BuildInfo);
    let exchanges = series(Id::Exchanges);
    let (dropped, failed) = (series(Id::SpansDropped), series(Id::ExportsFailed));
    let (detached, reason) = (series(Id::ObserverDetached), Key::Reason.label());
    let (started, lag) = (series(Id::StartTime), series(Id::EventLoopLag));
    vec![
        Alert {
            name: "LLMSidecarDown",
            severity: "critical",
            pending: "5m",
            expr: format!("up == 0\nand on (job, instance)\nlast_over_time({info}[1h])"),
            summary: "A tokometer that was there is not scraped any more",
            description: "{{ $labels.instance }} was scraped within the last hour and does not answer now. Where clients reach \
                          the server through it, they may not reach it.",
        },
        Alert {
            name: "LLMSidecarMissing",
            severity: "warning",
            pending: "10m",
            expr: format!("kube_pod_labels{{label_tokometer_inject=\"true\"}}\nunless on (namespace, pod)\n{info}"),
            summary: "A pod that should have a tokometer has none",
            description: "The pod {{ $labels.pod }} has the label tokometer/inject=true, and no tokometer is scraped in it.",
        },
        Alert {
            name: "LLMSidecarBypassed",
            severity: "warning",
            pending: "15m",
            expr: format!(
                "sum by (namespace, pod) (increase(vllm:request_success_total[15m]))\n> 5 + 1.1 * sum by (namespace, pod) \
                 (increase({exchanges}[15m]))"
            ),
            summary: "The server answers more requests than pass tokometer",
            description: "vLLM in {{ $labels.pod }} ended {{ $value | humanize }} requests in the last 15 minutes, a tenth more \
                          than passed: some clients reach it past tokometer, and no figure knows of them.",
        },
        Alert {
            name: "LLMSidecarTelemetryDropped",
            severity: "warning",
            pending: "10m",
            expr: format!(
                "sum by ({POD}) (increase({dropped}[15m])) > 0\nor\nsum by ({POD}) (increase({failed}[15m])) > 0"
            ),
            summary: "Spans or metrics do not reach the collector",
            description: "{{ $value | humanize }} spans or exports of the last 15 minutes were lost.",
        },
        Alert {
            name: "LLMSidecarParseFallback",
            severity: "warning",
            pending: "5m",
            expr: format!("sum by ({POD}, {reason}) (increase({detached}{{{reason}!=\"upgraded\"}}[15m])) >= 5"),
            summary: "Connections pass without being read",
            description: "{{ $value | humanize }} connections of the last 15 minutes are relayed without being read, because of \
                          {{ $labels.reason }}.",
        },
        Alert {
            name: "LLMSidecarRestarting",
            severity: "warning",
            pending: "1m",
            expr: format!(
                "increase(kube_pod_init_container_status_restarts_total{{container=\"tokometer\"}}[1h]) > 2\nor\n\
                 changes({started}[1h]) > 2\nand on (job, instance)\n{info}"
            ),
            summary: "A tokometer restarts again and again",
            description: "It began anew {{ $value | humanize }} times within an hour; every restart ends the streams that pass it.",
        },
        Alert {
            name: "LLMSidecarOverheadHigh",
            severity: "warning",
            pending: "10m",
            expr: format!("quantile_over_time(0.99, {lag}[10m]) > 0.005"),
            summary: "A tokometer is late with its work",
            description: "In one of a hundred looks its data path was late by {{ $value | humanizeDuration }} or more: it has too \
                          little CPU, and tokens wait for it.",
        },
    ]
}
