//! Inputs and results of the analysis.

/// Nanoseconds on one monotonic clock, as the events of all streams use it.
pub type Nanos = u64;

/// A request that made others wait: its slot and the caller's tag for it (see [`Kind::Open`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Culprit {
    /// Slot of the stream.
    pub slot: u32,
    /// Tag the stream was opened with.
    pub tag: u64,
    /// New prompt tokens: those the engine did not have in its cache.
    pub prompt_tokens: u32,
}

/// One observation of one server. Events are passed in order of time; the order of events with equal times is irrelevant,
/// except that a slot is not reused at the time it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it was seen.
    pub at: Nanos,
    /// The stream, an index below [`Limits::streams`]. Ignored by events that concern all streams.
    pub slot: u32,
    /// What was seen.
    pub kind: Kind,
}

/// What an [`Event`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request was sent to the engine.
    Open {
        /// Identifies the request in results.
        tag: u64,
        /// Prompt tokens the engine has to process, without the cached ones. An estimate (bytes / 4) serves; 0 if unknown,
        /// then the request is never found to delay others.
        prompt_tokens: u32,
        /// Choices (`n`) of the request. Streams with more than one are left out.
        choices: u16,
    },
    /// Tokens arrived in one event of the stream.
    Tokens {
        /// Number of tokens (token ids, usage in the event); 1 if unknown.
        count: u32,
    },
    /// The stream ended. The slot may be reused at a later time.
    End {
        /// Tokens of the whole stream as the server reports them; 0 if unknown.
        tokens: u32,
    },
    /// The client of the stream stopped (`true`) or resumed reading. Tokens in between are left out.
    Blocked(bool),
    /// Something held back this stream (`client`, `network`) or all streams (`tokometer`) from `from` until this event.
    /// `client` and `network` are charged at once and in full; later gaps are charged without the time they cover.
    Held {
        /// What held it: [`Cause::Client`], [`Cause::Network`] or [`Cause::Tokometer`]; others are ignored.
        cause: Cause,
        /// Start of the interval.
        from: Nanos,
    },
    /// The engine's counter of preemptions, read at `from` and at this event.
    Preemptions {
        /// Time of the previous reading.
        from: Nanos,
        /// Increase between the two readings.
        count: u32,
    },
}

/// One scheduler iteration of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Position in the sequence of steps, from 1.
    pub index: u64,
    /// Start: end of the previous step, or the arrival of the request when the engine was idle.
    pub start: Nanos,
    /// Time from start to the first token of the step. Steps whose tokens arrived merged share it equally.
    pub duration: Nanos,
    /// Streams that got a token other than their first.
    pub decoding: u32,
    /// Streams that got their first token: prefills that ended.
    pub first_tokens: u32,
    /// New prompt tokens of the streams in `first_tokens`.
    pub prompt_tokens: u32,
    /// Whether the step carried prefill, of a stream in `first_tokens` or a chunk of a later one.
    pub prefill: bool,
    /// Steps whose tokens arrived together with those of this one; 1 if none did.
    pub merged: u32,
}

impl Step {
    /// Tokens of the step; one for each stream in it.
    pub fn tokens(&self) -> u32 {
        self.decoding + self.first_tokens
    }
}

/// Why tokens were late. What is not proven is [`Cause::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Cause {
    /// All streams waited for the prefill of another request.
    Prefill,
    /// The engine preempted the stream, as its counter shows.
    Preempted,
    /// All streams waited, then the tokens of at least three steps arrived at once: the engine ran on.
    Delivery,
    /// All streams waited, without prefill and without tokens held back.
    EnginePause,
    /// This stream waited, the others went on, and no preemption was counted.
    StreamOnly,
    /// Steps are longer because more streams decode. A part of every gap, not a pause.
    Batch,
    /// The server sends several tokens per event. A part of every gap, not a pause.
    Interval,
    /// The stream's client did not read.
    Client,
    /// Retransmits, a zero window or lost packets on the stream's connection.
    Network,
    /// The proxy itself was late.
    Tokometer,
    /// None of the above is proven.
    Unknown,
}

impl Cause {
    /// All causes, in declaration order.
    pub const ALL: [Cause; 11] = [
        Cause::Prefill,
        Cause::Preempted,
        Cause::Delivery,
        Cause::EnginePause,
        Cause::StreamOnly,
        Cause::Batch,
        Cause::Interval,
        Cause::Client,
        Cause::Network,
        Cause::Tokometer,
        Cause::Unknown,
    ];

    /// The value of the `cause` attribute.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Prefill => "prefill",
            Cause::Preempted => "preempted",
            Cause::Delivery => "delivery",
            Cause::EnginePause => "engine_pause",
            Cause::StreamOnly => "stream_only",
            Cause::Batch => "batch",
            Cause::Interval => "interval",
            Cause::Client => "client",
            Cause::Network => "network",
            Cause::Tokometer => "tokometer",
            Cause::Unknown => "unknown",
        }
    }
}

/// A gap of a stream, or the part of it with one cause, that was longer than expected. The excess of pauses is that above
/// the usual time of a decode-only step at the same batch size; [`Cause::Batch`] and [`Cause::Interval`] are in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The stream that waited.
    pub slot: u32,
    /// Its tag.
    pub tag: u64,
    /// Previous token of the stream.
    pub from: Nanos,
    /// Next token of the stream.
    pub to: Nanos,
    /// The time that is charged to the cause.
    pub excess: Nanos,
    /// Tokens in the event that ended the gap.
    pub tokens: u32,
    /// Streams of the server that had begun and not ended.
    pub streams: u32,
    /// The one cause.
    pub cause: Cause,
    /// For [`Cause::Prefill`] the request with the longest prompt among those prefilled.
    pub culprit: Option<Culprit>,
}

/// Receives results, each once, in order of their own time as far as their kind is concerned.
pub trait Sink {
    /// A step is final.
    fn step(&mut self, _step: &Step) {}
    /// The cause of a delay is final.
    fn delay(&mut self, _delay: &Delay) {}
    /// `culprit` is charged with `excess` ns of the delay of `sufferer`. The charges of a delay sum up to its excess.
    fn caused(&mut self, _culprit: Culprit, _sufferer: u32, _excess: Nanos) {}
}

/// Whether steps can be read from the streams of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readable {
    /// They can. `interval` is the usual number of tokens per event.
    Yes {
        /// Tokens per event; above 1 the steps between two events are placed in time only roughly.
        interval: u32,
    },
    /// Too few tokens for a verdict.
    TooFew,
    /// Streams had more tokens than their events showed: events arrive merged and without token counts.
    NoCounts,
    /// Streams take turns: several engines (data-parallel ranks) behind one address.
    SeveralEngines,
    /// The tokens per event vary from stream to stream: speculative decoding.
    Speculative,
    /// Most streams have several choices.
    Choices,
}

impl Readable {
    /// The value of the `reason` attribute.
    pub fn reason(self) -> &'static str {
        match self {
            Readable::Yes { .. } => "readable",
            Readable::TooFew => "too_few",
            Readable::NoCounts => "no_counts",
            Readable::SeveralEngines => "several_engines",
            Readable::Speculative => "speculative",
            Readable::Choices => "choices",
        }
    }
}

/// Bounds of memory and of the delay of results.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams at a time; events of higher slots are ignored and counted.
    pub streams: u32,
    /// Time after which a step or a delay is final, in event time.
    pub lag: Nanos,
    /// Delays that wait for evidence at a time; the oldest is decided early when exceeded.
    pub pending: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { streams: 1024, lag: 5_000_000_000, pending: 4096 }
    }
}
