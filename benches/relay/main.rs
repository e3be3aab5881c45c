//! Cost of the proxy: tokometer between a simulated server and a load generator. It is compared with no proxy, a plain
//! byte relay, nginx, haproxy, Envoy and pingora-proxy, all in one run on this machine.
//!
//! `cargo bench --bench relay -- [--rows s1,rss] [--peers tokometer,nginx] [--rounds N] [--quick]` prints medians,
//! ratios and goals, and writes `target/bench/relay.json`; `--render` writes `docs/reference/performance.md` from that
//! file. `TOKOMETER_BIN` selects a binary other than the one built with the bench.
//!
//! The proxy is pinned to the first core. This process, which is both origin and client, is pinned to the second.

mod floor;
mod goals;
mod options;
mod page;
mod peers;
mod pin;
mod process;
mod reader;
mod results;
mod rows;
mod sink;

use std::error::Error;
use std::process::ExitCode;

use crate::options::Options;
use crate::results::Results;

/// Errors of the bench are only printed.
type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("relay bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let options = Options::read(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some((listen, upstream)) = options.floor {
        return Ok(runtime.block_on(floor::relay(listen, upstream))?);
    }
    if options.render {
        return page::write(&Results::load(&options.json)?);
    }
    pin::take_second_core()?;
    let mut results = Results::begin(options.plan.quick);
    runtime.block_on(rows::run(&options.plan, &mut results))?;
    print!("{}", results.table());
    print!("\n{}", goals::table(&results));
    results.save(&options.json)?;
    println!("\nwritten to {}", options.json.display());
    match results.failed.first_key_value() {
        None => Ok(()),
        Some((what, why)) => Err(format!("{} failed, first {what}: {why}", results.failed.len()).into()),
    }
}
