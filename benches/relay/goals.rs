//! Performance goals of tokometer, as ratios within one run.

use std::fmt::Write;

use crate::results::{Results, number};

/// The reference of a goal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Against {
    /// A peer's value in the same rounds.
    Peer(&'static str),
    /// The increase over no proxy, divided by the peer's increase over no proxy.
    Added(&'static str),
    /// None: the limit is absolute.
    Nothing,
    /// The same metric in another row.
    Row(&'static str),
}

/// A goal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) what: &'static str,
    /// The program that the goal applies to.
    subject: &'static str,
    row: &'static str,
    measurement: &'static str,
    against: Against,
    limit: f64,
    /// True if the value must be at least, not at most, the limit.
    at_least: bool,
}

const fn at_most(what: &'static str, row: &'static str, of: &'static str, against: Against, limit: f64) -> Goal {
    Goal { what, subject: "tokometer", row, measurement: of, against, limit, at_least: false }
}

const fn at_least(what: &'static str, row: &'static str, of: &'static str, against: Against, limit: f64) -> Goal {
    Goal { at_least: true, ..at_most(what, row, of, against, limit) }
}

const PINGORA: Against = Against::Peer("pingora-proxy");

const fn rewrite(what: &'static str, row: &'static str, of: &'static str, against: Against, limit: f64) -> Goal {
    Goal { subject: "tokometer-rewrite", ..at_most(what, row, of, against, limit) }
}

/// All goals.
pub(crate) const GOALS: &[Goal] = &[
    at_most("CPU per token, 256 streams", "s1", "cpu_us_per_token", Against::Peer("nginx"), 0.97),
    at_most("CPU per token, 256 streams", "s1", "cpu_us_per_token", Against::Peer("tokio-byte-relay"), 1.06),
    at_most("CPU per token, 256 streams", "s1", "cpu_us_per_token", PINGORA, 0.87),
    at_most("CPU per token, 1,024 streams", "s2", "cpu_us_per_token", Against::Peer("nginx"), 0.93),
    at_most("CPU per token, 1,024 streams", "s2", "cpu_us_per_token", PINGORA, 0.78),
    at_most("transit p50, 256 streams", "s1", "transit_p50_us", Against::Peer("nginx"), 1.0),
    at_most("transit p99, 256 streams", "s1", "transit_p99_us", Against::Peer("nginx"), 1.0),
    at_most("transit p50, 1,024 streams", "s2", "transit_p50_us", Against::Peer("nginx"), 1.0),
    at_most("transit p99, 1,024 streams", "s2", "transit_p99_us", Against::Peer("nginx"), 1.0),
    at_most("added TTFT p50, 256 streams", "s1", "ttft_p50_us", Against::Added("nginx"), 1.0),
    at_most("added TTFT p50, 1,024 streams", "s2", "ttft_p50_us", Against::Added("nginx"), 1.0),
    at_most("added TTFT p50, 256 streams", "s1", "ttft_p50_us", Against::Added("pingora-proxy"), 0.55),
    at_most("added TTFT p50, 1,024 streams", "s2", "ttft_p50_us", Against::Added("pingora-proxy"), 0.55),
    at_most("KiB per open stream, 5,000 streams", "rss", "kib_per_stream", Against::Nothing, 7.5),
    at_most("resident MB when idle, exporters on", "idle", "rss_mb", Against::Nothing, 15.0),
    at_least("events per second at saturation", "saturation", "events_per_s", Against::Peer("nginx"), 1.0),
    at_least("events per second at saturation", "saturation", "events_per_s", PINGORA, 3.0),
    at_least("short requests per second", "short", "requests_per_s", Against::Peer("nginx"), 0.9),
    at_least("short requests per second", "short", "requests_per_s", PINGORA, 2.5),
    at_least("10 MB requests per second", "body", "requests_per_s", Against::Peer("nginx"), 1.0),
    at_most("CPU per 10 MB request", "body", "cpu_us_per_request", Against::Peer("nginx"), 1.2),
    at_most("CPU per new connection", "connect", "cpu_us_per_request", Against::Peer("nginx"), 1.35),
    at_most("CPU per new connection", "connect", "cpu_us_per_request", PINGORA, 1.0),
    at_most("CPU per token, 1,024 vs. 16 streams", "s2", "cpu_us_per_token", Against::Row("s16"), 1.1),
    at_most("CPU per token, 5,000 vs. 16 streams", "rss", "cpu_us_per_token", Against::Row("s16"), 1.1),
    at_most("KiB of growth per stream over 60,000 tokens", "long", "kib_grown_per_stream", Against::Nothing, 64.0),
    rewrite("rewrite: CPU per token, 16 streams", "s16", "cpu_us_per_token", PINGORA, 1.05),
    rewrite("rewrite: CPU per token, 256 streams", "s1", "cpu_us_per_token", PINGORA, 1.05),
    rewrite("rewrite: CPU per token, 1,024 streams", "s2", "cpu_us_per_token", PINGORA, 1.05),
    rewrite("rewrite: CPU per token, 5,000 streams", "rss", "cpu_us_per_token", PINGORA, 1.05),
    rewrite("rewrite: added TTFT p50, 256 streams", "s1", "ttft_p50_us", Against::Added("pingora-proxy"), 1.1),
    rewrite("rewrite: KiB per open stream, 256 streams", "s1", "kib_per_stream", PINGORA, 1.1),
    rewrite("rewrite: KiB per open stream, 5,000 streams", "rss", "kib_per_stream", PINGORA, 1.1),
];

impl Goal {
    /// The measured value.
    fn reached(&self, results: &Results) -> Option<f64> {
        let Goal { subject, row, measurement, .. } = *self;
        match self.against {
            Against::Nothing => results.measurement(row, subject, measurement),
            Against::Peer(peer) => results.ratio(row, subject, peer, measurement),
            Against::Row(other) => Some(
                results.measurement(row, subject, measurement)? / results.measurement(other, subject, measurement)?,
            ),
            Against::Added(peer) => {
                let none = results.measurement(row, "none", measurement)?;
                Some(
                    (results.measurement(row, subject, measurement)? - none)
                        / (results.measurement(row, peer, measurement)? - none),
                )
            }
        }
    }

    fn limit(&self) -> String {
        let sign = if self.at_least { ">=" } else { "<=" };
        let limit = self.limit;
        match self.against {
            Against::Nothing => format!("{sign} {limit}"),
            Against::Peer(peer) | Against::Added(peer) => format!("{sign} {limit} x {peer}"),
            Against::Row(row) => format!("{sign} {limit} x row {row}"),
        }
    }
}

/// The goals whose rows were measured: description, limit, value, verdict.
pub(crate) fn table(results: &Results) -> String {
    let mut page = "| metric | goal | reached | |\n|---|---|---|---|\n".to_owned();
    for goal in GOALS.iter().filter(|goal| results.rows.contains_key(goal.row)) {
        let reached = goal.reached(results);
        let verdict = match reached {
            None => "not measured",
            Some(reached) if (reached >= goal.limit) == goal.at_least || reached == goal.limit => "met",
            Some(_) => "missed",
        };
        let reached = reached.map_or("-".to_owned(), number);
        let written = writeln!(page, "| {} | {} | {reached} | {verdict} |", goal.what, goal.limit());
        debug_assert!(written.is_ok());
    }
    page
}
