//! What the relay costs: tokometer between a simulated server and a load generator, beside no proxy, a plain byte
//! relay, nginx and haproxy, all in one run on this machine.
//!
//! `cargo bench --bench relay -- [--rows s1,rss] [--peers tokometer,nginx] [--rounds N] [--quick]`
//! prints medians, ratios and goals, and writes `target/bench/relay.json`; `--render` writes `docs/PERFORMANCE.md`
//! from that file. `TOKOMETER_BIN` names another binary than the one built beside the bench.
//!
//! The proxy has the first core to itself; this process, which is both origin and client, has the second one.

mod floor;
mod goals;
mod options;
mod page;
mod peers;
mod pin;
mod process;
mod results;
mod rows;
mod sink;

use std::error::Error;
use std::process::ExitCode;

use crate::options::Options;
use crate::results::Results;

/// What can go wrong here is for a person to read.
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
    let mut results = Results::begin(&options);
    runtime.block_on(rows::run(&options, &mut results))?;
    print!("{}", results.table());
    print!("\n{}", goals::table(&results));
    results.save(&options.json)?;
    println!("\nwritten to {}", options.json.display());
    match results.failed.first_key_value() {
        None => Ok(()),
        Some((what, why)) => Err(format!("{} failed, first {what}: {why}", results.failed.len()).into()),
    }
}
