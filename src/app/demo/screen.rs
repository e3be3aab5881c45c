//! Output of a demo: a table that is redrawn in place, or plain lines.

use std::fmt::Write as _;
use std::time::Duration;

use crate::app::demo::board::Figures;

/// The parts around the metrics.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Listen address of the proxy.
    pub(super) relay: String,
    /// Address of the admin server.
    pub(super) admin: String,
    /// Description of the load.
    pub(super) load: String,
}

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";
/// Width of the bar in characters.
const BAR_CELLS: usize = 40;

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
}

/// The table. `rate` is the total tokens per second in the last period, `peak` its maximum so far.
pub(super) fn table(frame: &Frame, figures: &Figures, elapsed: Duration, rate: f64, peak: f64) -> String {
    let filled = if peak > 0.0 { ((rate / peak) * BAR_CELLS as f64).round() as usize } else { 0 };
    let bar: String = (0..BAR_CELLS).map(|i| if i < filled { '█' } else { '░' }).collect();
    let mut text = String::new();
    let mut line = |s: String| {
        // Writing to a string cannot fail.
        writeln!(text, "{s}\x1b[K").ok();
    };
    line(format!("{BOLD}tokometer demo{RESET}  {DIM}{:>5.1} s   {}{RESET}", elapsed.as_secs_f64(), frame.load));
    line(String::new());
    line(format!("  {GREEN}{bar}{RESET} {BOLD}{rate:>7.0}{RESET} tok/s in total"));
    line(String::new());
    line(format!("  {DIM}{:<28}{:>12}{:>12}{RESET}", "", "p50", "p99"));
    let row = |name: &str, [a, b]: [Option<f64>; 2]| format!("  {name:<28}{:>12}{:>12}", number(a, 1), number(b, 1));
    line(row("time to first token, ms", figures.first_token));
    line(row("inter-token latency, ms", figures.gap));
    line(row("tok/s per stream (p50, p1)", figures.rate));
    line(String::new());
    line(format!(
        "  waiting {BOLD}{}{RESET}   streaming {BOLD}{}{RESET}   tokens {BOLD}{}{RESET}",
        figures.waiting, figures.streaming, figures.tokens
    ));
    line(format!("  {}", outcomes(figures, true)));
    line(String::new());
    line(format!("  {DIM}look{RESET}     http://{0}/live   {DIM}metrics{RESET}  http://{0}/metrics", frame.admin));
    line(format!("  {DIM}try{RESET}      curl -N http://{}/v1/chat/completions \\", frame.relay));
    line(
        "             -d '{\"model\":\"sim\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}'"
            .to_owned(),
    );
    line(format!("  {DIM}next{RESET}     tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001"));
    text
}

/// A plain line.
pub(super) fn plain(figures: &Figures, elapsed: Duration, rate: f64) -> String {
    format!(
        "{:>5.1} s  {rate:>6.0} tok/s  waiting {:>3}  streaming {:>3}  TTFT p50 {} ms p99 {} ms  ITL p50 {} ms p99 {} ms  {}",
        elapsed.as_secs_f64(),
        figures.waiting,
        figures.streaming,
        number(figures.first_token[0], 1),
        number(figures.first_token[1], 1),
        number(figures.gap[0], 1),
        number(figures.gap[1], 1),
        outcomes(figures, false),
    )
}

/// The outcomes so far, as text.
pub(super) fn outcomes(figures: &Figures, colour: bool) -> String {
    let words = figures.outcomes.iter().map(|(outcome, count)| {
        let text = format!("{} {count}", outcome.as_str());
        match (colour, outcome.is_ok()) {
            (false, _) => text,
            (true, true) => format!("{GREEN}{text}{RESET}"),
            (true, false) => format!("{RED}{text}{RESET}"),
        }
    });
    words.collect::<Vec<_>>().join("   ")
}
