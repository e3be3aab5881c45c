//! Reads a recording and runs the analysis over it.

use std::io::Read;

use tokometer_steps::{Analyzer, Cause, Culprit, Delay, Event, Kind, Limits, Readable, Sink, Step};

/// One step of the engine's log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Truth {
    pub(crate) prefilling: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) decoding: u32,
    /// Tokens computed again for streams that were preempted.
    pub(crate) recomputed: u32,
    pub(crate) ms: f64,
    /// Parts of `ms`, if known: prefill, and a pause of the engine.
    pub(crate) prefill_ms: f64,
    pub(crate) pause_ms: f64,
}

/// What was done to the engine, in us.
#[derive(Clone, Debug)]
pub(crate) struct Provoked {
    pub(crate) cause: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) slot: Option<u32>,
}

pub(crate) struct Recording {
    pub(crate) events: Vec<Event>,
    pub(crate) truth: Vec<Truth>,
    pub(crate) provoked: Vec<Provoked>,
}

#[derive(Default)]
pub(crate) struct Results {
    pub(crate) steps: Vec<Step>,
    pub(crate) delays: Vec<Delay>,
    pub(crate) caused: u64,
}

impl Sink for Results {
    fn step(&mut self, step: &Step) {
        self.steps.push(*step);
    }
    fn delay(&mut self, delay: &Delay) {
        self.delays.push(*delay);
    }
    fn caused(&mut self, _: Culprit, _: u32, excess: u64) {
        self.caused += excess;
    }
}

pub(crate) struct Run {
    pub(crate) steps: Vec<Step>,
    pub(crate) delays: Vec<Delay>,
    pub(crate) caused: u64,
    /// The last verdict, and whether token counts were ever found missing.
    pub(crate) readable: Readable,
    pub(crate) lacked_counts: bool,
}

impl Recording {
    pub(crate) fn read(name: &str) -> Self {
        let path = format!("{}/tests/data/{name}.gz", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::File::open(path).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        let (events, steps) = text.split_once("steps\n").unwrap();
        let mut recording = Recording { events: Vec::new(), truth: Vec::new(), provoked: Vec::new() };
        let mut now = 1_000_000;
        for line in events.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |field: usize| fields[field].parse::<i64>().unwrap() as u64;
            now += number(0);
            let since = |field: usize| (fields[field].parse::<i64>().unwrap() + 1_000_000).max(0) as u64 * 1000;
            let (slot, kind) = match fields[1] {
                "o" => {
                    let tag = number(2);
                    (tag as u32, Kind::Open { tag, prompt_tokens: number(3) as u32, choices: 1 })
                }
                "f" | "t" => (number(2) as u32, Kind::Tokens { count: number(3) as u32 }),
                "e" => (number(2) as u32, Kind::End { tokens: 0 }),
                "p" => (0, Kind::Preemptions { from: since(2), count: number(3) as u32 }),
                "b" => (number(2) as u32, Kind::Held { cause: Cause::Client, from: since(3) }),
                "w" => {
                    let slot = fields[4].parse().ok();
                    let to = number(3) + 1_000_000;
                    recording.provoked.push(Provoked { cause: fields[2].to_owned(), from: now, to, slot });
                    continue;
                }
                other => panic!("unknown kind {other}"),
            };
            recording.events.push(Event { at: now * 1000, slot, kind });
        }
        for line in steps.lines() {
            let n: Vec<u32> = line.split(' ').map(|field| field.parse().unwrap()).collect();
            let ms = f64::from(n[4]) / 10.0;
            let (prefilling, prompt_tokens, decoding, recomputed) = (n[0], n[1], n[2], n[3]);
            let known = Truth { prefilling, prompt_tokens, decoding, recomputed, ms, ..Truth::default() };
            recording.truth.push(known);
        }
        recording
    }

    pub(crate) fn run(&self) -> Run {
        let mut results = Results::default();
        let mut lacked_counts = false;
        let mut analyzer = Analyzer::new(Limits::default());
        for &event in &self.events {
            analyzer.push(event, &mut results);
            lacked_counts |= analyzer.readable() == Readable::NoCounts;
        }
        let readable = analyzer.readable();
        analyzer.finish(&mut results);
        Run { steps: results.steps, delays: results.delays, caused: results.caused, readable, lacked_counts }
    }
}
