//! Pod drill-down: one tokometer and its server, compared with its peers.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives::*;
use crate::dashboards::promql::*;
use crate::dashboards::viz::*;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

pub(super) fn board() -> Board {
    Board {
        uid: boards::POD,
        title: "Tokometer / Pod drill-down",
        description: "One tokometer and the server behind it: is it well, how does it compare with its peers, and which requests were slow. \
                      Choose a pod or an instance.",
        by_objective: false,
        rows: vec![health(), state(), latency(), load(), errors(), requests()],
    }
}

fn health() -> Row {
    let (silence, wedged) = (max(Id::EngineSilence), divisor(max(Id::EngineWedged)));
    let panels = vec![
        stat("State", "none")
            .about("Of the chosen servers, the worst.")
            .field("color", fixed(IDLE))
            .states(&ENGINE_STATES)
            .background()
            .no_graph()
            .now("state", format!("min (\n{}\n)", engine_state())),
        stat("In flight", "short").about("Open exchanges.").range("in flight", sum(Id::InFlight)),
        judged("Decode p10", TOKENS_PER_SECOND, quantile(0.1, Id::DecodeRate), decode_floor())
            .about(
                "Decode rate of the slow tail: nine of ten streams were faster; red below the objective's \
                 floor.",
            )
            .decimals(1),
        judged("TTFT p99", "s", quantile(0.99, Id::OwnTimeToFirstToken), first_token_limit())
            .about(
                "Time to first token: one of a hundred streams waited longer; red above the objective's \
                 limit.",
            )
            .decimals(2),
        stat("Silence", "s")
            .about(
                "How long the server has owed tokens and sent none, to anybody. Red: longer than its bound, \
                 so that it counts as wedged.",
            )
            .no_graph()
            .now_or("good", format!("{silence}\nunless on () {wedged}"), "while an engine is wedged")
            .now_or("broken", format!("{silence}\nand on () {wedged}"), "only while an engine is wedged")
            .color("^good$", "text")
            .color("^broken$", BAD),
        stat("Up for", "s")
            .about("Since tokometer started; of several, the one that started last.")
            .decimals(1)
            .no_graph()
            .now("up", format!("time() - {}", max(Id::StartTime)))
            .thresholds("orange", &[(300.0, "text")]),
    ];
    Row::open("Health", (4, 4), panels)
}

fn state() -> Row {
    let panels = vec![
        states("What the server does", &ENGINE_STATES)
            .about("Down is red, no work is grey; docs/WEDGE.md says when a server counts as wedged.")
            .range(POD_LEGEND, engine_state()),
    ];
    Row::open("State", (24, 5), panels)
}

fn latency() -> Row {
    let median = quantile(0.5, Id::DecodeRate);
    let peers = median.clone().by(Key::ResponseModel).of_peers();
    let own = median.by_label("pod, instance").by(Key::ResponseModel);
    let against_peers = format!("({own})\n/ on (gen_ai_response_model) group_left ()\n({peers})");
    let panels = vec![
        graph("Time to first token", "s")
            .about("Of the chosen pods, and (grey) of all pods of these jobs and namespaces.")
            .quantiles(&[0.5, 0.99], Id::OwnTimeToFirstToken)
            .exemplars()
            .range("all pods p99", quantile(0.99, Id::OwnTimeToFirstToken).of_peers())
            .color("^all pods", IDLE)
            .limit(quantile(0.99, Id::OwnTimeToFirstToken), first_token_limit())
            .trace_links(),
        graph("Gap between tokens", "s")
            .about("Of the chosen pods, and (grey) of all pods of these jobs and namespaces.")
            .trace_links()
            .quantiles(&[0.5, 0.99], Id::InterTokenLatency)
            .exemplars()
            .range("all pods p99", quantile(0.99, Id::InterTokenLatency).of_peers())
            .color("^all pods", IDLE),
        graph("Decode rate against its peers", TIMES)
            .about(
                "The median of each chosen pod by the median of all pods with the same model. 1: like its \
                 peers. Below 0.8 (red) it has a bad GPU, a noisy neighbour, or work of another kind.",
            )
            .decimals(2)
            .dashed_limit(0.8)
            .range("{{pod}} {{instance}} {{gen_ai_response_model}}", against_peers),
        heatmap("Gaps between tokens", "s", buckets(Id::InterTokenLatency))
            .about("How many gaps were how long. Points are exemplars: each leads to the trace of a request.")
            .trace_links()
            .size(24, 8),
    ];
    Row::open("Latency", (8, 9), panels)
}

fn load() -> Row {
    let panels = vec![
        stacked("In flight", "short")
            .about("Open exchanges before and after their first token.")
            .range("{{phase}}", sum(Id::InFlight).by(Key::Phase))
            .range("clients take nothing", sum(Id::InFlightBlocked))
            .range("stalled", sum(Id::InFlightStalled))
            .fields_like(
                "^(clients take nothing|stalled)$",
                &[
                    ("custom.stacking", json!({"mode": "none"})),
                    ("custom.fillOpacity", json!(0)),
                    ("custom.lineWidth", json!(2)),
                ],
            )
            .phase_colors()
            .color("^stalled$", BAD)
            .color("^clients take nothing$", IDLE),
        graph("Age of the oldest in flight", "s")
            .about("From the first byte of its request.")
            .range("{{phase}}", max(Id::InFlightOldest).by(Key::Phase))
            .may_be_empty("only while something is in flight")
            .phase_colors(),
        graph("Output tokens per second", MANY_TOKENS_PER_SECOND)
            .about("As they pass.")
            .range(POD_LEGEND, total(Id::LiveTokens).by_pod()),
    ];
    Row::open("Load", (8, 8), panels)
}

fn errors() -> Row {
    let panels = vec![
        stacked("Exchanges per second by outcome", "reqps")
            .about("Grey is what clients did.")
            .outcome_colors()
            .range("{{outcome}}", positive(total(Id::Requests).by(Key::Outcome).parsed())),
        graph("Connections without a server, per second", "ops")
            .about("By the reason that the system gave.")
            .range("{{reason}}", total(Id::ConnectFailures).by(Key::Reason))
            .color(".*", BAD),
        stacked("Clients that gave up, per second", "reqps")
            .about("Before their first token, or in the middle of the answer.")
            .range_or(
                "{{outcome}}",
                total(Id::Requests).by(Key::Outcome).parsed().like(Key::Outcome, "client_abort_.*"),
                "only where a client went away",
            ),
    ];
    Row::open("Errors", (8, 8), panels)
}

fn requests() -> Row {
    let slow = table("Slow requests")
        .about(
            "Traces of requests at the chosen pods that took longer than ten seconds, from the chosen \
                 traces data source (TraceQL). Click one to see where its time went: queue, prefill, decode.",
        )
        .traces(SLOW)
        .optional("only with a Tempo that has tokometer's traces");
    Row::open("Requests", (24, 9), vec![slow])
}

/// `service.instance.id` is `namespace.pod.container` in a cluster, and always set: with all pods selected, everything
/// matches.
const SLOW: &str = r#"{ kind = server && span.tokometer.outcome != nil && duration > 10s && resource.service.instance.id =~ "(.+[.])?(${pod:pipe})([.].+)?" } | select(span.tokometer.outcome, span.gen_ai.request.model)"#;
