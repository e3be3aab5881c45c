//! The requests of one client connection, each from the queue to the end of its response.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::server::dialect::{
    Chunks, Context, Dialect, Front, Player, Prompt, Refusal, Scope, Summary, Times, bad_request, form,
};
use crate::server::engine::{Engine, Slot};
use crate::server::fault::{Fault, GARBAGE};
use crate::server::generation::{Finish, Generation, Job};
use crate::server::http::{Client, Ended, Head};
use crate::server::realtime;
use crate::server::settings::Imitation;
use crate::server::spans::Caller;

/// uvicorn's response to malformed HTTP.
const MALFORMED: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: \
close\r\n\r\nInvalid HTTP request received.";

/// Serves HTTP/1.1 requests until either side closes the connection; returns the client if it uses HTTP/2.
pub(crate) async fn serve_requests(mut client: Client, engine: &Engine) -> Option<Client> {
    let mut first = true;
    loop {
        let after = match client.request(engine.settings.idle_timeout).await {
            Ok((head, _)) if realtime::opens(&head) => {
                realtime::serve(client, engine, &head).await;
                return None;
            }
            Ok((head, body)) => {
                let after = serve_request(&mut client, engine, &head, body).await;
                count(&mut client, engine, &head);
                after
            }
            Err(Ended::Http2) if first => return Some(client),
            Err(Ended::Malformed | Ended::Http2) => client.send(MALFORMED).await.map(|()| After::Close),
            Err(gone) => Err(gone),
        };
        first = false;
        match after {
            Ok(After::KeepOpen) => {}
            Ok(After::Reset) => {
                client.reset();
                return None;
            }
            Ok(After::Close) | Err(_) => return None,
        }
    }
}

/// Counts a response as vLLM does: paths that vLLM does not serve count as `none`, and responses without a status as
/// 5xx.
fn count(client: &mut Client, engine: &Engine, head: &Head) {
    let class = client.take_class().unwrap_or('5');
    let handler = match head.path.as_str() {
        "/health" | "/metrics" => return,
        path if path == "/v1/models" || !Dialect::at(path).is_empty() => path,
        _ => "none",
    };
    engine.count_response(handler, &head.method, class);
}

async fn serve_request(client: &mut Client, engine: &Engine, head: &Head, body: Vec<u8>) -> Result<After, Ended> {
    let (get, post) = (matches!(head.method.as_str(), "GET" | "HEAD"), head.method == "POST");
    let apis = Dialect::at(&head.path);
    if post && !apis.is_empty() {
        return reply(client, engine, head, &apis, body).await;
    }
    let front = Front::new(Imitation::Vllm, head.close);
    // In vLLM, a mounted app serves the metrics page and ignores the method; only OPTIONS is imitated here.
    let get = get || (head.method == "OPTIONS" && head.path == "/metrics");
    let page = if get { page(engine, head) } else { None };
    let plain = match page {
        Some(page) => page,
        None if apis.is_empty() => front.json(404, "", r#"{"detail":"Not Found"}"#),
        None => front.json(405, "allow: POST", r#"{"detail":"Method Not Allowed"}"#),
    };
    // A response to HEAD consists of headers only (RFC 9110, 9.3.2).
    let end = match memchr::memmem::find(&plain, b"\r\n\r\n") {
        Some(at) if head.method == "HEAD" => at + 4,
        _ => plain.len(),
    };
    client.send(plain.get(..end).unwrap_or(&plain)).await?;
    Ok(After::close_if(head.close))
}

/// The response to GET for paths other than the APIs.
fn page(engine: &Engine, head: &Head) -> Option<Vec<u8>> {
    let settings = &engine.settings;
    let (vllm, ollama) = (Front::new(Imitation::Vllm, head.close), Front::new(Imitation::Ollama, head.close));
    Some(match head.path.as_str() {
        "/v1/models" => vllm.models(settings),
        "/health" => vllm.whole(200, "", "", ""),
        "/metrics" => vllm.whole(200, "text/plain; version=1.0.0; charset=utf-8", "", &engine.metrics()),
        "/" => ollama.whole(200, "text/plain; charset=utf-8", "", "Ollama is running"),
        "/api/version" => ollama.json(200, "", r#"{"version":"0.17.4"}"#),
        "/api/tags" => ollama.models(settings),
        _ => return None,
    })
}

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
struct Request<'a> {
    client: &'a mut Client,
    engine: &'a Engine,
    dialect: &'static Dialect,
    player: Player,
    generation: Generation,
    fault: Option<Fault>,
    front: Front,
    /// The caller's span, parent of the engine's span.
    caller: Option<Caller>,
}

/// Serves one request to one of the APIs at its path.
async fn reply(
    client: &mut Client,
    engine: &Engine,
    head: &Head,
    apis: &[&'static Dialect],
    body: Vec<u8>,
) -> Result<After, Ended> {
    let settings = &engine.settings;
    let (mut chance, random) = engine.begin();
    let imitate = head.get("x-sim-engine").map_or(Ok(settings.imitate), str::parse::<Imitation>);
    let imitate = imitate.map_err(|error| bad_request(Some("x-sim-engine"), error.to_string()));
    let parsed = match apis.iter().any(|dialect| dialect.is("form")) {
        true => form(&body, head.get("content-type").unwrap_or_default()),
        false => serde_json::from_slice(&body).map_err(|error| bad_request(None, error.to_string())),
    };
    drop(body);
    // If several APIs share the path and the body is unreadable, the imitated engine selects the API.
    let configured = *imitate.as_ref().unwrap_or(&settings.imitate);
    let selected = Dialect::select(apis, parsed.as_ref().unwrap_or(&Value::Null), configured);
    let Some(dialect) = selected else { return Err(Ended::Malformed) };
    let front = Front::new(dialect.engine(configured), head.close);
    let job = imitate.and_then(|imitate| {
        let named = head.get("x-sim-fault").map(str::parse::<Fault>).transpose();
        let named = named.map_err(|error| bad_request(Some("x-sim-fault"), error.to_string()))?;
        let body = parsed?;
        Ok((Job::read(dialect, &body, Prompt::read(dialect, &body), imitate, settings)?, named))
    });
    let (job, named) = match job {
        Ok(job) => job,
        Err(refusal) => return refuse(client, engine, dialect, front, &refusal).await,
    };
    let fault = named.or(job.fault).or(random);
    engine.counters().faulted += u64::from(fault.is_some());
    let number = chance.u64(..);
    let id = head.get("x-request-id").map_or_else(|| format!("{number:016x}"), str::to_owned);
    let generation = Generation::new(&job, settings, chance);
    let player = Player::new(dialect, Context::new(job, id, settings));
    let caller = head.get("traceparent").and_then(Caller::parse);
    Request { client, engine, dialect, player, generation, fault, front, caller }.run().await
}

async fn refuse(
    client: &mut Client,
    engine: &Engine,
    dialect: &Dialect,
    front: Front,
    refusal: &Refusal,
) -> Result<After, Ended> {
    engine.counters().refused += 1;
    client.send(&front.refusal(dialect, refusal)).await?;
    Ok(After::close_if(front.closes_after(refusal.status)))
}

impl Request<'_> {
    async fn run(mut self) -> Result<After, Ended> {
        match self.fault {
            Some(Fault::Status(status)) => return self.refuse(status).await,
            Some(Fault::Garbage) => {
                self.client.send(GARBAGE).await?;
                return Ok(After::Close);
            }
            Some(Fault::SlowHeaders(time)) => self.client.with(tokio::time::sleep(time)).await?,
            _ => {}
        }
        match self.generates() && self.player.context.job.stream {
            true => self.stream().await,
            false => self.whole().await,
        }
    }

    fn generates(&self) -> bool {
        self.dialect.generates() && !self.loads_only()
    }

    /// Whether this is an Ollama request without a prompt, which only loads the model.
    fn loads_only(&self) -> bool {
        self.dialect.is("loads") && self.player.context.job.empty
    }

    async fn refuse(&mut self, status: u16) -> Result<After, Ended> {
        refuse(self.client, self.engine, self.dialect, self.front, &Refusal::injected(status)).await
    }

    async fn stream(&mut self) -> Result<After, Ended> {
        let engine = self.engine;
        let headers_at = self.front.headers_at(self.dialect);
        let mut out = Chunks::new(self.front);
        if headers_at == "at_once" {
            self.open(&mut out);
            self.flush(&mut out).await?;
        }
        let job = &self.player.context.job;
        let slot = self.client.with(engine.schedule(job.prompt_tokens, job.cached_tokens)).await?;
        let mut start = slot.scheduled();
        if headers_at != "at_once" {
            self.open(&mut out);
            if headers_at == "scheduled" || self.fault == Some(Fault::Empty) {
                self.flush(&mut out).await?;
            }
        }
        match self.fault {
            Some(Fault::Hang(time)) => start = self.hang(time).await?,
            Some(Fault::Empty) => {
                slot.end(Finish::Fault);
                self.client.send(b"0\r\n\r\n").await?;
                return Ok(self.after_stream());
            }
            _ => {}
        }
        let mut first = None;
        while let Some(due) = self.generation.advance() {
            if let Some(after) = self.apply_fault(&mut out, &mut start).await? {
                slot.end(Finish::Fault);
                return Ok(after);
            }
            self.pause_until(start + due).await?;
            self.generation.generate_text();
            if first.is_none() {
                first = Some(Instant::now());
                slot.first_token();
                self.player.begin(&mut |event| out.push(event));
            }
            slot.generate(self.generation.step_tokens());
            let times = times(&slot, first);
            for piece in self.generation.pieces.iter().filter(|piece| piece.tokens > 0) {
                self.player.tokens(piece, times, &mut |event| out.push(event));
            }
            if !self.generation.is_last() {
                self.flush(&mut out).await?;
                self.send_alike(&mut out, &slot).await?;
            }
        }
        let summary = self.summary(&slot, first);
        self.player.end(&summary, self.fault != Some(Fault::NoDone), &mut |event| out.push(event));
        out.terminate();
        self.trace(&summary);
        slot.end(self.generation.finish());
        self.flush(&mut out).await?;
        Ok(self.after_stream())
    }

    /// Renders the headers and the events before any token.
    fn open(&mut self, out: &mut Chunks) {
        out.bytes = self.front.stream(self.dialect);
        self.player.play("open", &mut |event| out.push(event), |scope| scope);
    }

    async fn flush(&mut self, out: &mut Chunks) -> Result<(), Ended> {
        self.client.send(&out.bytes).await?;
        out.bytes.clear();
        Ok(())
    }

    /// If the next events are identical, renders one block of them and writes it repeatedly.
    async fn send_alike(&mut self, out: &mut Chunks, slot: &Slot<'_>) -> Result<(), Ended> {
        let mut left = self.generation.alike();
        if left == 0 || self.fault.is_some() || !self.player.repeats() {
            return Ok(());
        }
        let Some(piece) = self.generation.pieces.first() else { return Ok(()) };
        self.player.tokens(piece, Times::default(), &mut |event| out.push(event));
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

    /// Sends a non-streamed response. A response without generated tokens is sent when the first token would be due.
    async fn whole(&mut self) -> Result<After, Ended> {
        let engine = self.engine;
        let job = &self.player.context.job;
        let (tokens, cached) = if self.loads_only() { (0, 0) } else { (job.prompt_tokens, job.cached_tokens) };
        let slot = self.client.with(engine.schedule(tokens, cached)).await?;
        let mut start = slot.scheduled();
        if let Some(Fault::Hang(time)) = self.fault {
            start = self.hang(time).await?;
        }
        if !self.generates() {
            if !self.dialect.is("immediate") {
                let due = self.generation.advance().unwrap_or_default();
                self.pause_until(start + due).await?;
            }
            self.generation.discard_tokens();
            return self.send_whole(&self.summary(&slot, Some(Instant::now())), slot).await;
        }
        let mut first = None;
        while let Some(due) = self.generation.advance() {
            if let Some(Fault::Stall(time)) = self.fault.take_if(|fault| matches!(fault, Fault::Stall(_))) {
                start += time;
            }
            self.pause_until(start + due).await?;
            self.generation.generate_text();
            first.get_or_insert_with(|| {
                slot.first_token();
                Instant::now()
            });
            slot.generate(self.generation.step_tokens());
            for piece in self.generation.pieces.iter().filter(|piece| piece.tokens > 0) {
                self.player.keep(piece);
            }
        }
        let summary = self.summary(&slot, first);
        self.trace(&summary);
        self.send_whole(&summary, slot).await
    }

    async fn send_whole(&mut self, summary: &Summary, slot: Slot<'_>) -> Result<After, Ended> {
        let (headers, body) = self.player.whole(summary);
        let bytes = self.front.json(200, &headers, &body);
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
                Ok(After::close_if(self.front.closes_after(200)))
            }
        }
    }

    /// Applies a mid-stream fault once it is due; returns the state of the connection if the fault ends the response.
    async fn apply_fault(&mut self, out: &mut Chunks, start: &mut Instant) -> Result<Option<After>, Ended> {
        let (Some(fault), Some(after)) = (self.fault, self.fault.and_then(Fault::after)) else { return Ok(None) };
        if self.generation.steps <= after && !self.generation.is_last() {
            return Ok(None);
        }
        self.fault = None;
        Ok(match fault {
            Fault::ErrorEvent(_) => {
                self.player.play("error", &mut |event| out.push(event), |scope| Scope { state: "failed", ..scope });
                // An engine without an error event breaks the connection.
                let ends = self.dialect.has("error");
                if ends {
                    out.terminate();
                }
                self.flush(out).await?;
                Some(if ends { self.after_stream() } else { After::Close })
            }
            Fault::Reset(_) => Some(After::Reset),
            Fault::Stall(time) => {
                *start += time;
                None
            }
            Fault::BadJson(_) => {
                self.player.play("broken", &mut |event| out.push(event), |scope| scope);
                None
            }
            _ => Some(After::Close),
        })
    }

    /// Sends nothing for `time`, or forever if it is `None`; returns the new start of the generation.
    async fn hang(&mut self, time: Option<Duration>) -> Result<Instant, Ended> {
        match time {
            Some(time) => self.pause_until(Instant::now() + time).await?,
            None => self.client.with(std::future::pending()).await?,
        }
        Ok(Instant::now())
    }

    async fn pause_until(&mut self, at: Instant) -> Result<(), Ended> {
        if at <= Instant::now() {
            return Ok(());
        }
        self.client.with(self.engine.sleep_until(at)).await
    }

    fn summary(&self, slot: &Slot<'_>, first: Option<Instant>) -> Summary {
        let state = self.generation.finish().name();
        Summary { generated: self.generation.total(), state, times: times(slot, first) }
    }

    /// Sends the engine's span of the request.
    fn trace(&self, summary: &Summary) {
        if let Some(tracer) = &self.engine.tracer {
            tracer.request(self.dialect, &self.player.context, summary, self.caller);
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
