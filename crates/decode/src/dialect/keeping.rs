//! A reading that also keeps the response text.

use super::Place;
use super::Reading;
use crate::AnswerText;
use crate::Channels;
use crate::scan::Sink;

/// Forwards everything found to a [`Reading`], and keeps the strings that are response text. A separate type, so that
/// the scanner compiled for plain readings does not test for it.
pub(crate) struct Keeping<'a> {
    pub(crate) reading: &'a mut Reading,
    pub(crate) text: &'a mut AnswerText,
    /// The body is not streamed: a key with the whole text does not repeat earlier pieces.
    pub(crate) whole: bool,
}

impl Keeping<'_> {
    /// The channel of the string at this place (`Some(None)`: determined by `type`); `None` for a string that is not
    /// kept. Text of tool calls and audio is not kept; their channels are set anyway.
    fn channels(&self, place: Place) -> Option<Option<Channels>> {
        match place {
            Place::Content | Place::CompletionText => Some(Some(Channels::CONTENT)),
            Place::GeneratedText if self.whole => Some(Some(Channels::CONTENT)),
            Place::Reasoning => Some(Some(Channels::REASONING)),
            Place::Refusal => Some(Some(Channels::REFUSAL)),
            Place::EventDelta => Some(None),
            _ => None,
        }
    }
}

impl Sink<Place> for Keeping<'_> {
    fn begin(&mut self, place: Place, first: u8) {
        self.reading.begin(place, first);
    }

    fn text(&mut self, place: Place, empty: bool) {
        self.reading.text(place, empty);
    }

    fn wants_text(&mut self, place: Place) -> bool {
        self.text.lost().is_none() && self.channels(place).is_some()
    }

    fn wants_word(&mut self, place: Place) -> bool {
        self.reading.wants_word(place)
    }

    fn word_part(&mut self, place: Place, part: &[u8]) {
        match self.channels(place) {
            Some(_) => self.text.push(part),
            None => self.reading.word_part(place, part),
        }
    }

    fn word_end(&mut self, place: Place) {
        match self.channels(place) {
            Some(channels) => self.text.end_string(channels),
            None => self.reading.word_end(place),
        }
    }

    fn number(&mut self, place: Place, written: &[u8]) {
        self.reading.number(place, written);
    }
}
