//! Sidecar health: tokometer's own resource use, parsing success, and delivery of its telemetry.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Target;
use crate::dashboards::promql::CHOSEN;
use crate::dashboards::promql::Label;
use crate::dashboards::promql::POD;
use crate::dashboards::promql::POD_LEGEND;
use crate::dashboards::promql::growth;
use crate::dashboards::promql::is_not;
use crate::dashboards::promql::max;
use crate::dashboards::promql::series;
use crate::dashboards::promql::sum;
use crate::dashboards::promql::total;
use crate::dashboards::viz;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

const KUBERNETES: &str = "only with kube-state-metrics or cAdvisor";
const SPANS: &str = "only where the engine's spans are received";
const OTLP: &str = "only with an OTLP endpoint";

/// Matchers of the tokometer containers.
const CONTAINER: &str = r#"container="tokometer",namespace=~"$namespace",pod=~"$pod""#;

pub(super) fn board() -> Board {
    Board {
        uid: boards::SIDECAR,
        title: "Tokometer / Sidecar health",
        description: "What tokometer itself costs, how much of the traffic it understands, and whether its telemetry arrives.",
        by_objective: false,
        rows: vec![
            Row::open("Now", vec![down(), lag_now(), memory_now(), unread_now(), lost_now()]),
            Row::open("Cost", vec![lag(), cpu(), memory()]),
            Row::open("What is understood", vec![detached(), sources(), bodies(), folded()]),
            Row::open("Telemetry", vec![exports(), spans(), kept(), engine_pages()]),
            Row::open("Process", vec![connections(), descriptors(), restarts(), versions()]),
            Row::folded("From Kubernetes", vec![throttling(), container_restarts()]),
            Row::folded("Spans of the engine", vec![received(), dropped(), joins(), waiting()]),
        ],
    }
}

fn down() -> Panel {
    let known = format!("last_over_time({}[1d])", series(Id::BuildInfo, &[]));
    viz::stat("Not scraped", "Tokometers that were scraped within a day, and do not answer now.", "none")
        .thresholds(viz::GOOD, &[(1.0, viz::BAD)])
        .option("colorMode", json!("background"))
        .option("graphMode", json!("none"))
        .target(Target::now("down", format!("sum ((up{{{CHOSEN}}} == bool 0) and on (job, instance) {known})")))
        .size(4, 4)
}

fn lag_now() -> Panel {
    viz::stat(
        "Lag of the data path",
        "How late its timers fired last, of the worst process. Over 5 ms it has too little CPU.",
        "s",
    )
    .thresholds(viz::GOOD, &[(0.001, "yellow"), (0.005, viz::BAD)])
    .target(Target::range("lag", max(&[], &series(Id::EventLoopLag, &[]))))
    .size(5, 4)
}

fn memory_now() -> Panel {
    viz::stat("Memory of the largest", "Resident memory of the process that has the most.", "bytes")
        .target(Target::range("memory", max(&[], &series(Id::ResidentMemory, &[]))))
        .size(5, 4)
}

fn unread_now() -> Panel {
    viz::stat(
        "Unreadable connections",
        "Within the time range: relayed on without being read (not those that were upgraded to another protocol).",
        "short",
    )
    .field("decimals", json!(0))
    .field("noValue", json!("none"))
    .thresholds(viz::GOOD, &[(1.0, "orange")])
    .option("graphMode", json!("none"))
    .target(
        Target::now("detached", growth(Id::ObserverDetached, &[], &[is_not(Key::Reason, "upgraded")]))
            .may_be_empty("only where a connection became unreadable"),
    )
    .size(5, 4)
}

fn lost_now() -> Panel {
    viz::stat(
        "Telemetry lost",
        "Spans that were dropped and exports that failed, within the time range. It must be 0.",
        "short",
    )
    .field("decimals", json!(0))
    .field("noValue", json!("no OTLP"))
    .thresholds(viz::GOOD, &[(1.0, viz::BAD)])
    .option("graphMode", json!("none"))
    .target(Target::now("spans", growth(Id::SpansDropped, &[], &[])).may_be_empty(OTLP))
    .target(Target::now("exports", growth(Id::ExportsFailed, &[], &[])).may_be_empty(OTLP))
    .option("textMode", json!("value_and_name"))
    .size(5, 4)
}

fn lag() -> Panel {
    viz::graph(
        "Lag of the data path",
        "How late the data path's timers fired, of the ten worst. A token may wait so long in tokometer. Over 5 ms (red) it has too little CPU.",
        "s",
    )
    .custom("thresholdsStyle", json!({"mode": "dashed"}))
    .thresholds("transparent", &[(0.005, viz::BAD)])
    .target(Target::range(POD_LEGEND, format!("topk(10, {})", max(&POD, &series(Id::EventLoopLag, &[])))))
    .size(8, 8)
}

fn cpu() -> Panel {
    viz::graph(
        "CPU",
        "Cores of the ten processes that take the most, and of all together the part that reading what passes takes.",
        "short",
    )
    .field("decimals", json!(3))
    .target(Target::range(POD_LEGEND, format!("topk(10, {})", total(Id::Cpu, &POD, &[]))))
    .target(Target::range("reading, all together", total(Id::ObserverTime, &[], &[])))
    .size(8, 8)
}

fn memory() -> Panel {
    viz::graph("Memory", "Resident memory of the ten largest processes, and the container's limit.", "bytes")
        .target(Target::range(POD_LEGEND, format!("topk(10, {})", max(&POD, &series(Id::ResidentMemory, &[])))))
        .target(
            Target::range(
                "limit",
                format!("min (kube_pod_container_resource_limits{{{CONTAINER},resource=\"memory\"}})"),
            )
            .may_be_empty(KUBERNETES),
        )
        .color("^limit$", viz::BAD)
        .size(8, 8)
}

fn throttling() -> Panel {
    viz::graph(
        "CPU throttling",
        "Share of scheduling periods in which the container was held back. Tokens wait meanwhile.",
        "percentunit",
    )
    .target(Target::range(
        "{{pod}}",
        format!(
            "sum by (pod) (rate(container_cpu_cfs_throttled_periods_total{{{CONTAINER}}}[$__rate_interval]))\n/\n\
                 (sum by (pod) (rate(container_cpu_cfs_periods_total{{{CONTAINER}}}[$__rate_interval])) > 0)"
        ),
    ))
    .may_be_empty(KUBERNETES)
    .size(12, 8)
}

fn container_restarts() -> Panel {
    viz::graph("Restarts of the container", "Within the time range, as Kubernetes counts them, also where no scrape saw it.", "none")
        .target(Target::range(
            "{{pod}}",
            format!("sum by (pod) (increase(kube_pod_init_container_status_restarts_total{{{CONTAINER}}}[$__range]))\nor\nsum by (pod) (increase(kube_pod_container_status_restarts_total{{{CONTAINER}}}[$__range]))"),
        ))
        .may_be_empty(KUBERNETES)
        .size(12, 8)
}

fn detached() -> Panel {
    viz::graph("Unreadable connections per second", "By reason. Their bytes pass all the same.", "ops")
        .target(Target::range("all", total(Id::ObserverDetached, &[], &[])))
        .target(
            Target::range("{{reason}}", format!("{} > 0", total(Id::ObserverDetached, &[Label::Of(Key::Reason)], &[])))
                .may_be_empty("only where a connection became unreadable"),
        )
        .color("^all$", viz::IDLE)
        .size(6, 8)
}

fn sources() -> Panel {
    let source = Label::Of(Key::Source);
    viz::stacked(
        "Where token counts come from",
        "Share of output tokens by source. `usage` and ids are exact; a lower bound or an estimate says so.",
        "percentunit",
    )
    .field("max", json!(1))
    .target(Target::range(
        "{{source}}",
        format!(
            "{}\n/ on () group_left ()\n({} > 0)",
            total(Id::OutputTokens, &[source], &[]),
            total(Id::OutputTokens, &[], &[])
        ),
    ))
    .color("^(usage|engine_span|token_ids|native_counter|logprobs)$", viz::GOOD)
    .color("lower_bound", "orange")
    .size(6, 8)
}

fn bodies() -> Panel {
    viz::graph(
        "Unread bodies per second",
        "Bodies that could not be read because of their compression, by direction and reason.",
        "ops",
    )
    .target(Target::range("all", total(Id::BodiesUnread, &[], &[])))
    .target(
        Target::range(
            "{{direction}}: {{reason}}",
            format!("{} > 0", total(Id::BodiesUnread, &[Label::Of(Key::Direction), Label::Of(Key::Reason)], &[])),
        )
        .may_be_empty("only where a body could not be read"),
    )
    .color("^all$", viz::IDLE)
    .size(6, 8)
}

fn folded() -> Panel {
    viz::graph(
        "Folded into `other`, per second",
        "Exchanges whose attributes were over a cap: models that clients make up, mostly.",
        "ops",
    )
    .target(Target::range("{{kind}}", total(Id::LabelsFolded, &[Label::Of(Key::Kind)], &[])))
    .size(6, 8)
}

fn exports() -> Panel {
    viz::graph("OTLP exports per second", "Tried, and failed after their retries.", "ops")
        .target(Target::range("{{signal}} tried", total(Id::Exports, &[Label::Of(Key::Signal)], &[])))
        .target(Target::range("{{signal}} failed", total(Id::ExportsFailed, &[Label::Of(Key::Signal)], &[])))
        .may_be_empty(OTLP)
        .color("failed$", viz::BAD)
        .size(6, 8)
}

fn spans() -> Panel {
    viz::graph("Own spans per second", "Taken by the collector, and lost.", "ops")
        .target(Target::range("sent", total(Id::SpansSent, &[], &[])))
        .target(Target::range("lost", total(Id::SpansDropped, &[], &[])))
        .may_be_empty(OTLP)
        .color("^lost$", viz::BAD)
        .size(6, 8)
}

fn kept() -> Panel {
    viz::graph(
        "Traces kept per second",
        "Those that the sampler alone would have left out, by what happened in them; and those over the cap, which were not kept.",
        "ops",
    )
    .target(Target::range("{{reason}}", total(Id::TracesKept, &[Label::Of(Key::Reason)], &[])))
    .target(Target::range("over the cap", total(Id::TracesCapped, &[], &[])))
    .may_be_empty(OTLP)
    .size(6, 8)
}

fn engine_pages() -> Panel {
    viz::without_legend(viz::graph(
        "Age of the engine's metrics",
        "Time since the engine's own page was last read, of the ten oldest; and failures to read it.",
        "s",
    ))
    .target(
        Target::range(POD_LEGEND, format!("topk(10, {})", max(&POD, &series(Id::EngineScrapeAge, &[]))))
            .may_be_empty("only where the engine's own metrics are read"),
    )
    .target(
        Target::range(
            "failures/s: {{reason}}",
            format!("{} > 0", total(Id::EngineScrapeFailures, &[Label::Of(Key::Reason)], &[])),
        )
        .may_be_empty("only where the engine's own metrics could not be read"),
    )
    .fields_like("^failures", &[("unit", json!("ops")), ("custom.axisPlacement", json!("right"))])
    .size(6, 8)
}

fn connections() -> Panel {
    viz::graph(
        "Connections",
        "Open connections, those that are observed, and refusals because the maximum was open.",
        "short",
    )
    .target(Target::range("open", sum(&[], &series(Id::ConnectionsOpen, &[]))))
    .target(Target::range("observed", sum(&[], &series(Id::ObserverConnections, &[]))))
    .target(Target::range("refused/s: {{reason}}", total(Id::ConnectionsRefused, &[Label::Of(Key::Reason)], &[])))
    .size(6, 8)
}

fn descriptors() -> Panel {
    viz::without_legend(viz::graph(
        "File descriptors",
        "Share in use of those that a process may have, of the ten fullest. At 100 % no connection is accepted.",
        "percentunit",
    ))
    .field("max", json!(1))
    .target(Target::range(
        POD_LEGEND,
        format!("topk(10, {}\n/\n{})", max(&POD, &series(Id::OpenFds, &[])), max(&POD, &series(Id::MaxFds, &[]))),
    ))
    .size(6, 8)
}

fn restarts() -> Panel {
    viz::without_legend(viz::graph(
        "Restarts",
        "How often each process began anew within the time range. Every restart ends the streams that pass it.",
        "none",
    ))
    .target(Target::range(
        POD_LEGEND,
        format!("{} > 0", sum(&POD, &format!("changes({}[$__range])", series(Id::StartTime, &[])))),
    ))
    .may_be_empty("only where a tokometer restarted")
    .size(6, 8)
}

fn versions() -> Panel {
    let panel = viz::table("Versions", "How many tokometers of each version.")
        .target(Target::rows(format!("count by ({}) ({})", Key::Version.label(), series(Id::BuildInfo, &[]))))
        .size(6, 8);
    viz::joined(panel, &[("version", "Version")], vec![viz::Column::new('A', "Tokometers", "none")])
}

fn received() -> Panel {
    viz::graph("Engine's spans per second", "Received from the engine, and passed on to the collector.", "ops")
        .target(Target::range("received", total(Id::EngineSpansReceived, &[], &[])))
        .target(Target::range("forwarded", total(Id::EngineSpansForwarded, &[], &[])))
        .may_be_empty(SPANS)
        .size(6, 8)
}

fn dropped() -> Panel {
    viz::graph(
        "Lost or refused per second",
        "Spans of the engine that did not get to the collector, and messages that were refused, by reason.",
        "ops",
    )
    .target(Target::range("lost: {{reason}}", total(Id::EngineSpansDropped, &[Label::Of(Key::Reason)], &[])))
    .target(Target::range("refused: {{reason}}", total(Id::EngineMessagesRefused, &[Label::Of(Key::Reason)], &[])))
    .may_be_empty(SPANS)
    .size(6, 8)
}

fn joins() -> Panel {
    viz::stacked(
        "Joined exchanges per second",
        "Exchanges by what came of looking for the engine's span; docs/QUEUE.md has the list.",
        "ops",
    )
    .target(Target::range("{{result}}", total(Id::SpanJoins, &[Label::Of(Key::Result)], &[])))
    .may_be_empty(SPANS)
    .size(6, 8)
}

fn waiting() -> Panel {
    viz::graph(
        "Waiting for their span",
        "Exchanges that wait for the engine's span until it comes, or their time is up.",
        "short",
    )
    .target(Target::range("waiting", sum(&[], &series(Id::SpanJoinsHeld, &[]))))
    .may_be_empty(SPANS)
    .size(6, 8)
}
