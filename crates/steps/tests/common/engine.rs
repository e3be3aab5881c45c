//! A scheduler and a front end, to make event sequences with known steps.

use fastrand::Rng;
use tokometer_steps::{Event, Kind};

use super::recording::Truth;

/// What is simulated. Times in us.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) seed: u64,
    /// Streams at a time, and requests in all.
    pub(crate) streams: usize,
    pub(crate) requests: usize,
    pub(crate) tokens: std::ops::Range<u32>,
    /// Step time: base, per stream, relative jitter.
    pub(crate) base: f64,
    pub(crate) per_stream: f64,
    pub(crate) jitter: f64,
    /// Prompt tokens, us per prompt token, and prompt tokens per step.
    pub(crate) prompt: std::ops::Range<u32>,
    /// Every how many requests a prompt is 100 times as long (0: none).
    pub(crate) long_every: usize,
    pub(crate) per_prompt_token: f64,
    pub(crate) budget: u32,
    /// Front ends that share the streams; time each takes to write an event.
    pub(crate) front_ends: usize,
    pub(crate) write: std::ops::Range<u64>,
    /// Mean time a front end runs and is held up in turn; 0: it always runs.
    pub(crate) runs: f64,
    pub(crate) held: f64,
    /// Tokens per event.
    pub(crate) interval: u32,
    /// Engines that share the streams.
    pub(crate) engines: usize,
    /// Most tokens per stream and step (speculative decoding).
    pub(crate) speculative: u32,
    /// Steps between pauses of the engine (0: none), and their length.
    pub(crate) pause_every: u64,
    pub(crate) pause: f64,
}

impl Default for Engine {
    fn default() -> Self {
        Engine {
            seed: 1,
            streams: 8,
            requests: 40,
            tokens: 50..250,
            base: 15_000.0,
            per_stream: 400.0,
            jitter: 0.1,
            prompt: 20..60,
            long_every: 0,
            per_prompt_token: 300.0,
            budget: 8192,
            front_ends: 1,
            write: 20..50,
            runs: 0.0,
            held: 0.0,
            interval: 1,
            engines: 1,
            speculative: 1,
            pause_every: 0,
            pause: 0.0,
        }
    }
}

struct Request {
    prompt: u32,
    prefilled: u32,
    left: u32,
    slot: u32,
    first: bool,
    held_back: u32,
}

/// Output of the engine: when, for which stream, tokens, whether the last.
struct Output {
    at: u64,
    slot: u32,
    tokens: u32,
    last: bool,
}

impl Engine {
    /// Events in order of time, and the steps; those without tokens (a chunk of prefill while no stream decodes) cannot be
    /// seen and are left out.
    pub(crate) fn run(&self) -> (Vec<Event>, Vec<Truth>) {
        let mut events = Vec::new();
        let mut truth = Vec::new();
        for rank in 0..self.engines {
            let mut rng = Rng::with_seed(self.seed + rank as u64);
            let (outputs, steps) = self.schedule(rank as u32, &mut rng, &mut events);
            truth.extend(steps);
            for front_end in 0..self.front_ends {
                let own = outputs.iter().filter(|output| output.slot as usize % self.front_ends == front_end);
                self.deliver(&own.collect::<Vec<_>>(), &mut rng, &mut events);
            }
        }
        events.sort_by_key(|event| event.at);
        (events, truth)
    }

    fn schedule(&self, rank: u32, rng: &mut Rng, events: &mut Vec<Event>) -> (Vec<Output>, Vec<Truth>) {
        let mut now = 1_000_000.0 + f64::from(rank) * 7_000.0;
        let mut free: Vec<u32> = (0..self.streams as u32).rev().map(|slot| slot * self.engines as u32 + rank).collect();
        let mut free_at = vec![0.0f64; self.streams * self.engines];
        let mut open: Vec<Request> = Vec::new();
        let (mut begun, mut count) = (0, 0u64);
        let (mut outputs, mut truth) = (Vec::new(), Vec::new());
        loop {
            // At most one request begins per step, some time after the slot's last stream is delivered.
            let usable = free.iter().position(|&slot| free_at[slot as usize] <= now);
            if let Some(at) = usable.filter(|_| begun < self.requests && rng.f64() < 0.3 || open.is_empty()) {
                if begun == self.requests {
                    break;
                }
                let slot = free.remove(at);
                let long = self.long_every > 0 && begun % self.long_every == self.long_every - 1;
                let times = if long { 100 } else { 1 };
                let (prompt, left, tag) =
                    (times * rng.u32(self.prompt.clone()), rng.u32(self.tokens.clone()), begun as u64);
                let kind = Kind::Open { tag, prompt_tokens: prompt, choices: 1 };
                events.push(Event { at: now as u64 * 1000, slot, kind });
                open.push(Request { prompt, prefilled: 0, left, slot, first: true, held_back: 0 });
                begun += 1;
            } else if open.is_empty() {
                if begun == self.requests {
                    break;
                }
                now += 100_000.0;
                continue;
            }
            let decoding = open.iter().filter(|request| request.prefilled == request.prompt).count();
            let mut budget = self.budget;
            let mut prefilled = 0;
            let mut prefilling = 0;
            for request in open.iter_mut().filter(|request| request.prefilled < request.prompt) {
                let chunk = (request.prompt - request.prefilled).min(budget);
                budget -= chunk;
                prefilled += chunk;
                request.prefilled += chunk;
                prefilling += u32::from(chunk > 0);
            }
            let noise = 1.0 + self.jitter * (rng.f64() * 2.0 - 1.0);
            let mut time = (self.base + self.per_stream * decoding as f64) * noise;
            count += 1;
            let prefill = f64::from(prefilled) * self.per_prompt_token;
            let pauses = self.pause_every > 0 && count.is_multiple_of(self.pause_every);
            let pause = if pauses { self.pause } else { 0.0 };
            time += prefill + pause;
            now += time;
            let decoding = decoding as u32;
            let step = Truth {
                prefilling,
                prompt_tokens: prefilled,
                decoding,
                recomputed: 0,
                ms: time / 1000.0,
                prefill_ms: prefill / 1000.0,
                pause_ms: pause / 1000.0,
            };
            if open.iter().any(|request| request.prefilled == request.prompt) {
                truth.push(step);
            }
            open.retain_mut(|request| {
                if request.prefilled < request.prompt {
                    return true;
                }
                let tokens = rng.u32(1..=self.speculative).min(request.left);
                request.left -= tokens;
                request.held_back += tokens;
                let last = request.left == 0;
                if request.first || last || request.held_back >= self.interval {
                    outputs.push(Output { at: now as u64, slot: request.slot, tokens: request.held_back, last });
                    request.held_back = 0;
                    request.first = false;
                }
                if last {
                    free.insert(0, request.slot);
                    free_at[request.slot as usize] = now + 2_000_000.0;
                }
                !last
            });
        }
        (outputs, truth)
    }

    /// The front end takes over all outputs that are there, then writes the event of one stream, and so on. The tokens of a
    /// stream that wait for their turn are merged.
    fn deliver(&self, outputs: &[&Output], rng: &mut Rng, events: &mut Vec<Event>) {
        let mut outputs = outputs.iter().peekable();
        let mut ready: std::collections::VecDeque<(u32, u32, bool)> = std::collections::VecDeque::new();
        let mut now = 0u64;
        let exponential = |rng: &mut Rng, mean: f64| (-mean * (1.0 - rng.f64()).ln()) as u64;
        let mut until = if self.runs > 0.0 { exponential(rng, self.runs) } else { u64::MAX };
        loop {
            if ready.is_empty() {
                let Some(next) = outputs.peek() else { break };
                now = now.max(next.at);
            }
            if now > until {
                while now > until {
                    let stop = exponential(rng, self.held);
                    now = now.max(until + stop);
                    until = until + stop + exponential(rng, self.runs);
                }
            }
            while let Some(output) = outputs.next_if(|output| output.at <= now) {
                match ready.iter_mut().find(|entry| entry.0 == output.slot) {
                    Some(entry) => {
                        entry.1 += output.tokens;
                        entry.2 |= output.last;
                    }
                    None => ready.push_back((output.slot, output.tokens, output.last)),
                }
            }
            if let Some((slot, count, last)) = ready.pop_front() {
                now += rng.u64(self.write.clone());
                events.push(Event { at: now * 1000, slot, kind: Kind::Tokens { count } });
                if last {
                    events.push(Event { at: now * 1000 + 5_000, slot, kind: Kind::End { tokens: 0 } });
                }
            }
        }
    }
}
