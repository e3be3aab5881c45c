//! Cost of a request.

use tokometer_metrics::closed_enum;
use tokometer_observe::measure::{CountSource, Outcome, Record};

use crate::accounting::{Price, Prices, covers};

/// Number of tokens to which the prices apply.
const PER: f64 = 1e6;

closed_enum! {
    /// Basis of a cost. Costs of different bases are never in one series.
    pub enum Basis {
        /// Exact counts.
        Exact = "exact",
        /// A tokenizer count, or a prompt priced as uncached because the engine did not report its cached tokens.
        Estimate = "estimate",
        /// Only a lower bound of the output tokens is known, so the cost is a lower bound.
        LowerBound = "lower_bound",
    }
}

closed_enum! {
    /// Why a response has no price.
    pub enum Unpriced {
        /// No price is configured for the response's model.
        NoPrice = "no_price",
        /// The input token count is unknown.
        NoInputCount = "no_input_count",
        /// The output token count is unknown.
        NoOutputCount = "no_output_count",
    }
}

/// The cost of a request, in the currency of the prices, and its basis. `None` if the request costs nothing, because
/// the server did not accept it or its path is not parsed. `model` is the name under which the request is counted.
pub fn cost(record: &Record, model: Option<&str>, prices: &Prices) -> Option<Result<(f64, Basis), Unpriced>> {
    (is_accepted(record) && record.labels.route.is_read()).then(|| priced(record, model, prices))
}

/// True if the server accepted the request. A rejected request has no tokens, and its tenant name may be made up.
pub(super) fn is_accepted(record: &Record) -> bool {
    // gRPC servers reject calls with HTTP status 200 and a gRPC status.
    let refused = matches!(record.outcome, Outcome::Http4xx | Outcome::Http5xx | Outcome::RejectedBusy);
    matches!(record.response.status, Some(101 | 200..=299)) && !refused
}

fn priced(record: &Record, model: Option<&str>, prices: &Prices) -> Result<(f64, Basis), Unpriced> {
    let model = model.or(record.labels.response_model.as_deref()).unwrap_or_default();
    let price = prices.models.iter().find(|price| covers(&price.model, model)).ok_or(Unpriced::NoPrice)?;
    let input = record.tokens.input.ok_or(Unpriced::NoInputCount)?;
    let output = match record.tokens.output {
        Some(count) => Some(count),
        // Embeddings, reranking and similar routes have no output tokens.
        None if !record.labels.route.generates() => None,
        None => return Err(Unpriced::NoOutputCount),
    };
    let cached = record.tokens.cached.map(|cached| cached.min(input.tokens));
    let sources = [Some(input.source), output.map(|count| count.source)].into_iter().flatten();
    let guessed = |source: CountSource| source == CountSource::Tokenizer;
    let at_least = |source: CountSource| source == CountSource::Deltas;
    let basis = if (cached.is_none() && depends_on_cached(price)) || sources.clone().any(guessed) {
        Basis::Estimate
    } else if sources.clone().any(at_least) {
        Basis::LowerBound
    } else {
        Basis::Exact
    };
    let cached = cached.unwrap_or(0);
    let of = |tokens: u64, price: f64| tokens as f64 * price / PER;
    let money = of(input.tokens - cached, price.input)
        + of(cached, price.cached_input.unwrap_or(price.input))
        + of(output.map_or(0, |count| count.tokens), price.output);
    Ok((money, basis))
}

/// True if the number of cached tokens affects the cost.
fn depends_on_cached(price: &Price) -> bool {
    price.cached_input.is_some_and(|cached| cached != price.input)
}
