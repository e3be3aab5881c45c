//! One request, from the queue to the end of its response.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::server::api::Api;
use crate::server::api::Imitation;
use crate::server::dialect;
use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::Dialect;
use crate::server::dialect::Identity;
use crate::server::dialect::Summary;
use crate::server::dialect::Times;
use crate::server::engine::Engine;
use crate::server::engine::Finish;
use crate::server::engine::Slot;
use crate::server::fault::Fault;
use crate::server::form;
use crate::server::front::Chunks;
use crate::server::front::Front;
use crate::server::front::HeadTime;
use crate::server::front::unix_time;
use crate::server::generation::Generation;
use crate::server::http::Client;
use crate::server::http::Ended;
use crate::server::http::Head;
use crate::server::job::Body;
use crate::server::job::Job;
use crate::server::job::Refusal;
use crate::server::job::bad_request;
use crate::server::spans::Caller;

/// What to do with the connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    KeepOpen,
    Close,
    Reset,
}

impl After {
    pub(crate) fn close_if(close: bool) -> After {
        if close { After::Close } else { After::KeepOpen }
    }
}

/// Bytes per write for streams without pacing.
const BLOCK_BYTES: usize = 64 * 1024;

/// A request in progress.
struct Exchange<'a> {
    client: &'a mut Client,
    engine: &'a Engine,
    context: Context,
    generation: Generation,
    fault: Option<Fault>,
    front: Front,
    /// The caller's span, parent of the engine's span.
    caller: Option<Caller>,
}

/// Parses a request: the engine to imitate, the generation, and the fault set by header.
fn read(head: &Head, api: Api, engine: &Engine, body: &[u8]) -> (Imitation, Result<(Job, Option<Fault>), Refusal>) {
    let settings = &engine.settings;
    let imitate = match head.engine.as_deref().map(str::parse) {
        Some(Ok(named)) => named,
        None => settings.imitate,
        Some(Err(error)) => {
            let error: crate::server::UnknownImitation = error;
            return (settings.imitate, Err(bad_request(Some("x-sim-engine"), error.to_string())));
        }
    };
    let body: Result<Body, Refusal> = match api.takes_a_form() {
        true => form::read(body, head.content_type.as_deref().unwrap_or_default()),
        false => serde_json::from_slice(body).map_err(|error| bad_request(None, error.to_string())),
    };
    // An unreadable body cannot select between the APIs that share a path.
    let told = body.as_ref().map_or(api, |body| api.told_apart(body, imitate)).engine(imitate);
    let named = match head.fault.as_deref().map(str::parse::<Fault>) {
        Some(Err(error)) => return (told, Err(bad_request(Some("x-sim-fault"), error.to_string()))),
        Some(Ok(fault)) => Some(fault),
        None => None,
    };
    (told, body.and_then(|body| Job::read(api, body, imitate, settings)).map(|job| (job, named)))
}

/// Answers one request to an API.
pub(crate) async fn answer(
    client: &mut Client,
    engine: &Engine,
    head: &Head,
    api: Api,
    body: Vec<u8>,
) -> Result<After, Ended> {
    let mut chance = engine.begin();
    let settings = &engine.settings;
    let mishap = engine.mishap(&mut chance);
    let (imitate, asked) = read(head, api, engine, &body);
    drop(body);
    let front = Front::new(imitate, head.close);
    let (job, named) = match asked {
        Ok(asked) => asked,
        Err(refusal) => return refuse(client, engine, api, imitate, front, &refusal).await,
    };
    let fault = named.or(job.fault).or(mishap);
    if fault.is_some() {
        engine.count_fault();
    }
    let number = chance.u64(..);
    let identity = Identity {
        id: head.request_id.clone().unwrap_or_else(|| format!("{number:016x}")),
        created: unix_time().as_secs(),
        fingerprint: format!("vllm-0.32.0-{:08x}", settings.seed as u32),
    };
    let generation = Generation::new(&job, settings, chance);
    let context = Context::new(job, identity, settings);
    let exchange = Exchange { client, engine, context, generation, fault, front, caller: head.caller };
    exchange.run().await
}

async fn refuse(
    client: &mut Client,
    engine: &Engine,
    api: Api,
    imitate: Imitation,
    front: Front,
    refusal: &Refusal,
) -> Result<After, Ended> {
    engine.count_refused();
    client.send(&front.json(refusal.status, "", &dialect::refusal(api, imitate, refusal))).await?;
    Ok(After::close_if(front.closes_after(refusal.status)))
}

/// The error response for an injected status.
pub(crate) fn faulty(status: u16) -> Refusal {
    let kind = match status {
        404 => "NotFoundError",
        429 => "TooManyRequestsError",
        503 => "ServiceUnavailableError",
        500..=599 => "InternalServerError",
        _ => "BadRequestError",
    };
    Refusal { status, kind, param: None, message: "The simulated server was asked to fail.".to_owned() }
}

impl Exchange<'_> {
    async fn run(mut self) -> Result<After, Ended> {
        match self.fault {
            Some(Fault::Status(status)) => return self.refuse(status).await,
            Some(Fault::Garbage) => {
                self.client.send(b"\x16\x03\x01\x00\xff this is no HTTP\n\x00\n").await?;
                return Ok(After::Close);
            }
            Some(Fault::SlowHeaders(time)) => self.client.with(tokio::time::sleep(time)).await?,
            _ => {}
        }
        if !self.context.job.api.generates() || self.loads_only() {
            return self.compute().await;
        }
        let dialect = dialect::of(self.context.clone());
        if self.context.job.stream { self.stream(dialect).await } else { self.whole(dialect).await }
    }

    /// Whether this is an Ollama request without a prompt, which only loads the model.
    fn loads_only(&self) -> bool {
        self.context.job.empty && matches!(self.context.job.api, Api::OllamaChat | Api::OllamaGenerate)
    }

    async fn refuse(&mut self, status: u16) -> Result<After, Ended> {
        let (api, engine) = (self.context.job.api, self.context.job.engine);
        refuse(self.client, self.engine, api, engine, self.front, &faulty(status)).await
    }

    async fn stream(&mut self, mut dialect: Box<dyn Dialect>) -> Result<After, Ended> {
        let engine = self.engine;
        let (media, comment) = (dialect.media(), dialect.comment());
        let head_time = self.front.head_time(matches!(self.context.job.api, Api::Chat | Api::Completions));
        let mut out = Chunks::new(self.front);
        if head_time == HeadTime::AtOnce {
            out.bytes = self.front.stream(media);
            dialect.open(&mut out);
            self.flush(&mut out).await?;
        }
        let slot = self.patiently(comment, engine.schedule(self.context.job.prompt_tokens)).await?;
        let mut start = slot.scheduled();
        if head_time != HeadTime::AtOnce {
            out.bytes = self.front.stream(media);
            dialect.open(&mut out);
            if head_time == HeadTime::Scheduled || self.fault == Some(Fault::Empty) {
                self.flush(&mut out).await?;
            }
        }
        match self.fault {
            Some(Fault::Hang(time)) => start = self.hang(comment, time).await?,
            Some(Fault::Empty) => {
                slot.end(Finish::Fault);
                self.client.send(b"0\r\n\r\n").await?;
                return Ok(self.after_stream());
            }
            _ => {}
        }
        let mut first = None;
        while let Some(due) = self.generation.advance() {
            if let Some(after) = self.strike(dialect.as_mut(), &mut out, &mut start).await? {
                slot.end(Finish::Fault);
                return Ok(after);
            }
            self.pause_until(comment, start + due).await?;
            self.generation.speak();
            if first.is_none() {
                first = Some(Instant::now());
                slot.first_token();
                dialect.begin(&mut out, &times(&slot, first));
            }
            slot.generate(self.generation.step_tokens());
            for piece in self.generation.pieces.iter().filter(|piece| piece.tokens > 0) {
                dialect.tokens(&mut out, piece);
            }
            if !self.generation.is_last() {
                self.flush(&mut out).await?;
                self.send_alike(dialect.as_mut(), &mut out, &slot).await?;
            }
        }
        let summary = self.summary(&slot, first);
        dialect.end(&mut out, &summary, self.fault != Some(Fault::NoDone));
        out.terminate();
        self.trace(&summary);
        slot.end(self.generation.finish());
        self.flush(&mut out).await?;
        Ok(self.after_stream())
    }

    async fn flush(&mut self, out: &mut Chunks) -> Result<(), Ended> {
        if !out.bytes.is_empty() {
            self.client.send(&out.bytes).await?;
            out.bytes.clear();
        }
        Ok(())
    }

    /// Renders one block of identical events and writes it repeatedly, if all events are equal.
    async fn send_alike(&mut self, dialect: &mut dyn Dialect, out: &mut Chunks, slot: &Slot<'_>) -> Result<(), Ended> {
        let mut left = self.generation.alike();
        if left == 0 || self.fault.is_some() || !dialect.repeats() {
            return Ok(());
        }
        let Some(piece) = self.generation.pieces.first() else { return Ok(()) };
        dialect.tokens(out, piece);
        let length = out.bytes.len();
        let many = (BLOCK_BYTES / length).max(1);
        let block = out.bytes.repeat(many);
        out.bytes.clear();
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

    async fn whole(&mut self, mut dialect: Box<dyn Dialect>) -> Result<After, Ended> {
        let engine = self.engine;
        let slot = self.client.with(engine.schedule(self.context.job.prompt_tokens)).await?;
        let mut start = slot.scheduled();
        if let Some(Fault::Hang(time)) = self.fault {
            start = self.hang(None, time).await?;
        }
        let mut choices: Vec<Choice> = (0..self.context.job.choices).map(|_| Choice::default()).collect();
        let mut first = None;
        while let Some(due) = self.generation.advance() {
            if let Some(Fault::Stall(time)) = self.fault.take_if(|fault| matches!(fault, Fault::Stall(_))) {
                start += time;
            }
            self.pause_until(None, start + due).await?;
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
        let summary = self.summary(&slot, first);
        let whole = dialect.whole(&choices, &summary);
        self.trace(&summary);
        self.send_whole(&whole.headers, &whole.body, slot).await
    }

    /// Serves a request that generates nothing: processing the prompt takes as long as the first token would.
    async fn compute(&mut self) -> Result<After, Ended> {
        let engine = self.engine;
        let tokens = if self.loads_only() { 0 } else { self.context.job.prompt_tokens };
        let slot = self.client.with(engine.schedule(tokens)).await?;
        let start = match self.fault {
            Some(Fault::Hang(time)) => self.hang(None, time).await?,
            _ => slot.scheduled(),
        };
        if self.context.job.api != Api::CountTokens {
            let due = self.generation.advance().unwrap_or_default();
            self.pause_until(None, start + due).await?;
        }
        self.generation.forget();
        let summary = self.summary(&slot, Some(Instant::now()));
        let body = match self.loads_only() {
            true => dialect::of(self.context.clone()).whole(&[], &summary).body,
            false => dialect::vectors(&self.context, &summary.times),
        };
        self.send_whole("", &body, slot).await
    }

    async fn send_whole(&mut self, headers: &str, body: &str, slot: Slot<'_>) -> Result<After, Ended> {
        let bytes = self.front.json(200, headers, body);
        match self.fault {
            Some(Fault::ErrorEvent(_)) => {
                slot.end(Finish::Fault);
                self.refuse(500).await
            }
            Some(fault @ (Fault::Cut(_) | Fault::Reset(_))) => {
                slot.end(Finish::Fault);
                self.client.send(bytes.get(..bytes.len() - body.len() / 2).unwrap_or(&bytes)).await?;
                Ok(if matches!(fault, Fault::Reset(_)) { After::Reset } else { After::Close })
            }
            _ => {
                slot.end(self.generation.finish());
                self.client.send(&bytes).await?;
                Ok(After::close_if(self.front.close))
            }
        }
    }

    /// Applies a mid-stream fault once it is due; returns the state of the connection if the fault ends the response.
    async fn strike(
        &mut self,
        dialect: &mut dyn Dialect,
        out: &mut Chunks,
        start: &mut Instant,
    ) -> Result<Option<After>, Ended> {
        let (Some(fault), Some(after)) = (self.fault, self.fault.and_then(Fault::after)) else { return Ok(None) };
        if self.generation.steps <= after && !self.generation.is_last() {
            return Ok(None);
        }
        self.fault = None;
        match fault {
            Fault::ErrorEvent(_) => {
                let after = match dialect.error(out) {
                    AfterError::Ends => {
                        out.terminate();
                        self.after_stream()
                    }
                    AfterError::Breaks => After::Close,
                };
                self.flush(out).await?;
                Ok(Some(after))
            }
            Fault::Reset(_) => Ok(Some(After::Reset)),
            Fault::Stall(time) => {
                *start += time;
                Ok(None)
            }
            Fault::BadJson(_) => {
                dialect.broken(out);
                Ok(None)
            }
            _ => Ok(Some(After::Close)),
        }
    }

    /// Sends nothing (except keep-alive comments) for `time`, or forever if it is `None`; returns the new start of the
    /// generation.
    async fn hang(&mut self, comment: Option<&[u8]>, time: Option<Duration>) -> Result<Instant, Ended> {
        match time {
            Some(time) => self.pause_until(comment, Instant::now() + time).await?,
            None => self.patiently(comment, std::future::pending()).await?,
        }
        Ok(Instant::now())
    }

    async fn pause_until(&mut self, comment: Option<&[u8]>, at: Instant) -> Result<(), Ended> {
        if at <= Instant::now() {
            return Ok(());
        }
        self.patiently(comment, self.engine.sleep_until(at)).await
    }

    /// Runs `work` while the client is connected; sends keep-alive comments if they are enabled and the API has them.
    async fn patiently<T>(&mut self, comment: Option<&[u8]>, work: impl Future<Output = T>) -> Result<T, Ended> {
        let Some((interval, comment)) = self.engine.settings.sse_keep_alive.zip(comment) else {
            return self.client.with(work).await;
        };
        let mut work = std::pin::pin!(work);
        let mut out = Chunks::new(self.front);
        out.chunk(|event| event.extend_from_slice(comment));
        loop {
            match self.client.with(tokio::time::timeout(interval, &mut work)).await? {
                Ok(done) => return Ok(done),
                Err(_) => self.client.send(&out.bytes).await?,
            }
        }
    }

    fn summary(&self, slot: &Slot<'_>, first: Option<Instant>) -> Summary {
        Summary { generated: self.generation.total(), finish: self.generation.finish(), times: times(slot, first) }
    }

    /// Sends the engine's span of the request.
    fn trace(&self, summary: &Summary) {
        if let Some(tracer) = &self.engine.tracer {
            tracer.request(&self.context, summary, self.caller);
        }
    }

    fn after_stream(&self) -> After {
        After::close_if(self.front.closes_after_stream())
    }
}

/// Durations of the phases so far.
fn times(slot: &Slot<'_>, first: Option<Instant>) -> Times {
    let first = first.unwrap_or_else(Instant::now);
    Times { queue: slot.queue_time(), prefill: first - slot.scheduled(), decode: first.elapsed() }
}
