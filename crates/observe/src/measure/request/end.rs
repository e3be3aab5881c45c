//! Ends a request and creates its record.

use std::sync::Arc;
use std::time::Instant;

use crate::measure::request::Request;
use crate::measure::request::outcome::Conclusion;
use crate::measure::tokens::Context;
use crate::measure::{Closing, Labels, Message, Outcome, Record, Sink, Thresholds, UncountedText, Unread};
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
    /// they are corrected again, based on the record's `live_tokens`.
    fn reconcile(&mut self, record: &mut Record, sink: &dyn Sink) {
        self.gaps.forward(self.live.as_deref());
        let forwarded = self.gaps.forwarded();
        record.live_tokens = self.live.is_some().then_some(forwarded);
        let exact = record.output_tokens.filter(|n| n.source.is_exact()).map_or(0, |n| n.tokens);
        if exact > forwarded
            && let Some(live) = self.live.take().or_else(|| sink.live(&record.labels))
        {
            live.reconcile(exact - forwarded);
            record.live_tokens = Some(exact);
        }
    }

    /// True if a response was generated and its exact token count is unknown.
    fn is_uncounted(&self, record: &Record) -> bool {
        let begun = record.output_tokens.is_some() || self.response.has_content;
        begun
            && self.response.is_successful()
            && self.generates()
            && !record.output_tokens.is_some_and(|n| n.source.is_exact())
    }

    fn record(&mut self, closing: Closing, at: Instant, thresholds: &Thresholds, sink: &dyn Sink) -> Record {
        let Closing { ending, server, response_id, error_type, habits, aborted, known, text: _ } = closing;
        let conclusion = Conclusion::of(self, ending, habits, aborted, known);
        if conclusion.unknown_format {
            sink.unread(self.listener(), Message::Response, Unread::UnknownFormat);
        }
        let asked_stream = self.parameters.stream;
        let streaming = self.response.status.map(|_| self.response.streaming).or(asked_stream);
        let labels = Labels { request_model: self.parameters.model.take(), ..self.labels(server, streaming) };
        let choices = if self.generates() { self.parameters.choices() } else { 1 };
        let began_with_headers = habits.head_when_scheduled
            && self.generates()
            && self.response.streaming
            && self.response.status == Some(200);
        let mut record = Record {
            connection: self.connection,
            sequence: self.sequence,
            response_id,
            error_type,
            request_id: self.request_id.take(),
            trace: self.trace.as_deref().copied(),
            targets: self.targets.take(),
            asked_stream,
            max_tokens: self.parameters.max_tokens,
            choices: u32::try_from(choices).unwrap_or(u32::MAX),
            request_bytes: self.request_bytes,
            unread: conclusion.unread,
            ..Record::new(labels, self.started, Outcome::Ok, self.since(at))
        };
        self.response.fill(&mut record);
        self.times.fill(&mut record, began_with_headers);
        self.transport.fill(&mut record);
        self.count(&mut record, conclusion.is_complete(), habits);
        self.gaps.fill(&mut record, thresholds.stall, self.live.as_deref());
        self.rate(&mut record, thresholds);
        record.outcome = conclusion.outcome(self, record.output_tokens.is_some_and(|n| n.tokens > 0));
        if let Some(left) = self.client_left.get()
            && record.outcome.is_client_abort()
        {
            record.end_with_client(left);
        }
        record
    }

    /// Sets the token counts of the record.
    fn count(&self, record: &mut Record, complete: bool, habits: EngineHabits) {
        let successful = self.response.is_successful();
        // Requests that do not generate have no choices, so their usage always covers the whole request.
        let usage_per_choice = habits.usage_per_choice && self.generates();
        let habits = EngineHabits { usage_per_choice, ..habits };
        self.tokens.fill(record, &Context { parameters: &self.parameters, complete, habits });
        record.first_tokens = self.first_tokens.map(|n| n.get().into());
        // Reasoning tokens were not sent if there are at most as many events as tokens other than reasoning.
        let (output, events) = (record.output_tokens.map_or(0, |n| n.tokens), record.chunks);
        let hidden = !self.response.first_channels.intersects(Channels::REASONING)
            && record.reasoning_tokens.is_some_and(|n| n > 0 && n.saturating_add(events) <= output);
        record.first_held = self.response.first_channels.intersects(Channels::TOOL) || hidden;
        record.output_tokens = record.output_tokens.filter(|_| successful && self.generates());
        record.input_tokens = record.input_tokens.filter(|_| successful && !self.is_in_pieces());
    }

    /// True if the audio was transcribed in several pieces: `usage` then covers only the prompt of the last piece (vLLM
    /// 0.33, speech_to_text/base/serving.py).
    fn is_in_pieces(&self) -> bool {
        matches!(self.route, Route::AudioTranscription | Route::AudioTranslation) && self.response.finishes.len() > 1
    }

    /// Sets the decode rate. The rate is exact if the output count and the token count of the first event are known,
    /// otherwise it is a lower bound.
    fn rate(&self, record: &mut Record, thresholds: &Thresholds) {
        let Some(output) = record.output_tokens else { return };
        let rate = |tokens, first| thresholds.rate(tokens, first, record.first_token, record.last_token);
        match record.first_event_tokens(output.tokens) {
            Some(first) if output.source.is_exact() => record.decode_rate = rate(output.tokens, first),
            // A lower bound: if the token count of the first event is unknown, each later event counts as one token.
            _ => {
                record.decode_rate_at_least = match record.first_tokens {
                    Some(first) => rate(output.tokens, first),
                    None => rate(record.chunks, 1),
                }
            }
        }
    }
}
