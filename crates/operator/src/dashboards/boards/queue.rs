//! Queue and saturation: waiting requests, engine utilization, and remaining capacity.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives::decode_floor;
use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Target;
use crate::dashboards::promql::Label;
use crate::dashboards::promql::POD;
use crate::dashboards::promql::POD_LEGEND;
use crate::dashboards::promql::WINDOW;
use crate::dashboards::promql::added_up;
use crate::dashboards::promql::buckets;
use crate::dashboards::promql::is;
use crate::dashboards::promql::list;
use crate::dashboards::promql::max;
use crate::dashboards::promql::quantile;
use crate::dashboards::promql::quantile_over;
use crate::dashboards::promql::series;
use crate::dashboards::promql::share;
use crate::dashboards::promql::sum;
use crate::dashboards::promql::total;
use crate::dashboards::viz;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

const ENGINE: &str = "only where the engine's own metrics are read and tell it";
const QUEUE_TOLD: &str = "only where the engine tells the queue time of a request";
const NEVER_NEAR: &str = "only where a pod broke the floor of the decode rate within the last hour";

pub(super) fn board() -> Board {
    Board {
        uid: boards::QUEUE,
        title: "Tokometer / Queue and saturation",
        description: "What waits and for how long, how full the engines are, where speed breaks down under load, and how many more \
                      concurrent requests fit before the decode objective breaks.",
        by_objective: false,
        rows: vec![
            Row::open("Capacity", vec![headroom(), safe_table(), knee()]),
            Row::open("Queue", vec![in_flight(), engine_view(), oldest(), queue_map(), queue_times(), little()]),
            Row::open("Saturation", vec![kv_cache(), silence(), throughput()]),
            Row::folded("The engine's own figures", vec![preemptions(), prefix_cache(), speculation(), gpu()]),
        ],
    }
}

/// Requests in flight per pod, averaged over a short window to match the rates alongside.
fn load(window: &str) -> String {
    sum(&POD, &format!("avg_over_time({}[{window}])", series(Id::InFlight, &[])))
}

fn tail() -> String {
    quantile_over("5m", 0.1, Id::DecodeRate, &POD, &[])
}

/// The maximum in flight per pod within the last hour while its slow tail still met the floor.
fn safe() -> String {
    format!(
        "max_over_time((\n{}\nand on ({by})\n(({}) >= on () group_left () {})\n)[1h:1m])",
        load("5m"),
        tail(),
        decode_floor(),
        by = list(&POD)
    )
}

/// Pods that fell below the floor within the last hour; the limit of the others is unknown.
fn near_the_knee() -> String {
    format!("count_over_time(((({}) < on () group_left () {}))[1h:1m])", tail(), decode_floor())
}

/// Remaining capacity in requests; negative if there are already too many.
fn room() -> String {
    let by = list(&POD);
    format!("(\n{}\n- on ({by})\n{}\n)\nand on ({by})\n{}", safe(), load(WINDOW), near_the_knee())
}

const METHOD: &str = "An estimate from the last hour, pod by pod: the most requests in flight (mean of 5 minutes, looked at every minute) at \
                      which the slow tail (p10) of the decode rate still kept the objective's floor, less those in flight now. Told only \
                      of pods that broke the floor within the hour: of the others it is not known how much more they can take. A fault that \
                      slows a pod without load makes it too low.";

fn headroom() -> Panel {
    viz::stat("Room for more (estimate)", METHOD, "short")
        .field("decimals", json!(0))
        .field("noValue", json!("not near the limit"))
        .thresholds(viz::BAD, &[(0.0, "orange"), (1.0, viz::GOOD)])
        .option("colorMode", json!("background"))
        .option("graphMode", json!("none"))
        .target(Target::now("room", format!("sum (\n{}\n)", room())).may_be_empty(NEVER_NEAR))
        .size(5, 9)
}

fn safe_table() -> Panel {
    let panel = viz::table(
        "Room of each pod (estimate)",
        "The most in flight that kept the decode floor within the last hour, and how many more fit, where that is known: those with the \
         least room first. See the panel beside for the method.",
    )
    .target(Target::rows(load(WINDOW)))
    .target(Target::rows(safe()).may_be_empty("only with an objective of decode rate, and where it was kept within the last hour"))
    .target(Target::rows(room()).may_be_empty(NEVER_NEAR))
    .size(11, 9);
    viz::joined(
        panel,
        &[("namespace", "Namespace"), ("pod", "Pod"), ("instance", "Instance")],
        vec![
            viz::Column::new('A', "In flight", "short").with("decimals", json!(0)),
            viz::Column::new('B', "Floor kept at", "short").with("decimals", json!(0)),
            viz::Column::new('C', "Room", "short")
                .with("decimals", json!(0))
                .colored("red", &[(0.0, "orange"), (1.0, "green")]),
        ],
    )
    .transform("sortBy", json!({"sort": [{"field": "Room", "desc": false}]}))
    .named(
        "Instance",
        &[(
            "links",
            json!([{"title": "This pod", "url": viz::board_of(boards::POD, "instance", "__value.raw:percentencode")}]),
        )],
    )
}

fn knee() -> Panel {
    const X: &str = "In flight";
    const Y: &str = "Decode p50, tok/s";
    viz::scatter(
        "Speed of a stream against load",
        "Each point is a pod at a moment of the time range: how many requests it had in flight, and how many tokens per second half of its \
         streams exceeded. Where the cloud bends down, more users cost every user speed.",
        X,
        Y,
    )
    .target(Target::range("", load(WINDOW)).table())
    .target(Target::range("", quantile(0.5, Id::DecodeRate, &POD, &[])).table())
    .transform("merge", json!({}))
    .transform("organize", json!({"excludeByName": {"Time": true}, "indexByName": {}, "renameByName": {"Value #A": X, "Value #B": Y}}))
    .size(8, 9)
}

fn in_flight() -> Panel {
    viz::stacked(
        "In flight",
        "Open exchanges: those that wait for their first token (in the queue or in prefill), and those that stream.",
        "short",
    )
    .target(Target::range("{{phase}}", sum(&[Label::Of(Key::Phase)], &series(Id::InFlight, &[]))))
    .color("^waiting_first_token$", "orange")
    .color("^streaming$", viz::GOOD)
    .size(8, 8)
}

fn engine_view() -> Panel {
    viz::stacked(
        "The engine's view",
        "Requests that the engines run, and that wait in their queues, by their own metrics.",
        "short",
    )
    .target(Target::range("running", format!("sum ({})", series(Id::EngineRunning, &[]))))
    .target(Target::range("waiting", format!("sum ({})", series(Id::EngineWaiting, &[]))))
    .may_be_empty(ENGINE)
    .color("^waiting$", "orange")
    .color("^running$", viz::GOOD)
    .size(8, 8)
}

fn oldest() -> Panel {
    viz::graph(
        "Longest wait of those in flight",
        "For their first token, or for their next one: what no histogram shows, because it has not ended.",
        "s",
    )
    .target(Target::range("{{phase}}", max(&[Label::Of(Key::Phase)], &series(Id::InFlightWaited, &[]))))
    .may_be_empty("only while something is in flight")
    .color("^waiting_first_token$", "orange")
    .color("^streaming$", viz::GOOD)
    .size(8, 8)
}

fn queue_map() -> Panel {
    viz::to_traces(viz::heatmap(
        "Queue time",
        "How many requests waited how long in the server's queue, where it tells that of each.",
        "s",
        buckets(Id::QueueTime, &[]),
    ))
    .may_be_empty(QUEUE_TOLD)
    .size(8, 8)
}

fn queue_times() -> Panel {
    viz::to_traces(viz::graph(
        "Queue time by source (p95)",
        "Times of different sources are never mixed (docs/QUEUE_TIME.md). The estimate is the mean of what the engine's own metrics gained.",
        "s",
    ))
    .target(Target::range("{{source}}", quantile(0.95, Id::QueueTime, &[Label::Of(Key::Source)], &[])).exemplars().may_be_empty(QUEUE_TOLD))
    .target(
        Target::range("estimate (mean)", max(&[], &series(Id::QueueTimeEstimate, &[])))
            .may_be_empty("only where the engine's own metrics tell its waits"),
    )
    .size(8, 8)
}

fn little() -> Panel {
    viz::graph(
        "Little's law",
        "What is in flight, and arrivals by duration of what ended. They are the same in a steady state; in flight above: requests come in \
         faster than they end.",
        "short",
    )
    .target(Target::range("in flight", format!("sum (avg_over_time({}[{WINDOW}]))", series(Id::InFlight, &[]))))
    .target(Target::range("arrivals × duration", added_up(Id::RequestDuration, &[], &[])))
    .size(8, 8)
}

fn kv_cache() -> Panel {
    viz::graph(
        "Key-value cache",
        "Share in use, of the ten fullest engines. At 100 % the engine preempts requests, or lets them wait.",
        "percentunit",
    )
    .field("max", json!(1))
    .custom("thresholdsStyle", json!({"mode": "dashed"}))
    .thresholds("transparent", &[(0.95, viz::BAD)])
    .target(Target::range(POD_LEGEND, format!("topk(10, {})", max(&POD, &series(Id::EngineKvUsage, &[])))))
    .may_be_empty(ENGINE)
    .size(8, 8)
}

fn silence() -> Panel {
    viz::graph(
        "Silence of the engines",
        "How long no token came to anybody while the engine owed some, and the bound beyond which it counts as wedged. 0: it owes nothing.",
        "s",
    )
    .target(Target::range("longest silence", max(&[], &series(Id::EngineSilence, &[]))))
    .target(Target::range("lowest bound", format!("min ({})", series(Id::EngineSilenceBound, &[]))).may_be_empty("only while an engine owes tokens"))
    .color("^lowest bound$", viz::BAD)
    .named("lowest bound", &[("custom.lineStyle", json!({"fill": "dash", "dash": [8, 6]})), ("custom.fillOpacity", json!(0))])
    .size(8, 8)
}

fn throughput() -> Panel {
    viz::graph(
        "Tokens per second of each pod",
        "The ten pods with the most output. Flat while the queue grows: they are saturated.",
        viz::MANY_TOKENS_PER_SECOND,
    )
    .target(Target::range(POD_LEGEND, format!("topk(10, {})", total(Id::LiveTokens, &POD, &[]))))
    .link("This pod", &viz::board_of(boards::POD, "instance", "__field.labels.instance"))
    .size(8, 8)
}

fn preemptions() -> Panel {
    viz::graph(
        "Preemptions per second",
        "Requests that lost their place in the engine and were begun anew: it took in too many.",
        "ops",
    )
    .target(Target::range(POD_LEGEND, total(Id::EnginePreemptions, &POD, &[])))
    .may_be_empty(ENGINE)
    .size(6, 8)
}

fn prefix_cache() -> Panel {
    viz::graph("Prefix cache", "Share of lookups that were answered, by the engine's own metrics.", "percentunit")
        .field("max", json!(1))
        .target(Target::range(
            "hits",
            share(&total(Id::EngineCacheHits, &[], &[]), &format!("({} > 0)", total(Id::EngineCacheQueries, &[], &[]))),
        ))
        .target(Target::range(
            "the engine's figure",
            format!("avg ({})", series(Id::EngineCacheRatio, &[is(Key::Source, "engine_gauge")])),
        ))
        .may_be_empty(ENGINE)
        .size(6, 8)
}

fn speculation() -> Panel {
    viz::graph("Speculative decoding", "Share of the proposed tokens that the model accepted.", "percentunit")
        .field("max", json!(1))
        .target(Target::range(
            "accepted",
            share(&total(Id::EngineAccepted, &[], &[]), &format!("({} > 0)", total(Id::EngineDrafted, &[], &[]))),
        ))
        .target(Target::range("lately", format!("avg ({})", series(Id::EngineAcceptanceRatio, &[]))))
        .may_be_empty(ENGINE)
        .size(6, 8)
}

fn gpu() -> Panel {
    viz::graph(
        "GPU",
        "Utilisation by NVIDIA's DCGM exporter. High while idle or waiting, it says little about speed.",
        "percent",
    )
    .field("max", json!(100))
    .target(Target::range("{{pod}}", r#"avg by (pod) (DCGM_FI_DEV_GPU_UTIL{namespace=~"$namespace"})"#))
    .may_be_empty("only with the DCGM exporter")
    .size(6, 8)
}
