//! Latency and speed: first tokens, decoding, time per phase, and the shape of the traffic.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives;
use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Target;
use crate::dashboards::promql::Label;
use crate::dashboards::promql::MODEL;
use crate::dashboards::promql::POD;
use crate::dashboards::promql::POD_LEGEND;
use crate::dashboards::promql::added_up;
use crate::dashboards::promql::buckets;
use crate::dashboards::promql::is;
use crate::dashboards::promql::is_not;
use crate::dashboards::promql::mean;
use crate::dashboards::promql::quantile;
use crate::dashboards::promql::read;
use crate::dashboards::promql::share;
use crate::dashboards::promql::total;
use crate::dashboards::viz;
use crate::dashboards::viz::Limit;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

const TOLD: &str = "only where the engine tells it";
const CLASSES: &str = "only with telemetry.prompt_classes";
const USAGE: &str = "only with the GenAI names of v1.41, and where the engine tells its usage";

pub(super) fn board() -> Board {
    Board {
        uid: boards::LATENCY,
        title: "Tokometer / Latency and speed",
        description: "How long until the first token, how fast the tokens come then, where the time goes, and what is asked for.",
        by_objective: false,
        rows: vec![
            Row::open("First token", vec![first_token(), first_times(), first_token_by_model()]),
            Row::open("Tokens", vec![decode(), gaps(), stalls(), slowest(), decode_map(), gap_map()]),
            Row::open("Where the time goes", vec![phases(), prefill(), blocked()]),
            Row::open("What ends without a token", vec![given_up(), failures(), finishes()]),
            Row::open("Shape of the traffic", vec![prompts(), answers(), cached(), chunk_sizes()]),
            Row::folded("By class of prompt", vec![by_length(), by_cache()]),
        ],
    }
}

fn first_token() -> Panel {
    viz::to_traces(viz::with_limit(
        viz::graph(
            "Time to first token",
            "From the last byte of the request to the first token on any channel, of streamed answers however they ended. The dashed line is \
             the objective's limit; p99 above it is red. Points are exemplars: each leads to the trace of a request.",
            "s",
        )
        .target(Target::range("p50", quantile(0.5, Id::OwnTimeToFirstToken, &[], &[])))
        .target(Target::range("p95", quantile(0.95, Id::OwnTimeToFirstToken, &[], &[])))
        .target(Target::range("p99", quantile(0.99, Id::OwnTimeToFirstToken, &[], &[])).exemplars()),
        &quantile(0.99, Id::OwnTimeToFirstToken, &[], &[]),
        &objectives::first_token_limit(),
        Limit::Ceiling,
    ))
    .size(9, 9)
}

fn first_times() -> Panel {
    viz::to_traces(viz::graph(
        "Four first times (p95)",
        "Of streams: headers, the first event, the first token on any channel, and the first text that a person reads are four moments. Headers long \
         before the token: the server accepts and then queues. Token long before visible: it reasons or calls a tool.",
        "s",
    ))
    .target(Target::range("headers", quantile(0.95, Id::OwnTimeToHeaders, &[], &[is(Key::Streaming, "true")])))
    .target(Target::range("first event", quantile(0.95, Id::OwnTimeToFirstEvent, &[], &[])))
    .target(Target::range("first token", quantile(0.95, Id::OwnTimeToFirstToken, &[], &[])).exemplars())
    .target(Target::range("first visible", quantile(0.95, Id::OwnTimeToFirstVisible, &[], &[])))
    .size(8, 9)
}

fn first_token_by_model() -> Panel {
    viz::graph("Time to first token by model (p95)", "The ten models whose first tokens come latest.", "s")
        .target(Target::range(
            "{{gen_ai_response_model}}",
            format!("topk(10,\n{}\n)", quantile(0.95, Id::OwnTimeToFirstToken, &[MODEL], &[])),
        ))
        .link("Only this model", &viz::board_of(boards::LATENCY, "model", "__field.labels.gen_ai_response_model"))
        .size(7, 9)
}

fn decode() -> Panel {
    viz::to_traces(viz::with_limit(
        viz::doubling(viz::graph(
            "Decode rate of a stream",
            "Tokens per second between the first and the last token of one stream: p10 is the slow tail, which nine of ten streams exceed. The \
             dashed line is the objective's floor; p10 below it is red.",
            viz::TOKENS_PER_SECOND,
        ))
        .target(Target::range("p10", quantile(0.1, Id::DecodeRate, &[], &[])).exemplars())
        .target(Target::range("p50", quantile(0.5, Id::DecodeRate, &[], &[])))
        .target(Target::range("p90", quantile(0.9, Id::DecodeRate, &[], &[]))),
        &quantile(0.1, Id::DecodeRate, &[], &[]),
        &objectives::decode_floor(),
        Limit::Floor,
    ))
    .size(9, 9)
}

fn gaps() -> Panel {
    viz::to_traces(viz::with_limit(
        viz::graph(
            "Gap between tokens",
            "Time from one token to the next, moving while streams pass. The dashed line is the gap that an objective calls a stall.",
            "s",
        )
        .target(Target::range("p50", quantile(0.5, Id::InterTokenLatency, &[], &[])))
        .target(Target::range("p95", quantile(0.95, Id::InterTokenLatency, &[], &[])))
        .target(Target::range("p99", quantile(0.99, Id::InterTokenLatency, &[], &[])).exemplars()),
        &quantile(0.99, Id::InterTokenLatency, &[], &[]),
        &objectives::gap_limit(),
        Limit::Ceiling,
    ))
    .size(8, 9)
}

fn stalls() -> Panel {
    viz::graph(
        "Stalls per 1 000 output tokens",
        "Gaps over the stall threshold (`observe.stall_ms`) that the client did not cause.",
        "short",
    )
    .target(Target::range(
        "{{gen_ai_response_model}}",
        format!(
            "1000 * {}",
            share(&total(Id::Stalls, &[MODEL], &[]), &format!("({} > 0)", total(Id::LiveTokens, &[MODEL], &[])))
        ),
    ))
    .size(7, 9)
}

fn slowest() -> Panel {
    viz::doubling(viz::graph(
        "Slowest pods (decode p10)",
        "The eight pods with the slowest tails. One far below the others has a bad GPU or a noisy neighbour; click it.",
        viz::TOKENS_PER_SECOND,
    ))
    .target(Target::range(POD_LEGEND, format!("bottomk(8,\n{}\n)", quantile(0.1, Id::DecodeRate, &POD, &[]))))
    .link("This pod", &viz::board_of(boards::POD, "instance", "__field.labels.instance"))
    .size(8, 9)
}

fn decode_map() -> Panel {
    viz::to_traces(viz::heatmap(
        "Decode rates",
        "How many streams had how many tokens per second. Two bands are two kinds of traffic, or two kinds of machine.",
        viz::TOKENS_PER_SECOND,
        buckets(Id::DecodeRate, &[]),
    ))
    .size(8, 9)
}

fn gap_map() -> Panel {
    viz::to_traces(viz::heatmap(
        "Gaps between tokens",
        "How many gaps were how long. A band far above the rest is preemption, or prefill of others between the steps.",
        "s",
        buckets(Id::InterTokenLatency, &[]),
    ))
    .size(8, 9)
}

fn phases() -> Panel {
    let all = total(Id::Exchanges, &[], &[read()]);
    viz::stacked(
        "Mean time of an exchange, by what it was",
        "The phases add up to the time from the first byte of a request to its end. `waiting`: preprocessing, queue and prefill, where \
         nobody told them apart (docs/TRACES.md).",
        "s",
    )
    .target(Target::range(
        "{{phase}}",
        format!(
            "({})\n/ on () group_left ()\n({all} > 0)",
            added_up(Id::PhaseDuration, &[Label::Of(Key::Phase)], &[read()])
        ),
    ))
    .size(10, 9)
}

fn prefill() -> Panel {
    viz::to_traces(viz::graph(
        "Prefill rate",
        "Uncached prompt tokens per second of the time to the first token without the queue: only of requests where the cache and the queue \
         are known.",
        viz::MANY_TOKENS_PER_SECOND,
    ))
    .target(Target::range("p10", quantile(0.1, Id::PrefillRate, &[], &[])).may_be_empty(TOLD))
    .target(Target::range("p50", quantile(0.5, Id::PrefillRate, &[], &[])).exemplars().may_be_empty(TOLD))
    .size(7, 9)
}

fn blocked() -> Panel {
    viz::graph(
        "Time that clients did not take",
        "Streams' time in which the client took no bytes: it is slow, or its network is. It is never counted as the server's.",
        "s",
    )
    .target(Target::range("mean", mean(Id::DeliveryBlocked, &[], &[])))
    // Below the first bucket's bound a quantile is only an interpolation of that bound.
    .target(
        Target::range("p99, where over 1 ms", format!("({}) > 0.001", quantile(0.99, Id::DeliveryBlocked, &[], &[])))
            .may_be_empty("only where a client was slow"),
    )
    .size(7, 9)
}

fn given_up() -> Panel {
    viz::graph(
        "Waits that ended without a token (p95)",
        "How long those waited that never got a token, by how it ended. They are in no time to a first token, which is why that looks best \
         when users give up.",
        "s",
    )
    .target(
        // The quantile of an empty histogram is NaN, which fails every comparison.
        Target::range(
            "{{outcome}}",
            format!(
                "({}) >= 0",
                quantile(0.95, Id::WaitWithoutFirstToken, &[Label::Of(Key::Outcome)], &[is_not(Key::Outcome, "ok")])
            ),
        )
        .may_be_empty("only where an exchange ended without a token"),
    )
    .size(8, 8)
}

fn failures() -> Panel {
    super::overview::outcome_colors(viz::stacked(
        "Exchanges that did not end well, per second",
        "By outcome. Grey is what clients did.",
        "reqps",
    ))
    .target(
        Target::range(
            "{{outcome}}",
            format!("{} > 0", total(Id::Exchanges, &[Label::Of(Key::Outcome)], &[read(), is_not(Key::Outcome, "ok")])),
        )
        .may_be_empty("only where an exchange did not end well"),
    )
    .size(8, 8)
}

fn finishes() -> Panel {
    viz::stacked(
        "Finish reasons per second",
        "Why the model stopped. `length`: the answer was cut by the limit on its tokens.",
        "ops",
    )
    .target(Target::range("{{finish_reason}}", total(Id::Finishes, &[Label::Of(Key::FinishReason)], &[])))
    .size(8, 8)
}

fn usage(title: &str, description: &str, kind: &'static str, latest: Id) -> Panel {
    let old = buckets(Id::TokenUsage, &[is(Key::TokenType, kind)]);
    viz::heatmap(title, description, "short", format!("{old}\nor on ()\n{}", buckets(latest, &[])))
        .may_be_empty(USAGE)
        .size(7, 8)
}

fn prompts() -> Panel {
    usage("Prompt length", "Tokens of prompts, by the engine's own count.", "input", Id::OperationInput)
}

fn answers() -> Panel {
    usage("Answer length", "Tokens of answers, by the engine's own count.", "output", Id::OperationOutput)
}

fn cached() -> Panel {
    let part = total(Id::CachedTokens, &[MODEL], &[]);
    let whole = total(Id::InputTokens, &[MODEL], &[]);
    viz::graph(
        "Prompt tokens from the cache",
        "Share of prompt tokens that came from the cache, as the engine tells it per request. When it falls, times to the first token rise without any fault of the server.",
        "percentunit",
    )
    .field("max", json!(1))
    .target(Target::range("{{gen_ai_response_model}}", share(&part, &format!("({whole} > 0)"))).may_be_empty(TOLD))
    .size(5, 8)
}

fn chunk_sizes() -> Panel {
    viz::graph(
        "Tokens per event",
        "Mean tokens in one event after the first, where the engine tells them: above 1 it sends in batches or speculates.",
        "short",
    )
    .target(
        Target::range("{{gen_ai_response_model}}", mean(Id::ChunkTokens, &[MODEL], &[])).may_be_empty(TOLD),
    )
    .size(5, 8)
}

fn by_length() -> Panel {
    viz::graph(
        "Time to first token by length of the prompt (p95)",
        "A change of the prompts' mix is not a change of the server.",
        "s",
    )
    .target(Target::range("{{input_length_class}}", by_class(Key::InputLengthClass)))
    .may_be_empty(CLASSES)
}

fn by_cache() -> Panel {
    viz::graph("Time to first token by cache hit (p95)", "How much of the prompt the engine had in its cache.", "s")
        .target(Target::range("{{cache_hit_class}}", by_class(Key::CacheHitClass)))
        .may_be_empty(CLASSES)
}

fn by_class(key: Key) -> String {
    let with = is_not(key, "");
    quantile(0.95, Id::OwnTimeToFirstToken, &[Label::Of(key)], &[with])
}
