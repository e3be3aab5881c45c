//! A resumable JSON scanner: bytes in, cut anywhere; the values at known places out.
//!
//! It builds nothing. A [`Place`] is a node of a fixed tree of keys; what is not in the tree is stepped over, strings by
//! `memchr`, containers by counting. Memory is a few dozen bytes, whatever the size of the text.

mod class;
mod keys;
mod partial;
mod position;
pub(crate) mod protobuf;
mod scanner;
mod unescape;

pub(crate) use keys::Keys;
pub(crate) use position::Position;
pub(crate) use scanner::Pause;
pub(crate) use scanner::Scanner;

/// A known place in a JSON text: a node of a dialect's tree.
pub(crate) trait Place: Copy + PartialEq + 'static {
    /// What is expected there. A value of another type is stepped over.
    fn shape(self) -> Shape<Self>;
}

/// What is expected at a place.
#[derive(Debug)]
pub(crate) enum Shape<P: 'static> {
    /// An object and the keys of it that are known.
    Object(&'static Keys<P>),
    /// An array and the place of each of its elements.
    Array(P),
    /// An object and the keys of it that are known, or an array and the place of each of its elements.
    OneOrMany(&'static Keys<P>, P),
    /// A string of which only matters whether it is empty, unless the sink wants it. The scanner can pause at its ends, but
    /// not at those of a wanted one.
    Text,
    /// A string that the sink may want to keep.
    Word,
    /// A number.
    Number,
    /// A value of any type, of which only matters that it is there, and its first byte.
    Mark,
}

/// Where the scanner tells what it found.
pub(crate) trait Sink<P> {
    /// A value begins at `place`; `first` is its first byte and so its type.
    fn begin(&mut self, place: P, first: u8);

    /// The string at a [`Shape::Text`] place is empty, or is not.
    fn text(&mut self, place: P, empty: bool);

    /// True if the string at this [`Shape::Text`] place is to be handed out, as a wanted word is.
    fn wants_text(&mut self, _place: P) -> bool {
        false
    }

    /// True if the string at this [`Shape::Word`] place is to be handed out.
    fn wants_word(&mut self, place: P) -> bool;

    /// The next piece of a wanted word, with its escapes decoded. Not UTF-8 if the text was not.
    fn word_part(&mut self, place: P, part: &[u8]);

    /// A wanted word is complete.
    fn word_end(&mut self, place: P);

    /// The number at a [`Shape::Number`] place, as it was written.
    fn number(&mut self, place: P, written: &[u8]);
}
