//! The command line of the bench.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::Outcome;
use crate::peers::Peer;
use crate::rows::Row;

/// What to run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rows: Vec<Row>,
    pub(crate) peers: Vec<Peer>,
    /// Alternating runs of each row; each row has its own number unless one is given.
    pub(crate) rounds: Option<usize>,
    /// One short run of everything: shows that it works, not what it costs.
    pub(crate) quick: bool,
    pub(crate) json: PathBuf,
    pub(crate) render: bool,
    /// Be the plain byte relay between these two instead.
    pub(crate) floor: Option<(SocketAddr, SocketAddr)>,
}

impl Options {
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Outcome<Options> {
        let mut options = Options {
            rows: Row::ALL.to_vec(),
            peers: Peer::ALL.to_vec(),
            rounds: None,
            quick: false,
            json: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench/relay.json"),
            render: false,
            floor: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--rows" => {
                    let names = value()?;
                    options.rows = names.split(',').map(Row::named).collect::<Outcome<_>>()?;
                }
                "--peers" => {
                    let names = value()?;
                    options.peers = names.split(',').map(Peer::named).collect::<Outcome<_>>()?;
                }
                "--rounds" => options.rounds = Some(value()?.parse()?),
                "--quick" => options.quick = true,
                "--json" => options.json = value()?.into(),
                "--render" => options.render = true,
                "--floor" => options.floor = Some((value()?.parse()?, value()?.parse()?)),
                // Cargo says so to every bench.
                "--bench" => {}
                other => return Err(format!("{other:?} is no option; see the head of benches/relay/main.rs").into()),
            }
        }
        Ok(options)
    }
}
