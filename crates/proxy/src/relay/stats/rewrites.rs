//! Counts what the rewrites did with requests, for the exporters.

use tokometer_metrics::{Counter, closed_enum};

closed_enum! {
    /// A rewrite.
    pub enum Rewrite {
        /// `rewrite.include_usage`.
        IncludeUsage = "include_usage",
        /// `rewrite.traceparent`.
        Traceparent = "traceparent",
        /// `rewrite.request_id`.
        RequestId = "request_id",
        /// Requests whose framing is ambiguous; always rejected.
        Framing = "framing",
    }
}

closed_enum! {
    /// What a rewrite did with a request.
    pub enum Outcome {
        /// The request was changed.
        Changed = "changed",
        /// The client's own value was kept: the client requested usage, or sent an ID.
        Asked = "asked",
        /// Not a streamed request.
        NotStreamed = "not_streamed",
        /// The body is not a JSON object of the API: it passed unmodified.
        NotJson = "not_json",
        /// The body is larger than `rewrite.max_body`, or too many bodies are in progress: it passed unmodified.
        TooLarge = "too_large",
        /// The body has a content coding that cannot be decoded: it passed unmodified.
        Encoded = "encoded",
        /// The response has a content coding, so the counts could not be removed.
        NotRemoved = "not_removed",
        /// The request was rejected with status 400.
        Rejected = "rejected",
    }
}

/// Number of requests by rewrite and outcome.
#[derive(Debug, Default)]
pub struct Rewrites([[Counter; Outcome::ALL.len()]; Rewrite::ALL.len()]);

impl Rewrites {
    /// Counts a request.
    pub fn add(&self, rewrite: Rewrite, outcome: Outcome) {
        self.of(rewrite, outcome).add(1);
    }

    /// The number of requests by rewrite and outcome.
    pub fn all(&self) -> impl Iterator<Item = (Rewrite, Outcome, u64)> {
        Rewrite::ALL.into_iter().flat_map(move |rewrite| {
            Outcome::ALL.into_iter().map(move |outcome| (rewrite, outcome, self.of(rewrite, outcome).get()))
        })
    }

    fn of(&self, rewrite: Rewrite, outcome: Outcome) -> &Counter {
        &self.0[rewrite as usize][outcome as usize]
    }
}
