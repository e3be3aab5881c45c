//! Ends a request and creates its record.

use std::sync::Arc;
use std::time::Instant;

use crate::measure::request::Request;
use crate::measure::request::outcome::Conclusion;
use crate::measure::tokens::Context;
use crate::measure::{
    Closing, Count, DecodeRate, Labels, Message, Outcome, Record, RequestTimes, RequestValues, ResponseValues, Sink,
    Thresholds, TokenCounts, UncountedText, Unread,
};
use tokometer_decode::{Channels, EngineHabits, Route};

impl Request {
    /// Ends the request and passes its record to the sink.
    pub fn end(mut self, mut closing: Closing, at: Instant, thresholds: &Thresholds, sink: &dyn Sink) {
        self.leave(sink);
        let text = closing.text.take();
        let mut record = self.record(closing, at, thresholds, sink);
        self.reconcile(&mut record, sink);
        let record = Arc::new(record);
        std::mem::take(&mut self.watches).ended(&record);
        let text = text.filter(|_| self.is_uncounted(&record));
        match text.map(|text| UncountedText::of(text, &record, self.parameters.echo, thresholds)) {
            Some(text) => sink.record_with_text(&record, &mut Some(text)),
            None => sink.record(&record),
        }
    }

    /// Corrects the live counters to the exact count. If the count becomes known only later (engine span, tokenizer),
    /// they are corrected again, based on `tokens.live` of the record.
    fn reconcile(&mut self, record: &mut Record, sink: &dyn Sink) {
        self.gaps.forward(self.live.as_deref());
        let forwarded = self.gaps.forwarded();
        record.tokens.live = self.live.is_some().then_some(forwarded);
        let exact = record.tokens.output.and_then(Count::exact).unwrap_or(0);
        if exact > forwarded
            && let Some(live) = self.live.take().or_else(|| sink.live(&record.labels))
        {
            live.reconcile(exact - forwarded);
            record.tokens.live = Some(exact);
        }
    }

    /// True if a response was generated and its exact token count is unknown.
    fn is_uncounted(&self, record: &Record) -> bool {
        let begun = record.tokens.output.is_some() || self.response.has_content;
        begun
            && self.response.is_successful()
            && self.generates()
            && record.tokens.output.and_then(Count::exact).is_none()
    }

    fn record(&mut self, closing: Closing, at: Instant, thresholds: &Thresholds, sink: &dyn Sink) -> Record {
        let Closing { ending, server, response_id, error_type, habits, aborted, known, text: _ } = closing;
        let conclusion = Conclusion::of(self, ending, habits, aborted, known);
        if conclusion.unknown_format {
            sink.unread(self.listener(), Message::Response, Unread::UnknownFormat);
        }
        let stream = self.parameters.stream;
        let streaming = self.response.status.map(|_| self.response.streaming).or(stream);
        let labels = Labels { request_model: self.parameters.model.take(), ..self.labels(server, streaming) };
        let choices = if self.generates() { self.parameters.choices() } else { 1 };
        let began_with_headers = habits.head_when_scheduled
            && self.generates()
            && self.response.streaming
            && self.response.status == Some(200);
        let tokens = self.count(conclusion.is_complete(), habits);
        let times = self.times.values(self.since(at));
        let mut record = Record {
            connection: self.connection,
            sequence: self.sequence,
            unread: conclusion.unread,
            request: RequestValues {
                id: self.request_id.take(),
                trace: self.trace.as_deref().copied(),
                sent_trace: None,
                targets: self.targets.take(),
                stream,
                max_tokens: self.parameters.max_tokens,
                choices: u32::try_from(choices).unwrap_or(u32::MAX),
                bytes: self.request_bytes,
            },
            response: ResponseValues {
                id: response_id,
                error_type: error_type.filter(|_| !self.response.has_recovered()),
                ..self.response.values()
            },
            engine: self.times.engine_values(began_with_headers, &tokens),
            gaps: self.gaps.end(&tokens, thresholds.stall, self.live.as_deref()),
            rate: rate(&tokens, &times, thresholds),
            tokens,
            times,
            blocked: self.times.blocked.take().map(|blocked| *blocked).unwrap_or_default(),
            ..Record::new(labels, self.started, Outcome::Ok, times.ended)
        };
        self.transport.fill(&mut record);
        record.outcome = conclusion.outcome(self, record.tokens.output.is_some_and(|n| n.tokens > 0));
        if let Some(left) = self.client_left.get()
            && record.outcome.is_client_abort()
        {
            record.end_with_client(left);
        }
        record
    }

    /// The token counts for the record.
    fn count(&self, complete: bool, habits: EngineHabits) -> TokenCounts {
        let successful = self.response.is_successful();
        // Requests that do not generate have no choices, so their usage always covers the whole request.
        let usage_per_choice = habits.usage_per_choice && self.generates();
        let habits = EngineHabits { usage_per_choice, ..habits };
        let mut tokens = self.tokens.counts(&Context { parameters: &self.parameters, complete, habits });
        tokens.first = self.first_tokens.map(|n| n.get().into());
        // Reasoning tokens were not sent if there are at most as many events as tokens other than reasoning.
        let (output, events) = (tokens.output.map_or(0, |n| n.tokens), tokens.chunks);
        let hidden = !self.response.first_channels.intersects(Channels::REASONING)
            && tokens.reasoning.is_some_and(|n| n > 0 && n.saturating_add(events) <= output);
        tokens.first_held = self.response.first_channels.intersects(Channels::TOOL) || hidden;
        tokens.output = tokens.output.filter(|_| successful && self.generates());
        tokens.input = tokens.input.filter(|_| successful && !self.is_in_pieces());
        tokens
    }

    /// True if the audio was transcribed in several pieces: `usage` then covers only the prompt of the last piece (vLLM
    /// 0.33, speech_to_text/base/serving.py).
    fn is_in_pieces(&self) -> bool {
        matches!(self.route, Route::AudioTranscription | Route::AudioTranslation) && self.response.finishes.len() > 1
    }
}

/// The decode rate. It is exact if the output count and the token count of the first event are known, otherwise a lower
/// bound.
fn rate(tokens: &TokenCounts, times: &RequestTimes, thresholds: &Thresholds) -> DecodeRate {
    let Some(output) = tokens.output else { return DecodeRate::default() };
    let rate = |count, first| thresholds.rate(count, first, times.first_token, times.last_token);
    let (exact, at_least) = match tokens.in_first_event(output.tokens) {
        Some(first) if output.source.is_exact() => (rate(output.tokens, first), None),
        // A lower bound: if the token count of the first event is unknown, each later event counts as one token.
        _ => (None, tokens.first.map_or_else(|| rate(tokens.chunks, 1), |first| rate(output.tokens, first))),
    };
    DecodeRate { exact, at_least, estimated: None }
}
