//! Latency and speed: first tokens, decoding, time per phase, and the shape of the traffic.

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives::*;
use crate::dashboards::promql::*;
use crate::dashboards::viz::*;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

const REPORTED: &str = "only where the engine tells it";
const CLASSES: &str = "only with telemetry.prompt_classes";
const USAGE: &str = "only with the GenAI names of v1.41, and where the engine tells its usage";

pub(super) fn board() -> Board {
    Board {
        uid: boards::LATENCY,
        title: "Tokometer / Latency and speed",
        description: "How long until the first token, how fast the tokens come then, where the time goes, and what is asked for.",
        by_objective: false,
        rows: vec![
            first_token(),
            tokens(),
            where_the_time_goes(),
            what_ends_without_a_token(),
            shape_of_the_traffic(),
            by_class_of_prompt(),
        ],
    }
}

fn first_token() -> Row {
    let panels = vec![
        graph("Time to first token", "s")
            .about(
                "From the last byte of the request to the first token on any channel, of streamed answers \
                 however they ended. The dashed line is the objective's limit; p99 above it is red. Points \
                 are exemplars: each leads to the trace of a request.",
            )
            .quantiles(&[0.5, 0.95, 0.99], Id::OwnTimeToFirstToken)
            .exemplars()
            .limit(quantile(0.99, Id::OwnTimeToFirstToken), first_token_limit())
            .trace_links(),
        graph("Four first times (p95)", "s")
            .about(
                "Of streams: headers, the first event, the first token on any channel, and the first text \
                 that a person reads are four moments. Headers long before the token: the server accepts and \
                 then queues. Token long before visible: it reasons or calls a tool.",
            )
            .trace_links()
            .range("headers", quantile(0.95, Id::OwnTimeToHeaders).only(Key::Streaming, "true"))
            .range("first event", quantile(0.95, Id::OwnTimeToFirstEvent))
            .range("first token", quantile(0.95, Id::OwnTimeToFirstToken))
            .exemplars()
            .range("first visible", quantile(0.95, Id::OwnTimeToFirstVisible))
            .size(8, 9),
        graph("Time to first token by model (p95)", "s")
            .about("The ten models whose first tokens come latest.")
            .range(
                MODEL_LEGEND,
                format!("topk(10,\n{}\n)", quantile(0.95, Id::OwnTimeToFirstToken).by(Key::ResponseModel)),
            )
            .link("Only this model", &board_of(boards::LATENCY, "model", "__field.labels.gen_ai_response_model"))
            .size(7, 9),
    ];
    Row::open("First token", (9, 9), panels)
}

fn tokens() -> Row {
    let stalls = format!("1000 * {}", share(by_model(Id::Stalls), divisor(by_model(Id::LiveTokens))));
    let panels = vec![
        graph("Decode rate of a stream", TOKENS_PER_SECOND)
            .about(
                "Tokens per second between the first and the last token of one stream: p10 is the slow tail, \
                 which nine of ten streams exceed. The dashed line is the objective's floor; p10 below it is \
                 red.",
            )
            .doubling()
            .quantiles(&[0.1], Id::DecodeRate)
            .exemplars()
            .quantiles(&[0.5, 0.9], Id::DecodeRate)
            .limit(quantile(0.1, Id::DecodeRate), decode_floor())
            .trace_links()
            .size(9, 9),
        graph("Gap between tokens", "s")
            .about(
                "Time from one token to the next, moving while streams pass. The dashed line is the gap that \
                 an objective calls a stall.",
            )
            .quantiles(&[0.5, 0.95, 0.99], Id::InterTokenLatency)
            .exemplars()
            .limit(quantile(0.99, Id::InterTokenLatency), gap_limit())
            .trace_links(),
        graph("Stalls per 1 000 output tokens", "short")
            .about("Gaps over the stall threshold (`observe.stall`) that the client did not cause.")
            .range(MODEL_LEGEND, stalls)
            .size(7, 9),
        graph("Slowest pods (decode p10)", TOKENS_PER_SECOND)
            .about(
                "The eight pods with the slowest tails. One far below the others has a bad GPU or a noisy \
                 neighbour; click it.",
            )
            .doubling()
            .range(POD_LEGEND, format!("bottomk(8,\n{}\n)", quantile(0.1, Id::DecodeRate).by_pod()))
            .series_lead_to_pods(),
        heatmap("Decode rates", TOKENS_PER_SECOND, buckets(Id::DecodeRate))
            .about(
                "How many streams had how many tokens per second. Two bands are two kinds of traffic, or two \
                 kinds of machine.",
            )
            .trace_links(),
        heatmap("Gaps between tokens", "s", buckets(Id::InterTokenLatency))
            .about(
                "How many gaps were how long. A band far above the rest is preemption, or prefill of others \
                 between the steps.",
            )
            .trace_links(),
    ];
    Row::open("Tokens", (8, 9), panels)
}

fn where_the_time_goes() -> Row {
    let phases = sum_rate(Id::PhaseDuration).by(Key::Phase).parsed();
    let phases = format!("({phases})\n/ on () group_left ()\n{}", divisor(total(Id::Requests).parsed()));
    let panels = vec![
        stacked("Mean time of an exchange, by what it was", "s")
            .about(
                "The phases add up to the time from the first byte of a request to its end. `waiting`: \
                 preprocessing, queue and prefill, where nobody told them apart (docs/TRACES.md).",
            )
            .range("{{phase}}", phases)
            .size(10, 9),
        graph("Prefill rate", MANY_TOKENS_PER_SECOND)
            .about(
                "Uncached prompt tokens per second of the time to the first token without the queue: only of \
                 requests where the cache and the queue are known.",
            )
            .trace_links()
            .range_or("p10", quantile(0.1, Id::PrefillRate), REPORTED)
            .range("p50", quantile(0.5, Id::PrefillRate))
            .exemplars()
            .optional(REPORTED),
        graph("Time that clients did not take", "s")
            .about(
                "Streams' time in which the client took no bytes: it is slow, or its network is. It is never \
                 counted as the server's.",
            )
            .range("mean", mean(Id::DeliveryBlocked))
            // Below the first bucket's bound a quantile is only an interpolation of that bound.
            .range_or(
                "p99, where over 1 ms",
                format!("({}) > 0.001", quantile(0.99, Id::DeliveryBlocked)),
                "only where a client was slow",
            ),
    ];
    Row::open("Where the time goes", (7, 9), panels)
}

fn what_ends_without_a_token() -> Row {
    let waits = quantile(0.95, Id::WaitWithoutFirstToken).by(Key::Outcome).without(Key::Outcome, "ok");
    // A quantile of nothing is NaN, which every comparison drops.
    let waits = format!("({waits}) >= 0");
    let panels = vec![
        graph("Waits that ended without a token (p95)", "s")
            .about(
                "How long those waited that never got a token, by how it ended. They are in no time to a \
                 first token, which is why that looks best when users give up.",
            )
            .range_or("{{outcome}}", waits, "only where an exchange ended without a token"),
        stacked("Exchanges that did not end well, per second", "reqps")
            .about("By outcome. Grey is what clients did.")
            .outcome_colors()
            .range_or(
                "{{outcome}}",
                positive(total(Id::Requests).by(Key::Outcome).parsed().without(Key::Outcome, "ok")),
                "only where an exchange did not end well",
            ),
        stacked("Finish reasons per second", "ops")
            .about("Why the model stopped. `length`: the answer was cut by the limit on its tokens.")
            .range("{{finish_reason}}", total(Id::Finishes).by(Key::FinishReason)),
    ];
    Row::open("What ends without a token", (8, 8), panels)
}

fn shape_of_the_traffic() -> Row {
    let panels = vec![
        heatmap("Prompt length", "short", usage("input", Id::OperationInput))
            .about("Tokens of prompts, by the engine's own count.")
            .may_be_empty(USAGE)
            .size(7, 8),
        heatmap("Answer length", "short", usage("output", Id::OperationOutput))
            .about("Tokens of answers, by the engine's own count.")
            .may_be_empty(USAGE)
            .size(7, 8),
        graph("Prompt tokens from the cache", "percentunit")
            .about(
                "Share of prompt tokens that came from the cache, as the engine tells it per request. When it \
                 falls, times to the first token rise without any fault of the server.",
            )
            .max(1)
            .range_or(MODEL_LEGEND, share(by_model(Id::CachedTokens), divisor(by_model(Id::InputTokens))), REPORTED),
        graph("Tokens per event", "short")
            .about(
                "Mean tokens in one event after the first, where the engine tells them: above 1 it sends in \
                 batches or speculates.",
            )
            .range_or(MODEL_LEGEND, mean(Id::ChunkTokens).by(Key::ResponseModel), REPORTED),
    ];
    Row::open("Shape of the traffic", (5, 8), panels)
}

fn by_class_of_prompt() -> Row {
    let panels = vec![
        graph("Time to first token by length of the prompt (p95)", "s")
            .about("A change of the prompts' mix is not a change of the server.")
            .range("{{input_length_class}}", by_class(Key::InputLengthClass))
            .may_be_empty(CLASSES),
        graph("Time to first token by cache hit (p95)", "s")
            .about("How much of the prompt the engine had in its cache.")
            .range("{{cache_hit_class}}", by_class(Key::CacheHitClass))
            .may_be_empty(CLASSES),
    ];
    Row::folded("By class of prompt", (12, 8), panels)
}

fn by_model(id: Id) -> Expr {
    total(id).by(Key::ResponseModel)
}

fn by_class(key: Key) -> Expr {
    quantile(0.95, Id::OwnTimeToFirstToken).by(key).without(key, "")
}

/// Token counts by the metric of the GenAI conventions, and by its successor.
fn usage(token_type: &str, successor: Id) -> String {
    format!("{}\nor on ()\n{}", buckets(Id::TokenUsage).only(Key::TokenType, token_type), buckets(successor))
}
