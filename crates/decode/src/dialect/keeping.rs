//! A reading that keeps the answer's text.

use super::Place;
use super::Reading;
use crate::AnswerText;
use crate::Channels;
use crate::scan::Sink;

/// Tells a [`Reading`] all that is found, and keeps the strings that are pieces of the answer. A type of its own, so that
/// the scanner of those who keep none is made without a question about it.
pub(crate) struct Keeping<'a> {
    pub(crate) reading: &'a mut Reading,
    pub(crate) text: &'a mut AnswerText,
    /// It is the body of an answer that is not streamed: a key with the whole text is no repetition of it.
    pub(crate) whole: bool,
}

impl Keeping<'_> {
    /// What the string at this place is a piece of (`Some(None)`: `type` says it); `None` for one that is not kept. Of
    /// calls and audio it is enough that they were there.
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
