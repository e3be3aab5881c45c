//! Interprets values on the engines' own routes: SGLang, LMDeploy, TGI, llama.cpp and Ollama.

use super::Place;
use super::Reading;
use super::draft::Flag;
use super::draft::Number;
use super::reading::finite;
use crate::EngineFacts;
use crate::FinishReason;

impl Reading {
    /// Handles the start of a value at a place of these routes.
    pub(super) fn begin_native(&mut self, place: Place, first: u8) {
        match (place, first) {
            (Place::MetaInfo, b'{') => self.answer(),
            (Place::TgiToken, b'{') => self.draft.add(Number::TokenIds, 1),
            (Place::Special, b't') => self.draft.facts.set(Flag::Special),
            (Place::GeneratedText, b'"' | b'n') => {
                self.answer();
                self.engine.insert(EngineFacts::TGI);
                if first == b'"' {
                    self.draft.facts.set(Flag::Ended);
                }
            }
            (Place::TokensPredicted, _) => self.engine.insert(EngineFacts::LLAMA_CPP),
            (Place::Stop | Place::OllamaDone, b't' | b'f') => {
                self.answer();
                if first == b't' {
                    self.draft.facts.set(Flag::Ended);
                }
            }
            (Place::StoppedAtEnd, b't') => self.draft.finishes.push(FinishReason::Stop),
            (Place::StoppedAtLimit, b't') => self.draft.finishes.push(FinishReason::Length),
            (Place::Images, b'n') => self.engine.insert(EngineFacts::SGLANG),
            (Place::LoadNs, b'0'..=b'9') => self.engine.insert(EngineFacts::OLLAMA),
            _ => {}
        }
    }

    /// Counts one response: the event's only one, or an element of an array.
    fn answer(&mut self) {
        self.draft.facts.choices = self.draft.facts.choices.saturating_add(1);
    }

    /// Handles a number at a place of these routes, or a count at any place.
    pub(super) fn native_number(&mut self, place: Place, written: &str) {
        let (number, milliseconds) = match place {
            Place::QueueSeconds => (Number::QueueMs, 1e3),
            Place::TotalNs => (Number::TotalMs, 1e-6),
            Place::LoadNs => (Number::LoadMs, 1e-6),
            Place::PromptNs => (Number::PromptMs, 1e-6),
            Place::DecodeNs => (Number::DecodeMs, 1e-6),
            place => return self.native_count(place, written),
        };
        if let Some(value) = finite(written) {
            self.draft.put(number, (value * milliseconds).to_bits());
            self.draft.facts.set(Flag::Timing);
        }
    }

    fn native_count(&mut self, place: Place, written: &str) {
        let Ok(tokens) = written.parse() else { return };
        match place {
            Place::CounterInput => self.draft.add_input(tokens),
            Place::CounterCached => self.draft.add(Number::Cached, tokens),
            Place::CounterReasoning => self.draft.add(Number::Reasoning, tokens),
            Place::TotalOutput => self.draft.add_output(tokens),
            Place::RunningOutput | Place::TokensPredicted => {
                self.draft.add_output(tokens);
                self.draft.facts.set(Flag::Running);
            }
            place => self.count(place, tokens),
        }
    }
}
