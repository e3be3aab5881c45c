//! Command line of the bench.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::Outcome;
use crate::peers::Peer;
use crate::rows::{Plan, Row};

/// What to run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) plan: Plan,
    pub(crate) json: PathBuf,
    pub(crate) render: bool,
    /// Run as the plain byte relay between these two addresses.
    pub(crate) floor: Option<(SocketAddr, SocketAddr)>,
}

impl Options {
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Outcome<Options> {
        let mut options = Options {
            plan: Plan { rows: Row::ALL.to_vec(), peers: Peer::ALL.to_vec(), rounds: None, quick: false },
            json: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench/relay.json"),
            render: false,
            floor: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--rows" => {
                    let names = value()?;
                    options.plan.rows = names.split(',').map(Row::named).collect::<Outcome<_>>()?;
                }
                "--peers" => {
                    let names = value()?;
                    options.plan.peers = names.split(',').map(Peer::named).collect::<Outcome<_>>()?;
                }
                "--rounds" => options.plan.rounds = Some(value()?.parse()?),
                "--quick" => options.plan.quick = true,
                "--json" => options.json = value()?.into(),
                "--render" => options.render = true,
                "--floor" => options.floor = Some((value()?.parse()?, value()?.parse()?)),
                // Cargo passes this to every bench.
                "--bench" => {}
                other => return Err(format!("unknown option {other:?}; see the top of benches/relay/main.rs").into()),
            }
        }
        Ok(options)
    }
}
