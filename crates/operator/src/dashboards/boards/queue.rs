//! Queue and saturation: waiting requests, engine utilization, and remaining capacity.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives::*;
use crate::dashboards::promql::*;
use crate::dashboards::viz::*;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

const ENGINE: &str = "only where the engine's own metrics are read and tell it";
const QUEUE_REPORTED: &str = "only where the engine tells the queue time of a request";
const NEVER_NEAR: &str = "only where a pod broke the floor of the decode rate within the last hour";

pub(super) fn board() -> Board {
    Board {
        uid: boards::QUEUE,
        title: "Tokometer / Queue and saturation",
        description: "What waits and for how long, how full the engines are, where speed breaks down under load, and how many more \
                      concurrent requests fit before the decode objective breaks.",
        by_objective: false,
        rows: vec![capacity(), queue(), saturation(), the_engine_own_figures()],
    }
}

fn capacity() -> Row {
    const X: &str = "In flight";
    const Y: &str = "Decode p50, tok/s";
    let panels = vec![
        stat("Room for more (estimate)", "short")
            .about(
                "An estimate from the last hour, pod by pod: the most requests in flight (mean of 5 minutes, \
                 looked at every minute) at which the slow tail (p10) of the decode rate still kept the \
                 objective's floor, less those in flight now. Told only of pods that broke the floor within \
                 the hour: of the others it is not known how much more they can take. A fault that slows a \
                 pod without load makes it too low.",
            )
            .decimals(0)
            .no_value("not near the limit")
            .thresholds(BAD, &[(0.0, "orange"), (1.0, GOOD)])
            .background()
            .no_graph()
            .now_or("room", format!("sum (\n{}\n)", room()), NEVER_NEAR)
            .size(5, 9),
        table("Room of each pod (estimate)")
            .about(
                "The most in flight that kept the decode floor within the last hour, and how many more fit, \
                 where that is known: those with the least room first. See the panel beside for the method.",
            )
            .rows(load(WINDOW))
            .rows_or(safe(), "only with an objective of decode rate, and where it was kept within the last hour")
            .rows_or(room(), NEVER_NEAR)
            .joined(
                &POD_COLUMNS,
                vec![
                    Column::new("In flight", "short", 0),
                    Column::new("Floor kept at", "short", 0),
                    Column::new("Room", "short", 0).colored(BAD, &[(0.0, "orange"), (1.0, GOOD)]),
                ],
            )
            .sorted("Room", false)
            .instances_lead_to_pods()
            .size(11, 9),
        scatter("Speed of a stream against load", X, Y)
            .about(
                "Each point is a pod at a moment of the time range: how many requests it had in flight, and \
                 how many tokens per second half of its streams exceeded. Where the cloud bends down, more \
                 users cost every user speed.",
            )
            .range_rows(load(WINDOW))
            .range_rows(quantile(0.5, Id::DecodeRate).by_pod())
            .transform("merge", json!({}))
            .organized(json!({}), json!({"Value #A": X, "Value #B": Y})),
    ];
    Row::open("Capacity", (8, 9), panels)
}

fn queue() -> Row {
    let panels = vec![
        stacked("In flight", "short")
            .about(
                "Open exchanges: those that wait for their first token (in the queue or in prefill), and \
                 those that stream.",
            )
            .range("{{phase}}", sum(Id::InFlight).by(Key::Phase))
            .phase_colors(),
        stacked("The engine's view", "short")
            .about("Requests that the engines run, and that wait in their queues, by their own metrics.")
            .range("running", sum(Id::EngineRunning))
            .range("waiting", sum(Id::EngineWaiting))
            .may_be_empty(ENGINE)
            .color("^waiting$", "orange")
            .color("^running$", GOOD),
        graph("Longest wait of those in flight", "s")
            .about(
                "For their first token, or for their next one: what no histogram shows, because it has not \
                 ended.",
            )
            .range("{{phase}}", max(Id::InFlightWaited).by(Key::Phase))
            .may_be_empty("only while something is in flight")
            .phase_colors(),
        heatmap("Queue time", "s", buckets(Id::QueueTime))
            .about("How many requests waited how long in the server's queue, where it tells that of each.")
            .trace_links()
            .may_be_empty(QUEUE_REPORTED),
        graph("Queue time by source (p95)", "s")
            .about(
                "Times of different sources are never mixed (docs/QUEUE_TIME.md). The estimate is the mean of \
                 what the engine's own metrics gained.",
            )
            .trace_links()
            .range("{{source}}", quantile(0.95, Id::QueueTime).by(Key::Source))
            .exemplars()
            .optional(QUEUE_REPORTED)
            .range_or(
                "estimate (mean)",
                max(Id::QueueTimeEstimate),
                "only where the engine's own metrics tell its waits",
            ),
        graph("Little's law", "short")
            .about(
                "What is in flight, and arrivals by duration of what ended. They are the same in a steady \
                 state; in flight above: requests come in faster than they end.",
            )
            .range("in flight", format!("sum (avg_over_time({}[{WINDOW}]))", series(Id::InFlight)))
            .range("arrivals × duration", sum_rate(Id::RequestDuration)),
    ];
    Row::open("Queue", (8, 8), panels)
}

fn saturation() -> Row {
    let panels = vec![
        graph("Key-value cache", "percentunit")
            .about(
                "Share in use, of the ten fullest engines. At 100 % the engine preempts requests, or lets \
                 them wait.",
            )
            .max(1)
            .dashed_limit(0.95)
            .range(POD_LEGEND, top(10, max(Id::EngineKvUsage).by_pod()))
            .may_be_empty(ENGINE),
        graph("Silence of the engines", "s")
            .about(
                "How long no token came to anybody while the engine owed some, and the bound beyond which it \
                 counts as wedged. 0: it owes nothing.",
            )
            .range("longest silence", max(Id::EngineSilence))
            .range_or("lowest bound", min(Id::EngineSilenceBound), "only while an engine owes tokens")
            .color("^lowest bound$", BAD)
            .named("lowest bound", &[("custom.lineStyle", dashes()), ("custom.fillOpacity", json!(0))]),
        graph("Tokens per second of each pod", MANY_TOKENS_PER_SECOND)
            .about("The ten pods with the most output. Flat while the queue grows: they are saturated.")
            .range(POD_LEGEND, top(10, total(Id::LiveTokens).by_pod()))
            .series_lead_to_pods(),
    ];
    Row::open("Saturation", (8, 8), panels)
}

fn the_engine_own_figures() -> Row {
    let panels = vec![
        graph("Preemptions per second", "ops")
            .about("Requests that lost their place in the engine and were begun anew: it took in too many.")
            .range(POD_LEGEND, total(Id::EnginePreemptions).by_pod())
            .may_be_empty(ENGINE),
        graph("Prefix cache", "percentunit")
            .about("Share of lookups that were answered, by the engine's own metrics.")
            .max(1)
            .range("hits", share(total(Id::EngineCacheHits), divisor(total(Id::EngineCacheQueries))))
            .range("the engine's figure", avg(Id::EngineCacheRatio).only(Key::Source, "engine_gauge"))
            .may_be_empty(ENGINE),
        graph("Speculative decoding", "percentunit")
            .about("Share of the proposed tokens that the model accepted.")
            .max(1)
            .range("accepted", share(total(Id::EngineAccepted), divisor(total(Id::EngineDrafted))))
            .range("lately", avg(Id::EngineAcceptanceRatio))
            .may_be_empty(ENGINE),
        graph("GPU", "percent")
            .about(
                "Utilisation by NVIDIA's DCGM exporter. High while idle or waiting, it says little about \
                 speed.",
            )
            .max(100)
            .range("{{pod}}", r#"avg by (pod) (DCGM_FI_DEV_GPU_UTIL{namespace=~"$namespace"})"#)
            .may_be_empty("only with the DCGM exporter"),
    ];
    Row::folded("The engine's own figures", (6, 8), panels)
}

/// Requests in flight per pod, averaged over a short window to match the rates alongside.
fn load(window: &str) -> String {
    format!("sum by ({POD}) (avg_over_time({}[{window}]))", series(Id::InFlight))
}

/// The slow tail compared with the floor.
fn tail(operator: &str) -> String {
    let tail = quantile(0.1, Id::DecodeRate).by_pod().over("5m");
    format!("(({tail}) {operator} on () group_left () {})", decode_floor().value)
}

/// The maximum that each pod had in flight within the last hour while its slow tail still met the floor.
fn safe() -> String {
    format!("max_over_time((\n{}\nand on ({POD})\n{}\n)[1h:1m])", load("5m"), tail(">="))
}

/// More requests that fit; negative if there are too many already. Only of pods that were below the floor within the
/// last hour: the capacity of the others is unknown.
fn room() -> String {
    let was_below = format!("count_over_time(({})[1h:1m])", tail("<"));
    format!("(\n{}\n- on ({POD})\n{}\n)\nand on ({POD})\n{was_below}", safe(), load(WINDOW))
}
