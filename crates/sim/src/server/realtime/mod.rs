//! `/v1/realtime`: a WebSocket on which a client requests one response after another.
//!
//! Without a model in the query it imitates vLLM 0.33 (`vllm/entrypoints/speech_to_text/realtime/connection.py`): audio
//! is transcribed from the first commit on, and the response ends after the final commit. With one (`?model=`) it
//! imitates OpenAI (openai-python 3.52, `openai/types/realtime`): `response.create` requests a text response.

mod message;
mod openai;
mod vllm;

use std::future::Future;

use tokio::time::Instant;

use crate::server::api::Imitation;
use crate::server::engine::Engine;
use crate::server::engine::Finish;
use crate::server::engine::Slot;
use crate::server::exchange::After;
use crate::server::exchange::faulty;
use crate::server::fault::Fault;
use crate::server::front::Front;
use crate::server::generation::Generation;
use crate::server::generation::Piece;
use crate::server::http::Client;
use crate::server::http::Ended;
use crate::server::http::Head;
use crate::server::job::Job;
use crate::server::job::Refusal;
use crate::server::job::bad_request;
use crate::server::realtime::message::Asked;
use crate::server::realtime::message::Input;
use crate::server::realtime::message::Message;
use crate::server::websocket;
use crate::server::websocket::Received;
use crate::server::websocket::Socket;

/// Path of the endpoint.
pub(crate) const PATH: &str = "/v1/realtime";

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole(Finish),
    Cancelled,
    Failed,
}

/// Token usage of a response.
#[derive(Clone, Copy, Debug)]
struct Usage {
    input: u64,
    cached: u64,
    output: u64,
}

/// Server messages in the format of one API.
trait Voice: Send {
    /// Sent when the session opens.
    fn greeting(&mut self) -> String;

    /// Reply to a message that does not request a response; most have none.
    fn reply(&mut self, message: &Message) -> Option<String>;

    /// An error outside a response.
    fn error(&mut self, code: &str, text: &str) -> String;

    /// Start of a response.
    fn begin(&mut self, id: u64) -> Vec<String>;

    /// Tokens.
    fn tokens(&mut self, piece: &Piece) -> Option<String>;

    /// End of a response.
    fn end(&mut self, end: End, usage: Usage) -> Vec<String>;

    /// A truncated message.
    fn broken(&self) -> &'static str;
}

/// Why a response is aborted.
enum Stop {
    /// The connection failed, or is to be closed in this way.
    Close(After),
    Cancelled,
}

impl From<Ended> for Stop {
    fn from(_: Ended) -> Stop {
        Stop::Close(After::Close)
    }
}

/// An open session.
struct Session<'a> {
    socket: Socket<'a>,
    engine: &'a Engine,
    voice: Box<dyn Voice>,
    input: Input,
    /// The fault injected into its responses.
    fault: Option<Fault>,
    /// Tokens of the response so far.
    generated: u64,
}

/// Opens a session for a handshake with this key, and serves it until it ends.
pub(crate) async fn serve(client: &mut Client, engine: &Engine, head: &Head, key: &str) -> Result<After, Ended> {
    let front = Front::new(Imitation::Vllm, true);
    let model = query(&head.query, "model");
    let named = model.as_deref().and_then(|model| model.strip_prefix("fault/")).or(head.fault.as_deref());
    let fault = match named.map(str::parse::<Fault>).transpose() {
        Ok(fault) => fault,
        Err(error) => {
            let refusal = bad_request(Some("x-sim-fault"), error.to_string());
            return refuse(client, engine, front, &refusal).await;
        }
    };
    match fault {
        Some(Fault::Status(status)) => return refuse(client, engine, front, &faulty(status)).await,
        Some(Fault::Garbage) => {
            client.send(b"\x16\x03\x01\x00\xff this is no HTTP\n\x00\n").await?;
            return Ok(After::Close);
        }
        Some(Fault::SlowHeaders(time)) => client.with(tokio::time::sleep(time)).await?,
        _ => {}
    }
    let id = format!("{:016x}", fastrand::u64(..));
    let input = Input::new(model.is_some());
    let voice: Box<dyn Voice> = match model {
        Some(model) => Box::new(openai::Session::new(id, model)),
        None => Box::new(vllm::Session::new(id)),
    };
    let socket = Socket::new(client);
    let mut session = Session { socket, engine, voice, input, fault, generated: 0 };
    session.socket.send_raw(&websocket::switched(key)).await?;
    Ok(match session.run().await {
        Ok(()) => After::Close,
        Err(Stop::Close(after)) => after,
        Err(Stop::Cancelled) => After::Close,
    })
}

/// A query parameter, with its slashes unescaped.
fn query(text: &str, name: &str) -> Option<String> {
    let value = text.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.replace("%2F", "/").replace("%2f", "/").replace("%3A", ":").replace("%3a", ":"))
}

async fn refuse(client: &mut Client, engine: &Engine, front: Front, refusal: &Refusal) -> Result<After, Ended> {
    engine.count_refused();
    let message = serde_json::to_string(&refusal.message).unwrap_or_default();
    client.send(&front.json(refusal.status, "", &format!(r#"{{"error":{message}}}"#))).await?;
    Ok(After::Close)
}

impl Session<'_> {
    async fn run(&mut self) -> Result<(), Stop> {
        let greeting = self.voice.greeting();
        self.socket.send(&greeting).await?;
        loop {
            let message = self.next().await?;
            match self.input.take(&message) {
                Ok(true) => self.answer().await?,
                Ok(false) => {
                    if let Some(reply) = self.voice.reply(&message) {
                        self.socket.send(&reply).await?;
                    }
                }
                Err((code, text)) => self.complain(code, &text).await?,
            }
        }
    }

    async fn complain(&mut self, code: &str, text: &str) -> Result<(), Stop> {
        let error = self.voice.error(code, text);
        Ok(self.socket.send(&error).await?)
    }

    /// Returns the next message; control frames are handled on the way.
    async fn next(&mut self) -> Result<Message, Stop> {
        loop {
            match self.socket.receive().await? {
                Received::Message(text) => match serde_json::from_slice(&text) {
                    Ok(message) => return Ok(message),
                    Err(_) => self.complain("invalid_json", "Invalid JSON").await?,
                },
                other => self.keep(other).await?,
            }
        }
    }

    /// Handles control frames.
    async fn keep(&mut self, received: Received) -> Result<(), Stop> {
        match received {
            Received::Ping(payload) => Ok(self.socket.pong(&payload).await?),
            Received::Close(payload) => {
                self.socket.close(&payload).await?;
                Err(Stop::Close(After::Close))
            }
            Received::Malformed => {
                self.socket.close(&websocket::PROTOCOL_ERROR.to_be_bytes()).await?;
                Err(Stop::Close(After::Close))
            }
            Received::Message(_) => Ok(()),
        }
    }

    /// Runs `work` while also reading client input.
    async fn with<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Stop> {
        let mut work = std::pin::pin!(work);
        loop {
            let received = tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                received = self.socket.receive() => received?,
            };
            self.hear(received).await?;
        }
    }

    /// Handles client input during a response.
    async fn hear(&mut self, received: Received) -> Result<(), Stop> {
        let Received::Message(text) = &received else { return self.keep(received).await };
        match serde_json::from_slice::<Message>(text) {
            Ok(message) if message.kind == "response.cancel" => Err(Stop::Cancelled),
            Ok(message) => {
                self.input.take_during_answer(&message);
                Ok(())
            }
            Err(_) => self.complain("invalid_json", "Invalid JSON").await,
        }
    }

    /// One response, from the queue to its end.
    async fn answer(&mut self) -> Result<(), Stop> {
        let engine = self.engine;
        let mut chance = engine.begin();
        let mishap = engine.mishap(&mut chance);
        let Asked { api, body } = self.input.asked();
        let job = match Job::read(api, body, Imitation::Vllm, &engine.settings) {
            Ok(job) => job,
            Err(refusal) => {
                engine.count_refused();
                return self.complain("processing_error", &refusal.message).await;
            }
        };
        let mut fault = self.fault.or(job.fault).or(mishap);
        if fault.is_some() {
            engine.count_fault();
        }
        self.generated = 0;
        let id = chance.u64(..);
        let mut generation = Generation::new(&job, &engine.settings, chance);
        let slot = self.with(engine.schedule(job.prompt_tokens)).await?;
        let end = match self.generate(id, &mut generation, &mut fault, &slot).await {
            Ok(end) => end,
            Err(Stop::Cancelled) => End::Cancelled,
            Err(close) => {
                if fault.is_none() && self.fault.is_some() {
                    slot.end(Finish::Fault);
                }
                return Err(close);
            }
        };
        match end {
            End::Whole(finish) => slot.end(finish),
            End::Failed => slot.end(Finish::Fault),
            // It counts as aborted.
            End::Cancelled => drop(slot),
        }
        if fault == Some(Fault::NoDone) {
            self.socket.close(&websocket::NORMAL.to_be_bytes()).await?;
            return Err(Stop::Close(After::Close));
        }
        let usage = Usage { input: job.prompt_tokens, cached: job.cached_tokens, output: self.generated };
        for message in self.voice.end(end, usage) {
            self.socket.send(&message).await?;
        }
        self.input.answered();
        Ok(())
    }

    async fn generate(
        &mut self,
        id: u64,
        generation: &mut Generation,
        fault: &mut Option<Fault>,
        slot: &Slot<'_>,
    ) -> Result<End, Stop> {
        let engine = self.engine;
        let mut start = slot.scheduled();
        for message in self.voice.begin(id) {
            self.socket.send(&message).await?;
        }
        match *fault {
            Some(Fault::Hang(Some(time))) => {
                self.with(tokio::time::sleep(time)).await?;
                start = Instant::now();
            }
            Some(Fault::Hang(None)) => self.with(std::future::pending()).await?,
            Some(Fault::Empty) => return Ok(End::Whole(Finish::Stop)),
            _ => {}
        }
        let mut first = true;
        while let Some(due) = generation.advance() {
            if fault.and_then(Fault::after).is_some_and(|after| generation.steps > after || generation.is_last()) {
                match fault.take() {
                    Some(Fault::ErrorEvent(_)) => return Ok(End::Failed),
                    Some(Fault::Cut(_)) => return Err(Stop::Close(After::Close)),
                    Some(Fault::Reset(_)) => return Err(Stop::Close(After::Reset)),
                    Some(Fault::Stall(time)) => start += time,
                    Some(Fault::BadJson(_)) => self.socket.send(self.voice.broken()).await?,
                    _ => {}
                }
            }
            self.with(engine.sleep_until(start + due)).await?;
            generation.speak();
            if std::mem::take(&mut first) {
                slot.first_token();
            }
            slot.generate(generation.step_tokens());
            self.generated += generation.step_tokens();
            for piece in generation.pieces.iter().filter(|piece| piece.tokens > 0) {
                if let Some(message) = self.voice.tokens(piece) {
                    self.socket.send(&message).await?;
                }
            }
        }
        while !self.input.is_complete() {
            let received = self.socket.receive().await?;
            self.hear(received).await?;
        }
        Ok(End::Whole(generation.finish()))
    }
}
