//! Pod drill-down: one tokometer and its server, compared with its peers.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives;
use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Source;
use crate::dashboards::panel::Target;
use crate::dashboards::promql::Label;
use crate::dashboards::promql::POD_LEGEND;
use crate::dashboards::promql::buckets;
use crate::dashboards::promql::like;
use crate::dashboards::promql::max;
use crate::dashboards::promql::quantile;
use crate::dashboards::promql::quantile_of_peers;
use crate::dashboards::promql::read;
use crate::dashboards::promql::series;
use crate::dashboards::promql::sum;
use crate::dashboards::promql::total;
use crate::dashboards::viz;
use crate::dashboards::viz::Limit;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

pub(super) fn board() -> Board {
    Board {
        uid: boards::POD,
        title: "Tokometer / Pod drill-down",
        description: "One tokometer and the server behind it: is it well, how does it compare with its peers, and which requests were slow. \
                      Choose a pod or an instance.",
        by_objective: false,
        rows: vec![
            Row::open("Health", vec![state(), in_flight(), speed(), waited(), silence(), uptime()]),
            Row::open("State", vec![states()]),
            Row::open("Latency", vec![first_token(), gaps(), peers(), gap_map()]),
            Row::open("Load", vec![phases(), oldest(), tokens()]),
            Row::open("Errors", vec![outcomes(), connects(), left()]),
            Row::open("Requests", vec![slowest()]),
        ],
    }
}

fn state() -> Panel {
    viz::stat("State", "Of the chosen servers, the worst.", "none")
        .field("color", json!({"mode": "fixed", "fixedColor": viz::IDLE}))
        .field("mappings", viz::state_mappings(&objectives::ENGINE_STATES))
        .option("colorMode", json!("background"))
        .option("graphMode", json!("none"))
        .target(Target::now("state", format!("min (\n{}\n)", objectives::engine_state())))
        .size(4, 4)
}

fn in_flight() -> Panel {
    viz::stat("In flight", "Open exchanges.", "short")
        .target(Target::range("in flight", format!("sum ({})", series(Id::InFlight, &[]))))
        .size(4, 4)
}

fn speed() -> Panel {
    viz::judged(
        "Decode p10",
        "Decode rate of the slow tail: nine of ten streams were faster; red below the objective's floor.",
        viz::TOKENS_PER_SECOND,
        &quantile(0.1, Id::DecodeRate, &[], &[]),
        &objectives::decode_floor(),
        Limit::Floor,
    )
    .field("decimals", json!(1))
    .size(4, 4)
}

fn waited() -> Panel {
    viz::judged(
        "TTFT p99",
        "Time to first token: one of a hundred streams waited longer; red above the objective's limit.",
        "s",
        &quantile(0.99, Id::OwnTimeToFirstToken, &[], &[]),
        &objectives::first_token_limit(),
        Limit::Ceiling,
    )
    .field("decimals", json!(2))
    .size(4, 4)
}

fn silence() -> Panel {
    viz::stat(
        "Silence",
        "How long the server has owed tokens and sent none, to anybody. Red: longer than its bound, so that it counts as wedged.",
        "s",
    )
    .option("graphMode", json!("none"))
    .target(Target::now(
        "good",
        format!("max ({})\nunless on () (max ({}) > 0)", series(Id::EngineSilence, &[]), series(Id::EngineWedged, &[])),
    )
    .may_be_empty("while an engine is wedged"))
    .target(
        Target::now(
            "broken",
            format!("max ({})\nand on () (max ({}) > 0)", series(Id::EngineSilence, &[]), series(Id::EngineWedged, &[])),
        )
        .may_be_empty("only while an engine is wedged"),
    )
    .color("^good$", "text")
    .color("^broken$", viz::BAD)
    .size(4, 4)
}

fn uptime() -> Panel {
    viz::stat("Up for", "Since tokometer started; of several, the one that started last.", "s")
        .field("decimals", json!(1))
        .option("graphMode", json!("none"))
        .target(Target::now("up", format!("time() - max ({})", series(Id::StartTime, &[]))))
        .thresholds("orange", &[(300.0, "text")])
        .size(4, 4)
}

fn states() -> Panel {
    viz::states(
        "What the server does",
        "Down is red, no work is grey; docs/WEDGE.md says when a server counts as wedged.",
        &objectives::ENGINE_STATES,
    )
    .target(Target::range(POD_LEGEND, objectives::engine_state()))
    .size(24, 5)
}

fn first_token() -> Panel {
    viz::to_traces(viz::with_limit(
        viz::graph(
            "Time to first token",
            "Of the chosen pods, and (grey) of all pods of these jobs and namespaces.",
            "s",
        )
        .target(Target::range("p50", quantile(0.5, Id::OwnTimeToFirstToken, &[], &[])))
        .target(Target::range("p99", quantile(0.99, Id::OwnTimeToFirstToken, &[], &[])).exemplars())
        .target(Target::range("all pods p99", quantile_of_peers(0.99, Id::OwnTimeToFirstToken, &[], &[])))
        .color("^all pods", viz::IDLE),
        &quantile(0.99, Id::OwnTimeToFirstToken, &[], &[]),
        &objectives::first_token_limit(),
        Limit::Ceiling,
    ))
    .size(8, 9)
}

fn gaps() -> Panel {
    viz::to_traces(viz::graph(
        "Gap between tokens",
        "Of the chosen pods, and (grey) of all pods of these jobs and namespaces.",
        "s",
    ))
    .target(Target::range("p50", quantile(0.5, Id::InterTokenLatency, &[], &[])))
    .target(Target::range("p99", quantile(0.99, Id::InterTokenLatency, &[], &[])).exemplars())
    .target(Target::range("all pods p99", quantile_of_peers(0.99, Id::InterTokenLatency, &[], &[])))
    .color("^all pods", viz::IDLE)
    .size(8, 9)
}

fn peers() -> Panel {
    viz::graph(
        "Decode rate against its peers",
        "The median of each chosen pod by the median of all pods with the same model. 1: like its peers. Below 0.8 (red) it has a bad GPU, \
         a noisy neighbour, or work of another kind.",
        "suffix: ×",
    )
    .field("decimals", json!(2))
    .custom("thresholdsStyle", json!({"mode": "dashed"}))
    .thresholds("transparent", &[(0.8, viz::BAD)])
    .target(Target::range(
        "{{pod}} {{instance}} {{gen_ai_response_model}}",
        format!(
            "({})\n/ on (gen_ai_response_model) group_left ()\n({})",
            quantile(0.5, Id::DecodeRate, &[Label::Pod, Label::Instance, Label::Of(Key::ResponseModel)], &[]),
            quantile_of_peers(0.5, Id::DecodeRate, &[Label::Of(Key::ResponseModel)], &[])
        ),
    ))
    .size(8, 9)
}

fn gap_map() -> Panel {
    viz::to_traces(viz::heatmap(
        "Gaps between tokens",
        "How many gaps were how long. Points are exemplars: each leads to the trace of a request.",
        "s",
        buckets(Id::InterTokenLatency, &[]),
    ))
    .size(24, 8)
}

fn phases() -> Panel {
    viz::stacked("In flight", "Open exchanges before and after their first token.", "short")
        .target(Target::range("{{phase}}", sum(&[Label::Of(Key::Phase)], &series(Id::InFlight, &[]))))
        .target(Target::range("clients take nothing", format!("sum ({})", series(Id::InFlightHeldUp, &[]))))
        .target(Target::range("stalled", format!("sum ({})", series(Id::InFlightStalled, &[]))))
        .fields_like(
            "^(clients take nothing|stalled)$",
            &[
                ("custom.stacking", json!({"mode": "none"})),
                ("custom.fillOpacity", json!(0)),
                ("custom.lineWidth", json!(2)),
            ],
        )
        .color("^waiting_first_token$", "orange")
        .color("^streaming$", viz::GOOD)
        .color("^stalled$", viz::BAD)
        .color("^clients take nothing$", viz::IDLE)
        .size(8, 8)
}

fn oldest() -> Panel {
    viz::graph("Age of the oldest in flight", "From the first byte of its request.", "s")
        .target(Target::range("{{phase}}", max(&[Label::Of(Key::Phase)], &series(Id::InFlightOldest, &[]))))
        .may_be_empty("only while something is in flight")
        .color("^waiting_first_token$", "orange")
        .color("^streaming$", viz::GOOD)
        .size(8, 8)
}

fn tokens() -> Panel {
    viz::graph("Output tokens per second", "As they pass.", viz::MANY_TOKENS_PER_SECOND)
        .target(Target::range(POD_LEGEND, total(Id::LiveTokens, &crate::dashboards::promql::POD, &[])))
        .size(8, 8)
}

fn outcomes() -> Panel {
    super::overview::outcome_colors(viz::stacked(
        "Exchanges per second by outcome",
        "Grey is what clients did.",
        "reqps",
    ))
    .target(Target::range(
        "{{outcome}}",
        format!("{} > 0", total(Id::Exchanges, &[Label::Of(Key::Outcome)], &[read()])),
    ))
    .size(8, 8)
}

fn connects() -> Panel {
    viz::graph("Connections without a server, per second", "By the reason that the system gave.", "ops")
        .target(Target::range("{{reason}}", total(Id::ConnectFailures, &[Label::Of(Key::Reason)], &[])))
        .color(".*", viz::BAD)
        .size(8, 8)
}

fn left() -> Panel {
    viz::stacked(
        "Clients that gave up, per second",
        "Before their first token, or in the middle of the answer.",
        "reqps",
    )
    .target(
        Target::range(
            "{{outcome}}",
            total(Id::Exchanges, &[Label::Of(Key::Outcome)], &[read(), like(Key::Outcome, "client_abort_.*")]),
        )
        .may_be_empty("only where a client went away"),
    )
    .size(8, 8)
}

fn slowest() -> Panel {
    let mut panel = viz::table(
        "Slow requests",
        "Traces of requests at the chosen pods that took longer than ten seconds, from the chosen traces data source (TraceQL). Click one to \
         see where its time went: queue, prefill, decode.",
    )
    .target(Target::range("", SLOW).may_be_empty("only with a Tempo that has tokometer's traces"))
    .size(24, 9);
    panel.source = Source::Traces;
    panel
}

/// `service.instance.id` is `namespace.pod.container` in a cluster, and is always set: with all pods selected,
/// everything matches.
const SLOW: &str = r#"{ kind = server && span.tokometer.outcome != nil && duration > 10s && resource.service.instance.id =~ "(.+[.])?(${pod:pipe})([.].+)?" } | select(span.tokometer.outcome, span.gen_ai.request.model)"#;
