//! `docs/PERFORMANCE.md`, made from what was measured.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Outcome;
use crate::goals;
use crate::results::Results;

/// What the page says besides the figures.
const HEAD: &str = "# What tokometer costs

Made by the load bench on one machine, all peers of a row in one run; do not edit. Make it again with

    make bench            # measures and writes target/bench/relay.json (about 50 minutes with all peers)
    cargo bench --bench relay -- --render

Before that, once, for the peer that is no program of its own:

    cargo build --release --manifest-path benches/peers/pingora-proxy/Cargo.toml --target-dir target/peers

`make bench ROWS=s1,rss` measures some rows only. Absolute figures hold for that machine; the ratios are what counts.
The proxy is pinned to one core, the simulated server and the load generator to the other one. CPU is what the proxy's
process and its children used, user and kernel. Peers run in turns, each figure is the median of the runs, and a ratio is
the median of the ratios of neighbouring runs. Transit is the time from the moment an event was rendered by the server
to the moment its bytes were read by the client. `tokometer` observes with both exporters on (a collector that is pushed to
every 5 s, and a scrape every 5 s); `tokometer-relay-only` has `observe.enabled: false`: the difference of the two is the
observer and the exporters, and the difference of the latter to `tokio-byte-relay` is the relay.
";

/// What to know of the goals that are missed.
const MISSED: &str = "
What lies behind the goals of these rows where they are missed: `connect` pays for the second connection that 1:1 relaying
needs (the plain relay on tokio pays most of it too). `short` is one exchange per token: its cost is the record with its two
dozen series and the span, which a stream pays once in hundreds of tokens; the client is near its own limit there (see
`none`, which differs from what passes a proxy by little or nothing: in `body` and `connect` too the client is what limits).
`long` counts what the whole process grew by while the streams ran, divided by 4 of them. The tails (p99) hold what the threads
that scrape and push every 5 s take of the relay's one core, at a lower priority (`tokometer-relay-only` has none of them), and
what the machine itself was taken away for, which all peers share.
";

/// What the rows mean.
const ROWS: &str = "
- **s16, s1, s2**: 16, 256 and 1,024 streams of 50 tokens per second, one event of about 250 bytes per token, answers of
  150 tokens, one after the other on kept-alive connections.
- **rss**: 5,000 streams of one token per second. **long**: 60,000 tokens out of the life of
  4 longer streams, 4,000 per second.
- **idle**: nobody connected. **saturation**: 16 streams as fast as they go. **short**: answers of one token, not
  streamed, on 64 kept-alive connections. **body**: 4 clients that post 10 MB each time. **connect**: 16 clients with a
  new connection for each request.
- Streams of 50 tokens per second that one core carries are 20,000 by `cpu_us_per_token`. A gap between two tokens grows by
  the difference of their transits, so by no more than the transit of the later one.
";

/// What the table of attacks means.
const ATTACKS: &str = "
## Under attack

Each attack runs for itself against a program with the default settings, with all clients, the server and the program on the same
cores (`make hostile-table`). **CPU** is that of the data path's threads per MB that the attackers sent, without what the
bystanders cost. **Longest pause** is the longest time from the server's write of an event to its arrival at the client, over ten
streams of 50 events per second that are open next to the attack; the goal is 250 ms. **Slowest probe** is the slowest of
`/livez`, `/readyz` and `/startz`, each on a new connection. **Was** is the value before decoding had a work budget and
memory had one limit; `>` marks a program that was still busy when the measurement ended. `make test` asserts limits on all
of these values (`tests/hostile/limits.rs`).

";

/// What `cargo bench --bench observer` found last, as criterion keeps it; `None` if it never ran.
fn observer() -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/criterion/observer");
    let mut rows = Vec::new();
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let read = |file: &str| -> Option<Value> {
            serde_json::from_slice(&fs::read(entry.path().join("new").join(file)).ok()?).ok()
        };
        let Some(nanoseconds) = read("estimates.json").and_then(|found| found["median"]["point_estimate"].as_f64())
        else {
            continue;
        };
        let bytes = read("benchmark.json").and_then(|about| about["throughput"]["Bytes"].as_u64());
        let bytes = bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        let name = entry.file_name().to_string_lossy().replacen('_', " ", 1);
        rows.push(format!("| {name} | {bytes} | {nanoseconds:.0} |\n"));
    }
    rows.sort();
    let head = "\n## The observer\n\n\
        One core, one event of a stream per read, in every dialect: HTTP framing, decoding, measuring, the exporters' handles,\n\
        the table of exchanges in flight and the judge of the objectives, in nanoseconds per event (`cargo bench --bench\n\
        observer`, medians; the goal is under 200 for an event of 250 bytes). Here a stream's memory is warm; on a relay with\n\
        hundreds of slow streams each token finds it cold, which costs more. The streams are recordings, and where there is none exchanges written from an engine's source\n\
        (`tests/fixtures`). An event that repeats the one before it but for its text is predicted; where counters, offsets or\n\
        times change in each (SGLang's and llama.cpp's own APIs, vLLM's token ids, Ollama, TGI) it is scanned anew, which costs\n\
        more. `parsers-native-generate-interval3` has the whole answer so far in every event. The observer allocates nothing\n\
        per event (`tests/it/observer_cost.rs`) and holds less than 2 KiB per open stream (`crates/observe/src/observer/tests.rs`).\n\n\
        | stream | bytes per event | ns per event |\n|---|---|---|\n";
    (!rows.is_empty()).then(|| head.to_owned() + &rows.concat())
}

/// What the attacks of `tests/hostile` measured last; `None` if they never ran with `--table`.
fn attacks() -> Option<String> {
    let table = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench/hostile.md")).ok()?;
    Some(format!("{ATTACKS}{table}"))
}

/// Writes the page.
pub(crate) fn write(results: &Results) -> Outcome<()> {
    let mut page = HEAD.to_owned();
    if results.quick {
        page.push_str(
            "\n**These figures are from a quick run: they show that the bench works, not what it measures.**\n",
        );
    }
    // What stands behind the version is the build of whoever built it.
    let kernel = results.kernel.split('-').next().unwrap_or_default();
    page.push_str(&format!("\nMachine: {}, Linux {kernel}.\n", results.cpu));
    for (peer, why) in &results.missing {
        page.push_str(&format!("Not measured: {peer} ({why}).\n"));
    }
    for (what, why) in &results.failed {
        page.push_str(&format!("Failed: {what} ({why}).\n"));
    }
    page.push_str("\n## Goals\n\n");
    page.push_str(&goals::table(results));
    page.push_str(MISSED);
    if let Some(observer) = observer() {
        page.push_str(&observer);
    }
    if let Some(attacks) = attacks() {
        page.push_str(&attacks);
    }
    page.push_str("\n## Figures\n");
    page.push_str(ROWS);
    page.push('\n');
    page.push_str(results.table().trim_end());
    page.push('\n');
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/PERFORMANCE.md");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, page)?;
    println!("written to {}", path.display());
    Ok(())
}
