//! Fleet overview: current problems, service levels, and where they occur.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::boards::tenants;
use crate::dashboards::objectives;
use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Target;
use crate::dashboards::promql::CHOSEN;
use crate::dashboards::promql::Label;
use crate::dashboards::promql::MODEL;
use crate::dashboards::promql::POD;
use crate::dashboards::promql::POD_LEGEND;
use crate::dashboards::promql::buckets;
use crate::dashboards::promql::is;
use crate::dashboards::promql::like;
use crate::dashboards::promql::list;
use crate::dashboards::promql::or_idle;
use crate::dashboards::promql::or_zero;
use crate::dashboards::promql::quantile;
use crate::dashboards::promql::rate;
use crate::dashboards::promql::read;
use crate::dashboards::promql::series;
use crate::dashboards::promql::share;
use crate::dashboards::promql::sum;
use crate::dashboards::promql::total;
use crate::dashboards::viz;
use crate::dashboards::viz::Column;
use crate::dashboards::viz::Limit;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

pub(super) fn board() -> Board {
    Board {
        uid: boards::OVERVIEW,
        title: "Tokometer / Fleet overview",
        description: "Is any objective burning, is anything down, how good is it, and where is it worst.",
        by_objective: false,
        rows: vec![
            Row::open("Is anything wrong?", vec![burning(), alerts(), down(), queue(), errors()]),
            Row::open("How good is it now?", vec![goodput(), throughput(), decode(), first_token()]),
            Row::open("Traffic", vec![outcomes(), tokens()]),
            Row::open("Latency and speed", vec![first_token_map(), decode_map(), gaps()]),
            Row::open("Where", vec![models(), worst()]),
            Row::open("Fleet", vec![states(), reporting()]),
            Row::folded("Tenants and cost", tenants::panels()),
        ],
    }
}

fn burning() -> Panel {
    let by = format!("{}, {}", Key::Slo.label(), Key::Model.label());
    viz::idle_is_grey(viz::stat(
        "Budget burn rate, 1 h",
        "How many times faster than allowed the worst objective of any model spent its error budget in the last hour. 1 spends it \
         exactly in its period; at 14.4 the budget of 30 days is gone in two, and somebody is paged. Grey: no exchange was judged.",
        "suffix: ×",
    ))
    .field("decimals", json!(1))
    .thresholds(viz::GOOD, &[(1.0, "dark-yellow"), (6.0, "dark-orange"), (14.4, viz::BAD)])
    .option("colorMode", json!("background"))
    .target(Target::range("burn rate", format!("max (\n{}\n)", objectives::burn_from_counters(&by))))
    .link("Objectives and error budgets", &viz::board(boards::SLO))
    .size(5, 5)
}

fn alerts() -> Panel {
    const RULES: &str = "only where the rules of `tokometer rules` are loaded";
    let count = |state: &str| {
        format!(
            "count (ALERTS{{alertname=~\"LLM.+\",alertstate=\"{state}\",namespace=~\"$namespace\"}}) or 0 * count (slo:objective:ratio)"
        )
    };
    viz::stat(
        "Alerts",
        "Alerts of `tokometer rules` that fire now, and those that will if it lasts. \"no rules\": this Prometheus has not loaded them.",
        "none",
    )
    .field("noValue", json!("no rules"))
    .thresholds(viz::GOOD, &[(1.0, viz::BAD)])
    .option("colorMode", json!("background"))
    .option("graphMode", json!("none"))
    .option("textMode", json!("value_and_name"))
    .target(Target::now("firing", count("firing")).may_be_empty(RULES))
    .target(Target::now("pending", count("pending")).may_be_empty(RULES))
    .named(
        "pending",
        &[(
            "thresholds",
            json!({"mode": "absolute", "steps": [{"color": viz::GOOD, "value": null}, {"color": "orange", "value": 1}]}),
        )],
    )
    .link("Objectives and error budgets", &viz::board(boards::SLO))
    .size(5, 5)
}

fn down() -> Panel {
    let by = list(&POD);
    let known = format!("last_over_time({}[1d])", series(Id::BuildInfo, &[]));
    let failures = rate(Id::ConnectFailures, &[]);
    let unread = rate(Id::EngineScrapeFailures, &[is(Key::Reason, "connect")]);
    viz::stat(
        "Not working",
        "Tokometers that are not scraped any more, servers that could not be reached (by a client's connection or by the reading of \
         their metrics), and servers that owe tokens and send none for longer than their bound. A server without work is none of these.",
        "none",
    )
    .thresholds(viz::GOOD, &[(1.0, viz::BAD)])
    .option("colorMode", json!("background"))
    .option("graphMode", json!("none"))
    .option("textMode", json!("value_and_name"))
    .target(Target::now("sidecars down", format!("sum ((up{{{CHOSEN}}} == bool 0) and on (job, instance) {known})")))
    .target(Target::now(
        "engines unreachable",
        format!("count (sum by ({by}) ({failures}) > 0 or sum by ({by}) ({unread}) > 0) or 0 * count ({})", series(Id::BuildInfo, &[])),
    ))
    .target(Target::now("engines wedged", format!("sum ({})", series(Id::EngineWedged, &[]))))
    .link("Pods", &viz::board(boards::POD))
    .size(6, 5)
}

fn queue() -> Panel {
    viz::stat(
        "Waiting requests",
        "Exchanges in flight whose first token has not come: they are in the server's queue, or in prefill.",
        "short",
    )
    .target(Target::range(
        "waiting",
        format!("sum ({})", series(Id::InFlight, &[is(Key::Phase, "waiting_first_token")])),
    ))
    .link("Queue and saturation", &viz::board(boards::QUEUE))
    .size(4, 5)
}

fn errors() -> Panel {
    let failed = total(
        Id::Exchanges,
        &[],
        &[read(), like(Key::Outcome, "upstream_.*|truncated|error_in_stream|http_5xx|rejected_busy|no_output")],
    );
    viz::idle_is_grey(viz::stat(
        "Failures",
        "Share of exchanges that the server failed: unreachable, reset, timed out, truncated, an error in the stream, 5xx, turned away, \
         or no output. Not those that clients ended, nor 4xx.",
        "percentunit",
    ))
    .field("decimals", json!(2))
    .thresholds(viz::GOOD, &[(0.005, "orange"), (0.05, viz::BAD)])
    .target(Target::range("failures", or_idle(&share(&failed, &total(Id::Exchanges, &[], &[read()])))))
    .link("Latency and speed", &viz::board(boards::LATENCY))
    .size(4, 5)
}

fn goodput() -> Panel {
    viz::judged(
        "Goodput",
        "Share of exchanges that were good by every objective that is about them; red below the objective's target. Grey: nothing was \
         judged.",
        "percentunit",
        &objectives::goodput(),
        &objectives::goodput_target(),
        Limit::Floor,
    )
    .field("decimals", json!(2))
    .link("Objectives and error budgets", &viz::board(boards::SLO))
}

fn throughput() -> Panel {
    viz::stat(
        "Output tokens per second",
        "Of all streams together, counted while they pass. It is a lower bound until a stream has ended.",
        viz::MANY_TOKENS_PER_SECOND,
    )
    .target(Target::range("output", or_zero(&total(Id::LiveTokens, &[], &[]))))
    .link("Latency and speed", &viz::board(boards::LATENCY))
}

fn decode() -> Panel {
    viz::judged(
        "Decode rate, slow tail (p10)",
        "Nine of ten streams were faster than this between their first and last token; red below the objective's floor. Grey: no stream \
         has ended.",
        viz::TOKENS_PER_SECOND,
        &quantile(0.1, Id::DecodeRate, &[], &[]),
        &objectives::decode_floor(),
        Limit::Floor,
    )
    .field("decimals", json!(1))
    .link("Latency and speed", &viz::board(boards::LATENCY))
}

fn first_token() -> Panel {
    viz::judged(
        "Time to first token (p99)",
        "One of a hundred streams waited longer; red above the objective's limit (its part that does not depend on the prompt). Grey: no \
         stream has ended.",
        "s",
        &quantile(0.99, Id::OwnTimeToFirstToken, &[], &[]),
        &objectives::first_token_limit(),
        Limit::Ceiling,
    )
    .field("decimals", json!(2))
    .link("Latency and speed", &viz::board(boards::LATENCY))
}

/// Colours of outcomes: warm for server failures, grey for client behaviour.
pub(super) fn outcome_colors(panel: Panel) -> Panel {
    panel
        .color("^ok", viz::GOOD)
        .color("^client_abort_before", viz::IDLE)
        .color("^client_abort_mid", "#c7c7d1")
        .color("^drained", "#b0c4de")
        .color("^unobserved", "#8a8a99")
        .color("^http_4xx", "light-yellow")
        .color("^rejected_busy", "orange")
        .color("^http_5xx", viz::BAD)
        .color("^upstream_refused", "dark-red")
        .color("^upstream_reset", "semi-dark-red")
        .color("^upstream_timeout", "light-red")
        .color("^truncated", "purple")
        .color("^error_in_stream", "dark-orange")
        .color("^no_output", "light-purple")
}

fn outcomes() -> Panel {
    outcome_colors(viz::stacked(
        "Exchanges per second by outcome",
        "How exchanges ended, each in one way. Grey is what clients did, warm colours are what the server failed.",
        "reqps",
    ))
    .target(Target::range(
        "{{outcome}}",
        format!("{} > 0", total(Id::Exchanges, &[Label::Of(Key::Outcome)], &[read()])),
    ))
}

fn tokens() -> Panel {
    const TOLD: &str = "only where the engine tells it";
    viz::graph(
        "Tokens per second",
        "Prompt tokens of exchanges that ended, those of them from the cache, and output as it passes; reasoning is a part of the output.",
        viz::MANY_TOKENS_PER_SECOND,
    )
    .target(Target::range("output", total(Id::LiveTokens, &[], &[])))
    .target(Target::range("prompt", total(Id::InputTokens, &[], &[])))
    .target(Target::range("prompt, cached", total(Id::CachedTokens, &[], &[])).may_be_empty(TOLD))
    .target(Target::range("reasoning", total(Id::ReasoningTokens, &[], &[])).may_be_empty(TOLD))
}

fn first_token_map() -> Panel {
    viz::to_traces(viz::heatmap(
        "Time to first token",
        "How many streams got their first token after how long. Points are exemplars: each leads to the trace of a request.",
        "s",
        buckets(Id::OwnTimeToFirstToken, &[]),
    ))
    .size(8, 9)
}

fn decode_map() -> Panel {
    viz::to_traces(viz::heatmap(
        "Decode rate",
        "How many streams had how many tokens per second between their first and last token. Points are exemplars.",
        viz::TOKENS_PER_SECOND,
        buckets(Id::DecodeRate, &[]),
    ))
    .size(8, 9)
}

fn gaps() -> Panel {
    viz::to_traces(viz::with_limit(
        viz::graph(
            "Gap between tokens",
            "Time from one token to the next: half, 95 and 99 of a hundred are shorter. The line is the gap that counts as a stall.",
            "s",
        )
        .target(Target::range("p50", quantile(0.5, Id::InterTokenLatency, &[], &[])).exemplars())
        .target(Target::range("p95", quantile(0.95, Id::InterTokenLatency, &[], &[])))
        .target(Target::range("p99", quantile(0.99, Id::InterTokenLatency, &[], &[]))),
        &quantile(0.99, Id::InterTokenLatency, &[], &[]),
        &objectives::gap_limit(),
        Limit::Ceiling,
    ))
    .size(8, 9)
}

fn models() -> Panel {
    let model = [MODEL];
    let of_slo = Key::Model.label();
    let burn = format!(
        "label_replace(max by ({of_slo}) (\n{}\n), \"{}\", \"$1\", \"{of_slo}\", \"(.*)\")",
        objectives::burn_from_counters(&format!("{}, {of_slo}", Key::Slo.label())),
        MODEL.name()
    );
    let panel = viz::table(
        "Models",
        "Each model that answered: its traffic, its speed, and how fast its worst objective burns. What no model answered has a row of its own. Click a model for its latency and speed.",
    )
    .target(Target::rows(total(Id::Exchanges, &model, &[read()])))
    .target(Target::rows(total(Id::LiveTokens, &model, &[])))
    .target(Target::rows(quantile(0.99, Id::OwnTimeToFirstToken, &model, &[])))
    .target(Target::rows(quantile(0.1, Id::DecodeRate, &model, &[])))
    .target(Target::rows(format!("{} >= 0", sum(&model, &burn))))
    .size(13, 8);
    viz::joined(
        panel,
        &[(MODEL.name(), "Model")],
        vec![
            Column::new('A', "Requests/s", "short").with("decimals", json!(2)),
            Column::new('B', "Output tok/s", "short").with("decimals", json!(1)),
            Column::new('C', "TTFT p99", "s").with("decimals", json!(2)).idle(),
            Column::new('D', "Decode p10", viz::TOKENS_PER_SECOND).with("decimals", json!(1)).idle(),
            Column::new('E', "Burn 1 h", "suffix: ×")
                .with("decimals", json!(1))
                .colored("green", &[(1.0, "dark-yellow"), (6.0, "dark-orange"), (14.4, "red")])
                .idle(),
        ],
    )
        .named(
        "Model",
        &[
            (
                "links",
                json!([{"title": "Latency and speed of this model", "url": viz::board_of(boards::LATENCY, "model", "__value.raw:percentencode")}]),
            ),
            // Requests that no model served: rejected or turned away.
            (
                "mappings",
                json!([{"type": "special", "options": {"match": "empty", "result": {"text": "(none answered)", "color": viz::IDLE, "index": 0}}}]),
            ),
        ],
    )
}

fn worst() -> Panel {
    // Excludes pods on which no stream has ended: their quantile is NaN.
    let slow = format!("bottomk(10,\n({}) >= 0\n)", quantile(0.1, Id::DecodeRate, &POD, &[]));
    let panel = viz::table(
        "Ten slowest pods",
        "By the decode rate that nine of ten of their streams exceed. Click an instance to look into it.",
    )
    .target(Target::rows(slow))
    .size(11, 8);
    viz::joined(
        panel,
        &[("namespace", "Namespace"), ("pod", "Pod"), ("instance", "Instance")],
        vec![Column::new('A', "Decode p10", viz::TOKENS_PER_SECOND).with("decimals", json!(1))],
    )
    .transform("sortBy", json!({"sort": [{"field": "Decode p10", "desc": false}]}))
    .named(
        "Instance",
        &[(
            "links",
            json!([{"title": "This pod", "url": viz::board_of(boards::POD, "instance", "__value.raw:percentencode")}]),
        )],
    )
}

fn states() -> Panel {
    viz::states(
        "What each server does",
        "Down is red, no work is grey: `not scraped` is a tokometer that does not answer, `unreachable` a server that takes no \
         connection, `wedged` one that owes tokens and sends none, `idle` one that owes nothing, `mostly waiting` one with more requests \
         before their first token than after it.",
        &objectives::ENGINE_STATES,
    )
    .target(Target::range(POD_LEGEND, objectives::engine_state()))
    .link("This pod", &viz::board_of(boards::POD, "instance", "__field.labels.instance"))
    .size(16, 10)
}

fn reporting() -> Panel {
    viz::graph(
        "Tokometers",
        "How many are scraped, by version, and how many containers Kubernetes knows of (kube-state-metrics). A gap between the two is \
         traffic that nobody measures.",
        "none",
    )
    .custom("lineInterpolation", json!("stepAfter"))
    .target(Target::range("scraped, {{version}}", format!("count by ({}) ({})", Key::Version.label(), series(Id::BuildInfo, &[]))))
    .target(
        Target::range(
            "containers",
            r#"count (kube_pod_init_container_info{container="tokometer",namespace=~"$namespace"}) or count (kube_pod_container_info{container="tokometer",namespace=~"$namespace"})"#,
        )
        .may_be_empty("only with kube-state-metrics"),
    )
    .size(8, 10)
}
