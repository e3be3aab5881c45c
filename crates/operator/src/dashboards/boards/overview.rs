//! Fleet overview: current problems, service levels, and where they occur.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives::*;
use crate::dashboards::promql::*;
use crate::dashboards::viz::*;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

const REPORTED: &str = "only where the engine tells it";
const RULES: &str = "only where the rules of `tokometer rules` are loaded";
const TENANTS: &str = "only where tenants are told apart";

pub(super) fn board() -> Board {
    Board {
        uid: boards::OVERVIEW,
        title: "Tokometer / Fleet overview",
        description: "Is any objective burning, is anything down, how good is it, and where is it worst.",
        by_objective: false,
        rows: vec![
            is_anything_wrong(),
            how_good_is_it_now(),
            traffic(),
            latency_and_speed(),
            by_model_and_pod(),
            fleet(),
            tenants_and_cost(),
        ],
    }
}

fn is_anything_wrong() -> Row {
    let by = format!("{}, {}", Key::Slo.label(), Key::Model.label());
    let alerts = |state: &str| {
        format!(
            "count (ALERTS{{alertname=~\"LLM.+\",alertstate=\"{state}\",namespace=~\"$namespace\"}}) or 0 * count (slo:objective:ratio)"
        )
    };
    let pending = [json!({"color": GOOD, "value": null}), json!({"color": "orange", "value": 1})];
    let pending = json!({"mode": "absolute", "steps": pending});
    let failures = |id: Expr| positive(format!("sum by ({POD}) ({id})"));
    let unreachable = format!(
        "count ({} or {}) or 0 * {}",
        failures(rate(Id::ConnectFailures)),
        failures(rate(Id::EngineScrapeFailures).only(Key::Reason, "connect")),
        count(Id::BuildInfo)
    );
    const FAILED: &str = "upstream_.*|truncated|error_in_stream|http_5xx|rejected_busy|no_output";
    let failed = total(Id::Requests).parsed().like(Key::Outcome, FAILED);
    let panels = vec![
        stat("Budget burn rate, 1 h", TIMES)
            .about(
                "How many times faster than allowed the worst objective of any model spent its error budget \
                 in the last hour. 1 spends it exactly in its period; at 14.4 the budget of 30 days is gone \
                 in two, and somebody is paged. Grey: no exchange was judged.",
            )
            .idle_is_grey()
            .decimals(1)
            .thresholds(GOOD, &BURN_LIMITS)
            .background()
            .range("burn rate", format!("max (\n{}\n)", burn_from_counters(&by)))
            .leads_to("Objectives and error budgets", boards::SLO),
        alarm("Alerts")
            .about(
                "Alerts of `tokometer rules` that fire now, and those that will if it lasts. \"no rules\": \
                 this Prometheus has not loaded them.",
            )
            .no_value("no rules")
            .with_names()
            .now_or("firing", alerts("firing"), RULES)
            .now_or("pending", alerts("pending"), RULES)
            .named("pending", &[("thresholds", pending)])
            .leads_to("Objectives and error budgets", boards::SLO),
        alarm("Not working")
            .about(
                "Tokometers that are not scraped any more, servers that could not be reached (by a client's \
                 connection or by the reading of their metrics), and servers that owe tokens and send none \
                 for longer than their bound. A server without work is none of these.",
            )
            .with_names()
            .now("sidecars down", sidecars_down())
            .now("engines unreachable", unreachable)
            .now("engines wedged", sum(Id::EngineWedged))
            .leads_to("Pods", boards::POD)
            .size(6, 5),
        stat("Waiting requests", "short")
            .about(
                "Exchanges in flight whose first token has not come: they are in the server's queue, or in \
                 prefill.",
            )
            .range("waiting", sum(Id::InFlight).only(Key::Phase, "waiting_first_token"))
            .leads_to("Queue and saturation", boards::QUEUE)
            .size(4, 5),
        stat("Failures", "percentunit")
            .about(
                "Share of exchanges that the server failed: unreachable, reset, timed out, truncated, an \
                 error in the stream, 5xx, turned away, or no output. Not those that clients ended, nor 4xx.",
            )
            .idle_is_grey()
            .decimals(2)
            .thresholds(GOOD, &[(0.005, "orange"), (0.05, BAD)])
            .range("failures", or_idle(share(failed, total(Id::Requests).parsed())))
            .leads_to("Latency and speed", boards::LATENCY)
            .size(4, 5),
    ];
    Row::open("Is anything wrong?", (5, 5), panels)
}

fn how_good_is_it_now() -> Row {
    let panels = vec![
        judged("Goodput", "percentunit", goodput(), goodput_target())
            .about(
                "Share of exchanges that were good by every objective that is about them; red below the \
                 objective's target. Grey: nothing was judged.",
            )
            .decimals(2)
            .leads_to("Objectives and error budgets", boards::SLO),
        stat("Output tokens per second", MANY_TOKENS_PER_SECOND)
            .about(
                "Of all streams together, counted while they pass. It is a lower bound until a stream has \
                 ended.",
            )
            .range("output", or_zero(total(Id::LiveTokens)))
            .leads_to("Latency and speed", boards::LATENCY),
        judged("Decode rate, slow tail (p10)", TOKENS_PER_SECOND, quantile(0.1, Id::DecodeRate), decode_floor())
            .about(
                "Nine of ten streams were faster than this between their first and last token; red below the \
                 objective's floor. Grey: no stream has ended.",
            )
            .decimals(1)
            .leads_to("Latency and speed", boards::LATENCY),
        judged("Time to first token (p99)", "s", quantile(0.99, Id::OwnTimeToFirstToken), first_token_limit())
            .about(
                "One of a hundred streams waited longer; red above the objective's limit (its part that does \
                 not depend on the prompt). Grey: no stream has ended.",
            )
            .decimals(2)
            .leads_to("Latency and speed", boards::LATENCY),
    ];
    Row::open("How good is it now?", (6, 4), panels)
}

fn traffic() -> Row {
    let panels = vec![
        stacked("Exchanges per second by outcome", "reqps")
            .about(
                "How exchanges ended, each in one way. Grey is what clients did, warm colours are what the \
                 server failed.",
            )
            .outcome_colors()
            .range("{{outcome}}", positive(total(Id::Requests).by(Key::Outcome).parsed())),
        graph("Tokens per second", MANY_TOKENS_PER_SECOND)
            .about(
                "Prompt tokens of exchanges that ended, those of them from the cache, and output as it \
                 passes; reasoning is a part of the output.",
            )
            .range("output", total(Id::LiveTokens))
            .range("prompt", total(Id::InputTokens))
            .range_or("prompt, cached", total(Id::CachedTokens), REPORTED)
            .range_or("reasoning", total(Id::ReasoningTokens), REPORTED),
    ];
    Row::open("Traffic", (12, 8), panels)
}

fn latency_and_speed() -> Row {
    let panels = vec![
        heatmap("Time to first token", "s", buckets(Id::OwnTimeToFirstToken))
            .about(
                "How many streams got their first token after how long. Points are exemplars: each leads to \
                 the trace of a request.",
            )
            .trace_links(),
        heatmap("Decode rate", TOKENS_PER_SECOND, buckets(Id::DecodeRate))
            .about(
                "How many streams had how many tokens per second between their first and last token. Points \
                 are exemplars.",
            )
            .trace_links(),
        graph("Gap between tokens", "s")
            .about(
                "Time from one token to the next: half, 95 and 99 of a hundred are shorter. The line is the \
                 gap that counts as a stall.",
            )
            .quantiles(&[0.5], Id::InterTokenLatency)
            .exemplars()
            .quantiles(&[0.95, 0.99], Id::InterTokenLatency)
            .limit(quantile(0.99, Id::InterTokenLatency), gap_limit())
            .trace_links(),
    ];
    Row::open("Latency and speed", (8, 9), panels)
}

fn by_model_and_pod() -> Row {
    let (model, of_slo) = (Key::ResponseModel.label(), Key::Model.label());
    let burn = format!(
        "label_replace(max by ({of_slo}) (\n{}\n), \"{model}\", \"$1\", \"{of_slo}\", \"(.*)\")",
        burn_from_counters(&format!("{}, {of_slo}", Key::Slo.label()))
    );
    let url = board_of(boards::LATENCY, "model", "__value.raw:percentencode");
    let models = table("Models")
        .about(
            "Each model that answered: its traffic, its speed, and how fast its worst objective burns. \
                 What no model answered has a row of its own. Click a model for its latency and speed.",
        )
        .rows(total(Id::Requests).by(Key::ResponseModel).parsed())
        .rows(total(Id::LiveTokens).by(Key::ResponseModel))
        .rows(quantile(0.99, Id::OwnTimeToFirstToken).by(Key::ResponseModel))
        .rows(quantile(0.1, Id::DecodeRate).by(Key::ResponseModel))
        .rows(format!("sum by ({model}) ({burn}) >= 0"))
        .joined(
            &[(model, "Model")],
            vec![
                Column::new("Requests/s", "short", 2),
                Column::new("Output tok/s", "short", 1),
                Column::new("TTFT p99", "s", 2).idle(),
                Column::new("Decode p10", TOKENS_PER_SECOND, 1).idle(),
                Column::new("Burn 1 h", TIMES, 1).colored(GOOD, &BURN_LIMITS).idle(),
            ],
        )
        .named(
            "Model",
            &[
                ("links", json!([{"title": "Latency and speed of this model", "url": url}])),
                // Requests that no model served: rejected or turned away.
                ("mappings", special("empty", "(none answered)")),
            ],
        );
    // Without pods where no stream has ended: their quantile is NaN.
    let slowest = table("Ten slowest pods")
        .about(
            "By the decode rate that nine of ten of their streams exceed. Click an instance to look into \
                 it.",
        )
        .rows(format!("bottomk(10,\n({}) >= 0\n)", quantile(0.1, Id::DecodeRate).by_pod()))
        .joined(&POD_COLUMNS, vec![Column::new("Decode p10", TOKENS_PER_SECOND, 1)])
        .sorted("Decode p10", false)
        .instances_lead_to_pods()
        .size(11, 8);
    Row::open("Where", (13, 8), vec![models, slowest])
}

fn fleet() -> Row {
    let containers = ["init_container", "container"]
        .map(|kind| format!(r#"count (kube_pod_{kind}_info{{container="tokometer",namespace=~"$namespace"}})"#))
        .join(" or ");
    let panels = vec![
        states("What each server does", &ENGINE_STATES)
            .about(
                "Down is red, no work is grey: `not scraped` is a tokometer that does not answer, \
                 `unreachable` a server that takes no connection, `wedged` one that owes tokens and sends \
                 none, `idle` one that owes nothing, `mostly waiting` one with more requests before their \
                 first token than after it.",
            )
            .range(POD_LEGEND, engine_state())
            .series_lead_to_pods(),
        graph("Tokometers", "none")
            .about(
                "How many are scraped, by version, and how many containers Kubernetes knows of \
                 (kube-state-metrics). A gap between the two is traffic that nobody measures.",
            )
            .custom("lineInterpolation", "stepAfter")
            .range("scraped, {{version}}", count(Id::BuildInfo).by(Key::Version))
            .range_or("containers", containers, "only with kube-state-metrics")
            .size(8, 10),
    ];
    Row::open("Fleet", (16, 10), panels)
}

/// Who uses the fleet, and what it costs.
fn tenants_and_cost() -> Row {
    let all = total(Id::TenantRequests).by(Key::Tenant);
    let failed = all.clone().only(Key::OutcomeClass, "failure");
    let panels = vec![
        graph("Output tokens per second by tenant", MANY_TOKENS_PER_SECOND)
            .about(
                "The ten that get the most, of exchanges that ended. A tenant is a hash unless the settings \
                 name it (docs/TENANTS.md).",
            )
            .range("{{tenant}}", top(10, total(Id::TenantOutputTokens).by(Key::Tenant)))
            .may_be_empty(TENANTS),
        graph("Failures by tenant", "percentunit")
            .about(
                "Share of their exchanges that the server failed, of the ten for whom it is the largest. One \
                 far above the others asks for what others do not.",
            )
            .max(1)
            .range("{{tenant}}", top(10, positive(share(failed, all))))
            .may_be_empty("only where tenants are told apart, and an exchange of one failed"),
        graph("Cost per hour by model", "short")
            .about(
                "At the rate of the moment and the prices of the settings, in their currency; what is an \
                 estimate or a lower bound is in it.",
            )
            .range("{{model}} {{currency}}", format!("3600 * {}", total(Id::Cost).by(Key::Model).by(Key::Currency)))
            .may_be_empty("only where prices are set"),
    ];
    Row::folded("Tenants and cost", (8, 8), panels)
}
