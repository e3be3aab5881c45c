//! Work and memory per event.

mod common;

use std::time::Instant;

use common::engine::Engine;
use tokometer_steps::{Analyzer, Delay, Limits, Sink, Step};

#[derive(Default)]
struct Count {
    steps: u64,
    delays: u64,
}

impl Sink for Count {
    fn step(&mut self, _: &Step) {
        self.steps += 1;
    }
    fn delay(&mut self, _: &Delay) {
        self.delays += 1;
    }
}

#[test]
fn steady_state_does_not_allocate() {
    for (runs, held) in [(0.0, 0.0), (20_000.0, 20_000.0)] {
        let engine = Engine { streams: 64, requests: 320, long_every: 8, budget: 512, runs, held, ..Engine::default() };
        let events = engine.run().0;
        let mut analyzer = Analyzer::new(Limits { streams: 64, ..Limits::default() });
        let mut count = Count::default();
        let (warm_up, steady) = events.split_at(events.len() / 4);
        warm_up.iter().for_each(|&event| analyzer.push(event, &mut count));
        let begin = Instant::now();
        let used = allocation_counter::measure(|| {
            steady.iter().for_each(|&event| analyzer.push(event, &mut count));
        });
        println!("{:.0} ns per event", begin.elapsed().as_nanos() as f64 / steady.len() as f64);
        assert_eq!(used.count_total, 0);
        assert!(count.steps > 100 && count.delays > 100);
    }
}
