mod joiner;
mod spans;

use std::time::{Duration, Instant};

use tokometer_decode::Route;
use tokometer_observe::measure::{Count, CountSource, EngineSpan, Labels, Outcome, Record};

use crate::engine_spans::interpret::RequestSpan;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A streamed response with this id that took one second; its tokens were counted by events.
fn record(id: &str) -> Record {
    let labels = Labels { route: Route::Chat, streaming: Some(true), ..Labels::default() };
    Record::new(labels, Instant::now(), Outcome::Ok, ms(1000)).with(|r| {
        r.connection = 1;
        r.response.status = Some(200);
        r.response.id = Some(id.into());
        r.times.requested = Some(ms(1));
        r.times.headers = Some(ms(2));
        r.times.first_event = Some(ms(500));
        r.times.first_token = Some(ms(500));
        r.times.first_visible = Some(ms(500));
        r.times.last_token = Some(ms(990));
        r.tokens.output = Some(Count { tokens: 50, source: CountSource::Deltas });
        r.rate.at_least = Some(100.0);
        r.tokens.chunks = 50;
        r.response.events = 52;
        r.gaps.longest = Some(ms(12));
        r.request.bytes = 300;
        r.response.bytes = 25_000;
    })
}

/// The span of a request with this id that waited for `queue`; it took 900 ms.
fn span(id: &str, queue: Duration) -> Box<RequestSpan> {
    Box::new(RequestSpan {
        id: Some(id.into()),
        parent: None,
        length: ms(900),
        reported: EngineSpan {
            trace_id: fastrand::u128(1..),
            span_id: fastrand::u64(1..),
            queue: Some(queue),
            prefill: Some(ms(80)),
            decode: Some(ms(490)),
            first_token: Some(ms(490)),
            e2e: Some(ms(900)),
            prompt_tokens: Some(20),
            cached_tokens: None,
            completion_tokens: Some(99),
        },
    })
}
