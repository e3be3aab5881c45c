//! Sidecar health: tokometer's own resource use, parsing success, and delivery of its telemetry.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives::sidecars_down;
use crate::dashboards::promql::*;
use crate::dashboards::viz::*;
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
            now(),
            cost(),
            what_is_understood(),
            telemetry(),
            process(),
            from_kubernetes(),
            spans_of_the_engine(),
        ],
    }
}

fn now() -> Row {
    let panels = vec![
        alarm("Not scraped")
            .about("Tokometers that were scraped within a day, and do not answer now.")
            .now("down", sidecars_down())
            .size(4, 4),
        stat("Lag of the data path", "s")
            .about("How late its timers fired last, of the worst process. Over 5 ms it has too little CPU.")
            .thresholds(GOOD, &[(0.001, "yellow"), (0.005, BAD)])
            .range("lag", max(Id::EventLoopLag)),
        stat("Memory of the largest", "bytes")
            .about("Resident memory of the process that has the most.")
            .range("memory", max(Id::ResidentMemory)),
        stat("Unreadable connections", "short")
            .about(
                "Within the time range: relayed on without being read (not those that were upgraded to \
                 another protocol).",
            )
            .decimals(0)
            .no_value("none")
            .thresholds(GOOD, &[(1.0, "orange")])
            .no_graph()
            .now_or(
                "detached",
                growth(Id::ObserverDetached).without(Key::Reason, "upgraded"),
                "only where a connection became unreadable",
            ),
        stat("Telemetry lost", "short")
            .about("Spans that were dropped and exports that failed, within the time range. It must be 0.")
            .decimals(0)
            .no_value("no OTLP")
            .thresholds(GOOD, &[(1.0, BAD)])
            .no_graph()
            .now_or("spans", growth(Id::SpansDropped), OTLP)
            .now_or("exports", growth(Id::ExportsFailed), OTLP)
            .with_names(),
    ];
    Row::open("Now", (5, 4), panels)
}

fn cost() -> Row {
    let panels = vec![
        graph("Lag of the data path", "s")
            .about(
                "How late the data path's timers fired, of the ten worst. A token may wait so long in \
                 tokometer. Over 5 ms (red) it has too little CPU.",
            )
            .dashed_limit(0.005)
            .range(POD_LEGEND, top(10, max(Id::EventLoopLag).by_pod())),
        graph("CPU", "short")
            .about(
                "Cores of the ten processes that take the most, and of all together the part that reading \
                 what passes takes.",
            )
            .decimals(3)
            .range(POD_LEGEND, top(10, total(Id::Cpu).by_pod()))
            .range("reading, all together", total(Id::ObserverTime)),
        graph("Memory", "bytes")
            .about("Resident memory of the ten largest processes, and the container's limit.")
            .range(POD_LEGEND, top(10, max(Id::ResidentMemory).by_pod()))
            .range_or(
                "limit",
                format!("min (kube_pod_container_resource_limits{{{CONTAINER},resource=\"memory\"}})"),
                KUBERNETES,
            )
            .color("^limit$", BAD),
    ];
    Row::open("Cost", (8, 8), panels)
}

fn what_is_understood() -> Row {
    let (sources, all) = (total(Id::OutputTokens).by(Key::Source), divisor(total(Id::OutputTokens)));
    let sources = format!("{sources}\n/ on () group_left ()\n{all}");
    let panels = vec![
        graph("Unreadable connections per second", "ops")
            .about("By reason. Their bytes pass all the same.")
            .range("all", total(Id::ObserverDetached))
            .range_or(
                "{{reason}}",
                positive(total(Id::ObserverDetached).by(Key::Reason)),
                "only where a connection became unreadable",
            )
            .color("^all$", IDLE),
        stacked("Where token counts come from", "percentunit")
            .about(
                "Share of output tokens by source. `usage` and ids are exact; a lower bound or an estimate \
                 says so.",
            )
            .max(1)
            .range("{{source}}", sources)
            .color("^(usage|engine_span|token_ids|native_counter)$", GOOD)
            .color("lower_bound", "orange"),
        graph("Unread bodies per second", "ops")
            .about("Bodies that could not be read because of their compression, by direction and reason.")
            .range("all", total(Id::BodiesUnread))
            .range_or(
                "{{direction}}: {{reason}}",
                positive(total(Id::BodiesUnread).by(Key::Direction).by(Key::Reason)),
                "only where a body could not be read",
            )
            .color("^all$", IDLE),
        graph("Folded into `other`, per second", "ops")
            .about("Exchanges whose attributes were over a cap: models that clients make up, mostly.")
            .range("{{kind}}", total(Id::LabelsFolded).by(Key::Kind)),
    ];
    Row::open("What is understood", (6, 8), panels)
}

fn telemetry() -> Row {
    let panels = vec![
        graph("OTLP exports per second", "ops")
            .about("Tried, and failed after their retries.")
            .range("{{signal}} tried", total(Id::Exports).by(Key::Signal))
            .range("{{signal}} failed", total(Id::ExportsFailed).by(Key::Signal))
            .may_be_empty(OTLP)
            .color("failed$", BAD),
        graph("Own spans per second", "ops")
            .about("Taken by the collector, and lost.")
            .range("sent", total(Id::SpansSent))
            .range("lost", total(Id::SpansDropped))
            .may_be_empty(OTLP)
            .color("^lost$", BAD),
        graph("Traces kept per second", "ops")
            .about(
                "Those that the sampler alone would have left out, by what happened in them; and those over \
                 the cap, which were not kept.",
            )
            .range("{{reason}}", total(Id::TracesKept).by(Key::Reason))
            .range("over the cap", total(Id::TracesCapped))
            .may_be_empty(OTLP),
        graph("Age of the engine's metrics", "s")
            .about("Time since the engine's own page was last read, of the ten oldest; and failures to read it.")
            .without_legend()
            .range_or(
                POD_LEGEND,
                top(10, max(Id::EngineScrapeAge).by_pod()),
                "only where the engine's own metrics are read",
            )
            .range_or(
                "failures/s: {{reason}}",
                positive(total(Id::EngineScrapeFailures).by(Key::Reason)),
                "only where the engine's own metrics could not be read",
            )
            .fields_like("^failures", &[("unit", json!("ops")), ("custom.axisPlacement", json!("right"))]),
    ];
    Row::open("Telemetry", (6, 8), panels)
}

fn process() -> Row {
    let restarts = positive(format!("sum by ({POD}) (changes({}[$__range]))", series(Id::StartTime)));
    let panels = vec![
        graph("Connections", "short")
            .about("Open connections, those that are observed, and refusals because the maximum was open.")
            .range("open", sum(Id::ConnectionsOpen))
            .range("observed", sum(Id::ObserverConnections))
            .range("refused/s: {{reason}}", total(Id::ConnectionsRefused).by(Key::Reason)),
        graph("File descriptors", "percentunit")
            .about(
                "Share in use of those that a process may have, of the ten fullest. At 100 % no connection is \
                 accepted.",
            )
            .without_legend()
            .max(1)
            .range(POD_LEGEND, top(10, share(max(Id::OpenFds).by_pod(), max(Id::MaxFds).by_pod()))),
        graph("Restarts", "none")
            .about(
                "How often each process began anew within the time range. Every restart ends the streams that \
                 pass it.",
            )
            .without_legend()
            .range(POD_LEGEND, restarts)
            .may_be_empty("only where a tokometer restarted"),
        table("Versions")
            .about("How many tokometers of each version.")
            .rows(count(Id::BuildInfo).by(Key::Version))
            .joined(&[("version", "Version")], vec![Column::text("Tokometers", "none")]),
    ];
    Row::open("Process", (6, 8), panels)
}

fn from_kubernetes() -> Row {
    let periods = |kind| format!("sum by (pod) (rate(container_cpu_cfs_{kind}_total{{{CONTAINER}}}[{WINDOW}]))");
    let throttled = share(periods("throttled_periods"), divisor(periods("periods")));
    let restarts = ["init_container", "container"]
        .map(|kind| format!("sum by (pod) (increase(kube_pod_{kind}_status_restarts_total{{{CONTAINER}}}[$__range]))"))
        .join("\nor\n");
    let panels = vec![
        graph("CPU throttling", "percentunit")
            .about("Share of scheduling periods in which the container was held back. Tokens wait meanwhile.")
            .range("{{pod}}", throttled)
            .may_be_empty(KUBERNETES),
        graph("Restarts of the container", "none")
            .about("Within the time range, as Kubernetes counts them, also where no scrape saw it.")
            .range("{{pod}}", restarts)
            .may_be_empty(KUBERNETES),
    ];
    Row::folded("From Kubernetes", (12, 8), panels)
}

fn spans_of_the_engine() -> Row {
    let panels = vec![
        graph("Engine's spans per second", "ops")
            .about("Received from the engine, and passed on to the collector.")
            .range("received", total(Id::EngineSpansReceived))
            .range("forwarded", total(Id::EngineSpansForwarded))
            .may_be_empty(SPANS),
        graph("Lost or refused per second", "ops")
            .about(
                "Spans of the engine that did not get to the collector, and messages that were refused, by \
                 reason.",
            )
            .range("lost: {{reason}}", total(Id::EngineSpansDropped).by(Key::Reason))
            .range("refused: {{reason}}", total(Id::EngineMessagesRefused).by(Key::Reason))
            .may_be_empty(SPANS),
        stacked("Joined exchanges per second", "ops")
            .about("Exchanges by what came of looking for the engine's span; docs/QUEUE.md has the list.")
            .range("{{result}}", total(Id::SpanJoins).by(Key::Result))
            .may_be_empty(SPANS),
        graph("Waiting for their span", "short")
            .about("Exchanges that wait for the engine's span until it comes, or their time is up.")
            .range("waiting", sum(Id::SpanJoinsHeld))
            .may_be_empty(SPANS),
    ];
    Row::folded("Spans of the engine", (6, 8), panels)
}
