//! One generation request, from its queue to its end.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::sim::server::answer;
use crate::sim::server::body;
use crate::sim::server::body::Choice;
use crate::sim::server::engine::Engine;
use crate::sim::server::engine::Finish;
use crate::sim::server::engine::Slot;
use crate::sim::server::fault::Fault;
use crate::sim::server::generation::Generation;
use crate::sim::server::http::Client;
use crate::sim::server::http::Ended;
use crate::sim::server::http::Head;
use crate::sim::server::job::Api;
use crate::sim::server::job::Job;
use crate::sim::server::job::Refusal;
use crate::sim::server::render;
use crate::sim::server::render::Events;
use crate::sim::server::render::Identity;
use crate::sim::server::render::Timing;

/// What becomes of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    KeepOpen,
    Close,
    Reset,
}

/// Bytes that are written at once when nothing paces the stream.
const BLOCK_BYTES: usize = 64 * 1024;

/// A request in the works.
struct Exchange<'a> {
    client: &'a mut Client,
    engine: &'a Engine,
    job: Job,
    identity: Identity,
    generation: Generation,
    fault: Option<Fault>,
    close: bool,
}

/// Answers one generation request.
pub(crate) async fn generate(
    client: &mut Client,
    engine: &Engine,
    head: &Head,
    api: Api,
    body: Vec<u8>,
) -> Result<After, Ended> {
    let mut chance = engine.begin();
    let settings = &engine.settings;
    let mishap = engine.mishap(&mut chance);
    let job = Job::read(api, &body, settings);
    drop(body);
    let named = head.fault.as_deref().map(str::parse::<Fault>);
    let (job, named) = match (job, named) {
        (Ok(job), Some(Ok(fault))) => (job, Some(fault)),
        (Ok(job), None) => (job, None),
        (Err(refusal), _) => return refuse(client, engine, &refusal, head.close).await,
        (_, Some(Err(error))) => {
            let message = error.to_string();
            let refusal = Refusal { status: 400, kind: "BadRequestError", param: Some("x-sim-fault"), message };
            return refuse(client, engine, &refusal, head.close).await;
        }
    };
    let fault = named.or(job.fault).or(mishap);
    if fault.is_some() {
        engine.count_fault();
    }
    let number = chance.u64(..);
    let prefix = if api == Api::Chat { "chatcmpl" } else { "cmpl" };
    let id = head.request_id.as_ref().map_or_else(|| format!("{prefix}-{number:016x}"), |id| format!("{prefix}-{id}"));
    let fingerprint = format!("vllm-0.32.0-{:08x}", settings.seed as u32);
    let identity = Identity { id, created: answer::unix_time(), fingerprint };
    let generation = Generation::new(&job, settings, chance);
    let exchange = Exchange { client, engine, job, identity, generation, fault, close: head.close };
    exchange.run().await
}

async fn refuse(client: &mut Client, engine: &Engine, refusal: &Refusal, close: bool) -> Result<After, Ended> {
    engine.count_refused();
    client.send(&answer::refusal(refusal, close)).await?;
    Ok(if close { After::Close } else { After::KeepOpen })
}

impl Exchange<'_> {
    async fn run(mut self) -> Result<After, Ended> {
        match self.fault {
            Some(Fault::Status(status)) => {
                return refuse(self.client, self.engine, &answer::faulty(status), self.close).await;
            }
            Some(Fault::Garbage) => {
                self.client.send(b"\x16\x03\x01\x00\xff this is no HTTP\n\x00\n").await?;
                return Ok(After::Close);
            }
            Some(Fault::SlowHeaders(time)) => self.client.with(tokio::time::sleep(time)).await?,
            _ => {}
        }
        if self.job.stream { self.stream().await } else { self.answer().await }
    }

    async fn stream(&mut self) -> Result<After, Ended> {
        // At once, also when the request has to wait: that is how vLLM's Python front end does it.
        self.client.send(&answer::stream_head(self.close)).await?;
        let engine = self.engine;
        let slot = self.patiently(engine.schedule(self.job.prompt_tokens)).await?;
        let mut start = slot.scheduled();
        match self.fault {
            Some(Fault::Hang(time)) => start = self.hang(time).await?,
            Some(Fault::Empty) => {
                slot.end(Finish::Fault);
                self.client.send(b"0\r\n\r\n").await?;
                return Ok(self.after());
            }
            _ => {}
        }
        let (job, identity) = (self.job.clone(), self.identity.clone());
        let mut events = Events::new(&job, &identity, &engine.settings);
        let mut out = Vec::new();
        let mut first = None;
        while let Some(due) = self.generation.advance() {
            if let Some(after) = self.strike(&mut out, &mut start).await? {
                slot.end(Finish::Fault);
                return Ok(after);
            }
            self.pause_until(start + due).await?;
            self.generation.speak();
            if first.is_none() {
                first = Some(Instant::now());
                slot.first_token();
                for choice in 0..job.choices {
                    events.role(&mut out, choice);
                }
            }
            slot.generate(self.generation.step_tokens());
            for piece in self.generation.pieces.iter().filter(|piece| piece.tokens > 0) {
                events.tokens(&mut out, piece);
            }
            if !self.generation.is_last() {
                self.client.send(&out).await?;
                self.send_alike(&mut events, &mut out, &slot).await?;
                out.clear();
            }
        }
        let generated = self.generation.total();
        events.usage(&mut out, generated, self.timing(&slot, first));
        if self.fault != Some(Fault::NoDone) {
            render::done(&mut out);
        }
        render::terminate(&mut out);
        slot.end(self.generation.finish());
        self.client.send(&out).await?;
        Ok(self.after())
    }

    /// When nothing tells the events apart, one block of them is rendered and written again and again.
    async fn send_alike(&mut self, events: &mut Events<'_>, out: &mut Vec<u8>, slot: &Slot<'_>) -> Result<(), Ended> {
        let mut left = self.generation.alike();
        if left == 0 || self.fault.is_some() || self.job.continuous_usage || self.job.return_token_ids {
            return Ok(());
        }
        out.clear();
        let Some(piece) = self.generation.pieces.first() else { return Ok(()) };
        events.tokens(out, piece);
        let length = out.len();
        let many = (BLOCK_BYTES / length).max(1);
        let block = out.repeat(many);
        while left > 0 {
            let now = left.min(many as u64);
            let bytes = block.get(..now as usize * length).unwrap_or(&block);
            slot.generate(now);
            self.generation.skip(now);
            self.client.send(bytes).await?;
            left -= now;
        }
        Ok(())
    }

    async fn answer(&mut self) -> Result<After, Ended> {
        let engine = self.engine;
        let slot = self.client.with(engine.schedule(self.job.prompt_tokens)).await?;
        let mut start = slot.scheduled();
        if let Some(Fault::Hang(time)) = self.fault {
            start = self.hang(time).await?;
        }
        let mut choices: Vec<Choice> = (0..self.job.choices).map(|_| Choice::default()).collect();
        let mut first = None;
        while let Some(due) = self.generation.advance() {
            if let Some(Fault::Stall(time)) = self.fault.take_if(|fault| matches!(fault, Fault::Stall(_))) {
                start += time;
            }
            self.pause_until(start + due).await?;
            self.generation.speak();
            first.get_or_insert_with(|| {
                slot.first_token();
                Instant::now()
            });
            slot.generate(self.generation.step_tokens());
            for (piece, choice) in self.generation.pieces.iter().zip(&mut choices) {
                if piece.tokens > 0 {
                    choice.text.push_str(&piece.text);
                    choice.ids.extend_from_slice(&piece.ids);
                    choice.finish = piece.finish;
                }
            }
        }
        let timing = self.timing(&slot, first);
        let body = body::completion(&self.job, &self.identity, &self.engine.settings, &choices, timing);
        let bytes = answer::json_body(200, &body, self.close);
        match self.fault {
            Some(Fault::ErrorEvent(_)) => {
                slot.end(Finish::Fault);
                refuse(self.client, self.engine, &answer::faulty(500), self.close).await
            }
            Some(fault @ (Fault::Cut(_) | Fault::Reset(_))) => {
                slot.end(Finish::Fault);
                self.client.send(bytes.get(..bytes.len() - body.len() / 2).unwrap_or(&bytes)).await?;
                Ok(if matches!(fault, Fault::Reset(_)) { After::Reset } else { After::Close })
            }
            _ => {
                slot.end(self.generation.finish());
                self.client.send(&bytes).await?;
                Ok(self.after())
            }
        }
    }

    /// Lets a fault in mid-stream strike when its time has come; tells how the connection goes on if it ends the answer.
    async fn strike(&mut self, out: &mut Vec<u8>, start: &mut Instant) -> Result<Option<After>, Ended> {
        let (Some(fault), Some(after)) = (self.fault, self.fault.and_then(Fault::after)) else { return Ok(None) };
        if self.generation.steps <= after && !self.generation.is_last() {
            return Ok(None);
        }
        self.fault = None;
        match fault {
            Fault::ErrorEvent(_) => {
                render::chunk(out, answer::ERROR_EVENT);
                render::done(out);
                render::terminate(out);
                self.client.send(out).await?;
                Ok(Some(self.after()))
            }
            Fault::Reset(_) => Ok(Some(After::Reset)),
            Fault::Stall(time) => {
                *start += time;
                Ok(None)
            }
            Fault::BadJson(_) => {
                render::chunk(out, b"data: {\"id\":\"chatcmpl-\n\n");
                Ok(None)
            }
            _ => Ok(Some(After::Close)),
        }
    }

    /// Says nothing for `time`, or for ever; returns the moment from which generation is reckoned then.
    async fn hang(&mut self, time: Option<Duration>) -> Result<Instant, Ended> {
        match time {
            Some(time) => self.pause_until(Instant::now() + time).await?,
            None => self.patiently(std::future::pending()).await?,
        }
        Ok(Instant::now())
    }

    async fn pause_until(&mut self, at: Instant) -> Result<(), Ended> {
        if at <= Instant::now() {
            return Ok(());
        }
        self.patiently(self.engine.sleep_until(at)).await
    }

    /// Waits as long as the client stays, and sends it a comment now and then if that is set.
    async fn patiently<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Ended> {
        let Some(interval) = self.engine.settings.sse_keep_alive.filter(|_| self.job.stream) else {
            return self.client.with(work).await;
        };
        let mut work = std::pin::pin!(work);
        let mut comment = Vec::new();
        render::chunk(&mut comment, b": keep-alive\n\n");
        loop {
            match self.client.with(tokio::time::timeout(interval, &mut work)).await? {
                Ok(done) => return Ok(done),
                Err(_) => self.client.send(&comment).await?,
            }
        }
    }

    fn timing(&self, slot: &Slot<'_>, first: Option<Instant>) -> Option<Timing> {
        // vLLM tells none for several sequences.
        let first = first.filter(|_| self.engine.settings.per_request_metrics && self.job.choices == 1)?;
        let tokens = self.generation.total();
        Some(Timing::new(slot.queue_time(), first - slot.scheduled(), first.elapsed(), tokens))
    }

    fn after(&self) -> After {
        if self.close { After::Close } else { After::KeepOpen }
    }
}
