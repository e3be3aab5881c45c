//! Entries with the newest names of the GenAI conventions.

use crate::export::table::Generation;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::buckets;
use crate::export::table::build::by;
use crate::export::table::build::counter;
use crate::export::table::build::histogram;
use crate::export::table::build::of_gen_ai;

pub(super) const USAGE_INPUT: Metric = of_gen_ai(
    by(
        counter(
            Id::UsageInput,
            "gen_ai.client.inference.usage.input_tokens",
            "{token}",
            Scope::GenAi,
            "Prompt tokens, including cached ones",
        ),
        &[Key::TokenModality],
    ),
    Generation::Latest,
);

pub(super) const USAGE_OUTPUT: Metric = of_gen_ai(
    by(
        counter(
            Id::UsageOutput,
            "gen_ai.client.inference.usage.output_tokens",
            "{token}",
            Scope::GenAi,
            "Output tokens, including reasoning",
        ),
        &[Key::TokenModality],
    ),
    Generation::Latest,
);

pub(super) const USAGE_CACHE_READ: Metric = of_gen_ai(
    by(
        counter(
            Id::UsageCacheRead,
            "gen_ai.client.inference.usage.cache_read.input_tokens",
            "{token}",
            Scope::GenAi,
            "Prompt tokens read from the engine's cache",
        ),
        &[Key::TokenModality],
    ),
    Generation::Latest,
);

pub(super) const USAGE_CACHE_WRITE: Metric = of_gen_ai(
    by(
        counter(
            Id::UsageCacheWrite,
            "gen_ai.client.inference.usage.cache_write.input_tokens",
            "{token}",
            Scope::GenAi,
            "Prompt tokens written to the engine's cache",
        ),
        &[Key::TokenModality],
    ),
    Generation::Latest,
);

pub(super) const USAGE_REASONING: Metric = of_gen_ai(
    by(
        counter(
            Id::UsageReasoning,
            "gen_ai.client.inference.usage.reasoning.output_tokens",
            "{token}",
            Scope::GenAi,
            "Reasoning tokens in the output",
        ),
        &[Key::TokenModality],
    ),
    Generation::Latest,
);

pub(super) const OPERATION_INPUT: Metric = of_gen_ai(
    by(
        histogram(
            Id::OperationInput,
            "gen_ai.client.inference.operation.input_tokens",
            "{token}",
            Scope::GenAi,
            buckets::TOKENS,
            "Prompt tokens of one request, where the engine reported them",
        ),
        &[Key::ErrorType],
    ),
    Generation::Latest,
);

pub(super) const OPERATION_OUTPUT: Metric = of_gen_ai(
    by(
        histogram(
            Id::OperationOutput,
            "gen_ai.client.inference.operation.output_tokens",
            "{token}",
            Scope::GenAi,
            buckets::TOKENS,
            "Output tokens of one request, where the engine reported them",
        ),
        &[Key::ErrorType],
    ),
    Generation::Latest,
);
