//! `/v1/realtime`: a WebSocket on which a client requests one response after another.
//!
//! Without a model in the query it imitates vLLM 0.33 (`vllm/entrypoints/speech_to_text/realtime/connection.py`): audio
//! is transcribed from the first commit on, and the response ends after the final commit. With a model (`?model=`) it
//! imitates OpenAI (openai-python 3.52, `openai/types/realtime`): `response.create` requests a text response.

use std::future::Future;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::server::dialect::{
    Context, Dialect, Front, Player, Prompt, Refusal, Scope, Summary, Times, audio, bad_request, text,
};
use crate::server::engine::{Engine, Slot};
use crate::server::fault::{Fault, GARBAGE};
use crate::server::generation::{Finish, Generation, Job};
use crate::server::http::{Client, Ended, Head, Wire};
use crate::server::settings::Imitation;

/// Path of the endpoint.
const PATH: &str = "/v1/realtime";

/// Maximum size of a message in bytes.
const MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Why a session or a response is aborted.
enum Stop {
    /// The connection failed or has to be closed.
    Close,
    Reset,
    /// The client cancelled the response.
    Cancelled,
}

impl From<Error> for Stop {
    fn from(_: Error) -> Stop {
        Stop::Close
    }
}

/// Whether a request opens a session.
pub(crate) fn opens(head: &Head) -> bool {
    head.method == "GET"
        && head.path == PATH
        && head.header_is("upgrade", "websocket")
        && head.get("sec-websocket-key").is_some()
}

/// Serves a session until it ends.
pub(crate) async fn serve(mut client: Client, engine: &Engine, head: &Head) {
    let model = query(&head.query, "model");
    if let Ok(fault) = open(&mut client, engine, head, model.as_deref()).await {
        let mut session = Session::new(client, engine, model, fault).await;
        if let Err(Stop::Reset) = session.run().await {
            session.socket.get_mut().reset();
        }
    }
}

/// Completes the handshake; returns the fault injected into the session's responses.
///
/// # Errors
/// If the handshake is refused or the client has disconnected.
async fn open(client: &mut Client, engine: &Engine, head: &Head, model: Option<&str>) -> Result<Option<Fault>, Ended> {
    let named = model.and_then(|model| model.strip_prefix("fault/")).or(head.get("x-sim-fault"));
    let fault = named.map(str::parse::<Fault>).transpose();
    let refusal = match &fault {
        Ok(Some(Fault::Status(status))) => Some(Refusal::injected(*status)),
        Err(error) => Some(bad_request(Some("x-sim-fault"), error.to_string())),
        _ => None,
    };
    if let Some(refusal) = refusal {
        engine.counters().refused += 1;
        let body = json!({"error": refusal.message}).to_string();
        client.send(&Front::new(Imitation::Vllm, true).json(refusal.status, "", &body)).await?;
        return Err(Ended::Gone);
    }
    let fault = fault.unwrap_or_default();
    match fault {
        Some(Fault::Garbage) => {
            client.send(GARBAGE).await?;
            return Err(Ended::Gone);
        }
        Some(Fault::SlowHeaders(time)) => client.with(tokio::time::sleep(time)).await?,
        _ => {}
    }
    let accept = derive_accept_key(head.get("sec-websocket-key").unwrap_or_default().as_bytes());
    let switched = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: \
         {accept}\r\nserver: uvicorn\r\n\r\n"
    );
    client.send(switched.as_bytes()).await?;
    Ok(fault)
}

/// A query parameter, with its slashes unescaped.
fn query(text: &str, name: &str) -> Option<String> {
    let value = text.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.replace("%2F", "/").replace("%2f", "/").replace("%3A", ":").replace("%3a", ":"))
}

/// Input of a session so far.
#[derive(Debug, Default)]
struct Input {
    openai: bool,
    /// From `session.update`; vLLM rejects a commit from a client that has not named a model.
    model: Option<Value>,
    audio_bytes: u64,
    /// All audio of the request has arrived.
    complete: bool,
    conversation: Prompt,
    /// Parameters of the requested response.
    response: Value,
}

impl Input {
    /// Processes a message and returns whether it requests a response.
    ///
    /// # Errors
    /// An error code and a text for unsupported input.
    fn take(&mut self, message: &Value) -> Result<bool, (&'static str, String)> {
        match (kind(message), self.openai) {
            ("session.update", _) => self.model = message.get("model").cloned().or(self.model.take()),
            ("input_audio_buffer.append", _) => self.append(message)?,
            ("input_audio_buffer.commit", false) if self.model.is_none() => {
                let text = "Model not validated. Make sure to validate the model by sending a session.update event.";
                return Err(("model_not_validated", text.to_owned()));
            }
            ("input_audio_buffer.commit", false) => {
                self.complete |= is_final(message);
                return Ok(!is_final(message));
            }
            ("input_audio_buffer.commit" | "response.cancel", true) => {}
            ("conversation.item.create", true) => {
                self.conversation = self.conversation.join(message.get("item").map(Prompt::of));
            }
            ("response.create", true) => {
                self.response = message.get("response").cloned().unwrap_or_default();
                return Ok(true);
            }
            (kind, _) => return Err(("unknown_event", format!("Unknown event type: {kind}"))),
        }
        Ok(false)
    }

    fn append(&mut self, message: &Value) -> Result<(), (&'static str, String)> {
        let text = message.get("audio").and_then(Value::as_str).unwrap_or_default();
        match BASE64_STANDARD.decode(text).unwrap_or_default().len() {
            0 => Err(("invalid_audio", "Invalid audio data".to_owned())),
            length => {
                self.audio_bytes += length as u64;
                Ok(())
            }
        }
    }

    /// Body and prompt of the requested response.
    fn request(&mut self) -> (Value, Prompt) {
        if !self.openai {
            return (json!({"model": self.model}), audio(self.audio_bytes));
        }
        let response = std::mem::take(&mut self.response);
        let part = |key: &str| response.get(key).map(Prompt::of);
        let audio = (self.audio_bytes > 0).then(|| audio(self.audio_bytes));
        let prompt = part("input").unwrap_or(self.conversation).join(part("instructions")).join(audio);
        (response, prompt)
    }
}

fn kind(message: &Value) -> &str {
    message.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// `final` of vLLM's commit: the end of the audio.
fn is_final(message: &Value) -> bool {
    message.get("final") == Some(&Value::Bool(true))
}

/// An open session.
struct Session<'a> {
    socket: WebSocketStream<Box<dyn Wire>>,
    engine: &'a Engine,
    dialect: &'static Dialect,
    player: Player,
    input: Input,
    /// The fault injected into the session's responses.
    fault: Option<Fault>,
    /// Tokens of the response so far.
    generated: u64,
}

impl Session<'_> {
    async fn new(client: Client, engine: &Engine, model: Option<String>, fault: Option<Fault>) -> Session<'_> {
        let openai = model.is_some();
        let dialect = Dialect::named(if openai { "realtime_openai" } else { "realtime_vllm" });
        let job = Job { model: model.unwrap_or_default(), ..Job::default() };
        let mut player =
            Player::new(dialect, Context::new(job, format!("{:016x}", fastrand::u64(..)), &engine.settings));
        player.events = 1;
        let input = Input { openai, complete: openai, ..Input::default() };
        let config =
            WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES)).max_frame_size(Some(MESSAGE_BYTES));
        let (stream, inbox) = client.into_parts();
        let socket = WebSocketStream::from_partially_read(stream, inbox, Role::Server, Some(config)).await;
        Session { socket, engine, dialect, player, input, fault, generated: 0 }
    }

    async fn run(&mut self) -> Result<(), Stop> {
        self.play("session").await?;
        loop {
            let message = self.receive().await?;
            match self.input.take(&message) {
                Ok(true) => self.respond().await?,
                Ok(false) => {
                    let item = message.get("item").map_or_else(|| "null".to_owned(), Value::to_string);
                    let reply = self.player.messages(kind(&message), |scope| Scope { extra: &item, ..scope });
                    self.send(reply).await?;
                }
                Err((code, text)) => self.send_error(code, &text).await?,
            }
        }
    }

    /// Sends the messages of a section.
    async fn play(&mut self, section: &str) -> Result<(), Stop> {
        let messages = self.player.messages(section, |scope| scope);
        self.send(messages).await
    }

    async fn send(&mut self, messages: Vec<String>) -> Result<(), Stop> {
        for message in messages {
            self.socket.send(Message::text(message)).await?;
        }
        Ok(())
    }

    async fn send_error(&mut self, kind: &str, message: &str) -> Result<(), Stop> {
        let messages = self.player.messages("refusal", |scope| Scope { kind, message, ..scope });
        self.send(messages).await
    }

    async fn close(&mut self, code: CloseCode) -> Result<(), Stop> {
        self.socket.close(Some(CloseFrame { code, reason: "".into() })).await?;
        Err(Stop::Close)
    }

    /// Returns the next message. Cancel-safe: dropping the future loses nothing.
    async fn receive(&mut self) -> Result<Value, Stop> {
        loop {
            let text = match self.socket.next().await {
                Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => message.into_data(),
                // The library replies to control frames.
                Some(Ok(_)) => continue,
                Some(Err(Error::Protocol(_) | Error::Capacity(_) | Error::Utf8(_))) => {
                    self.close(CloseCode::Protocol).await?;
                    return Err(Stop::Close);
                }
                _ => return Err(Stop::Close),
            };
            match serde_json::from_slice(&text) {
                Ok(message) => return Ok(message),
                Err(_) => self.send_error("invalid_json", "Invalid JSON").await?,
            }
        }
    }

    /// Runs `work` while also reading client input.
    async fn with<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Stop> {
        let mut work = std::pin::pin!(work);
        loop {
            let message = tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                message = self.receive() => message?,
            };
            self.take_during_response(&message)?;
        }
    }

    /// Processes a message during a response: accepts only cancellation, more audio and the final commit.
    fn take_during_response(&mut self, message: &Value) -> Result<(), Stop> {
        match kind(message) {
            "response.cancel" => return Err(Stop::Cancelled),
            "input_audio_buffer.append" => self.input.append(message).unwrap_or_default(),
            "input_audio_buffer.commit" => self.input.complete |= is_final(message),
            _ => {}
        }
        Ok(())
    }

    /// One response, from the queue to its end.
    async fn respond(&mut self) -> Result<(), Stop> {
        let engine = self.engine;
        let (mut chance, random) = engine.begin();
        let (body, prompt) = self.input.request();
        let job = match Job::read(self.dialect, &body, Some(prompt), Imitation::Vllm, &engine.settings) {
            Ok(job) => job,
            Err(refusal) => {
                engine.counters().refused += 1;
                return self.send_error("processing_error", &refusal.message).await;
            }
        };
        let mut fault = self.fault.or(job.fault).or(random);
        engine.counters().faulted += u64::from(fault.is_some());
        self.generated = 0;
        let id = chance.u64(..);
        let mut generation = Generation::new(&job, &engine.settings, chance);
        let slot = self.with(engine.schedule(job.prompt_tokens, job.cached_tokens)).await?;
        self.player.restart(job, id);
        let state = match self.generate(&mut generation, &mut fault, &slot).await {
            Ok(Finish::Fault) => {
                slot.end(Finish::Fault);
                "failed"
            }
            Ok(finish) => {
                slot.end(finish);
                finish.name()
            }
            // The response counts as aborted.
            Err(Stop::Cancelled) => {
                drop(slot);
                "cancelled"
            }
            Err(close) => {
                if fault.is_none() && self.fault.is_some() {
                    slot.end(Finish::Fault);
                }
                return Err(close);
            }
        };
        if fault == Some(Fault::NoDone) {
            return self.close(CloseCode::Normal).await;
        }
        let summary = Summary { generated: self.generated, state, times: Times::default() };
        let mut messages = Vec::new();
        self.player.end(&summary, true, &mut |message| messages.push(text(message)));
        self.send(messages).await?;
        (self.input.audio_bytes, self.input.complete) = (0, self.input.openai);
        Ok(())
    }

    async fn generate(
        &mut self,
        generation: &mut Generation,
        fault: &mut Option<Fault>,
        slot: &Slot<'_>,
    ) -> Result<Finish, Stop> {
        let engine = self.engine;
        let mut start = slot.scheduled();
        self.play("begin").await?;
        match *fault {
            Some(Fault::Hang(Some(time))) => {
                self.with(tokio::time::sleep(time)).await?;
                start = Instant::now();
            }
            Some(Fault::Hang(None)) => self.with(std::future::pending()).await?,
            Some(Fault::Empty) => return Ok(Finish::Stop),
            _ => {}
        }
        let mut first = true;
        while let Some(due) = generation.advance() {
            if fault.and_then(Fault::after).is_some_and(|after| generation.steps > after || generation.is_last()) {
                match fault.take() {
                    Some(Fault::ErrorEvent(_)) => return Ok(Finish::Fault),
                    Some(Fault::Cut(_)) => return Err(Stop::Close),
                    Some(Fault::Reset(_)) => return Err(Stop::Reset),
                    Some(Fault::Stall(time)) => start += time,
                    Some(Fault::BadJson(_)) => self.play("broken").await?,
                    _ => {}
                }
            }
            self.with(engine.sleep_until(start + due)).await?;
            generation.generate_text();
            if std::mem::take(&mut first) {
                slot.first_token();
            }
            slot.generate(generation.step_tokens());
            self.generated += generation.step_tokens();
            let mut messages = Vec::new();
            for piece in generation.pieces.iter().filter(|piece| piece.tokens > 0) {
                self.player.tokens(piece, Times::default(), &mut |message| messages.push(text(message)));
            }
            self.send(messages).await?;
        }
        while !self.input.complete {
            let message = self.receive().await?;
            self.take_during_response(&message)?;
        }
        Ok(generation.finish())
    }
}
