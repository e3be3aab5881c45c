//! A snapshot as one line, for logs and pipes.

use crate::top::numbers;
use crate::top::objectives;
use tokometer_telemetry::live::snapshot::Snapshot;

/// The line, without a line end.
pub fn line(snapshot: &Snapshot) -> String {
    let now = &snapshot.in_flight;
    let mut parts = vec![
        format!("{} UTC", numbers::clock(snapshot.made_unix_ms)),
        format!("in flight {} ({} waiting)", numbers::count(now.exchanges), numbers::count(now.waiting)),
        format!("tok/s {}", numbers::rate(snapshot.rates.tokens_per_second)),
        format!("req/s {}", numbers::rate(snapshot.rates.requests_per_second)),
        format!(
            "TTFT p50 {} p99 {}",
            numbers::time_or_unknown(snapshot.ttft_seconds.p50.map(|seconds| seconds * 1e3)),
            numbers::time_or_unknown(snapshot.ttft_seconds.p99.map(|seconds| seconds * 1e3))
        ),
        format!("decode p50 {}", numbers::rate_or_unknown(snapshot.decode_tokens_per_second.p50)),
    ];
    let failed: f64 = snapshot.rates.failed_per_second.values().sum();
    if failed > 0.0 {
        parts.push(format!("failed/s {}", numbers::rate(failed)));
    }
    let wedged = snapshot.pairs.iter().filter(|pair| pair.state == "wedged");
    parts.extend(wedged.map(|pair| format!("WEDGED {}", numbers::name(&pair.name, 24))));
    let broken =
        objectives::worst_first(snapshot).into_iter().filter(|one| matches!(one.state.as_str(), "burning" | "over"));
    parts.extend(broken.map(objectives::short));
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::objectives::tests::objective;
    use tokometer_telemetry::live::snapshot::Pair;

    #[test]
    fn line_shows_main_values_and_problems() {
        let mut snapshot = Snapshot { made_unix_ms: 43_384_000, ..Snapshot::default() };
        assert_eq!(
            line(&snapshot),
            "12:03:04 UTC  in flight 0 (0 waiting)  tok/s 0  req/s 0  TTFT p50 - p99 -  decode p50 -"
        );
        snapshot.rates.failed_per_second = [("truncated".to_owned(), 0.2), ("http_5xx".to_owned(), 0.1)].into();
        snapshot.pairs = vec![Pair { name: "vllm".to_owned(), state: "wedged".to_owned(), ..Pair::default() }];
        snapshot.objectives = vec![objective("stall", "ok", Some(0.0)), objective("ttft", "over", Some(1.5))];
        snapshot.ttft_seconds.p50 = Some(0.21);
        let said = line(&snapshot);
        assert!(
            said.ends_with("TTFT p50 210 ms p99 -  decode p50 -  failed/s 0.30  WEDGED vllm  ttft OVER 1.5x"),
            "{said}"
        );
    }
}
