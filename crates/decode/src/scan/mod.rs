//! A resumable JSON scanner: extracts the values at known places. Input may be split at any byte.
//!
//! The scanner builds no tree. A [`Place`] is a node of a fixed tree of keys. Everything outside that tree is skipped:
//! strings with `memchr`, containers by counting brackets. Memory use is a few dozen bytes, independent of the text
//! size.

mod bytes;
mod keys;
mod partial;
mod position;
pub(crate) mod protobuf;
mod scanner;

pub use keys::Keys;
pub(crate) use partial::Capture;
pub use position::Position;
pub use scanner::{Pause, Scanner};

/// A known place in a JSON text: a node of a dialect's tree.
pub trait Place: Copy + PartialEq + 'static {
    /// The expected type. Values of other types are skipped.
    fn shape(self) -> Shape<Self>;

    /// True if keys that differ from a known key in case only are reported at [`Place::folded`].
    const FOLDS: bool = false;

    /// The place of a key that differs from the key of this place in case only; by default, the key is unknown.
    fn folded(self) -> Option<Self> {
        None
    }
}

/// The type expected at a place.
#[derive(Debug)]
pub enum Shape<P: 'static> {
    /// An object with known keys.
    Object(&'static Keys<P>),
    /// An array, and the place of its elements.
    Array(P),
    /// An object with known keys, or an array, and the place of its elements.
    OneOrMany(&'static Keys<P>, P),
    /// A string. By default, only whether it is empty is reported, and the scanner can pause at its start and end. If
    /// [`Sink::wants_text`] is true, the string is reported like a word, without pauses.
    Text,
    /// A string as at [`Shape::Text`], an object with known keys, or an array, and the place of its elements.
    Texts(&'static Keys<P>, P),
    /// A string as at [`Shape::Text`], or an object with known keys.
    TextOrOne(&'static Keys<P>),
    /// A string, reported if [`Sink::wants_word`] is true.
    Word,
    /// A string as at [`Shape::Word`], or an object with known keys.
    WordOrOne(&'static Keys<P>),
    /// A number, or a string as at [`Shape::Word`]: some encoders write 64-bit integers as strings.
    Number,
    /// A value of any type; only its presence and its first byte are reported.
    Mark,
}

impl<P: Place> Shape<P> {
    /// The known keys, if the value can be an object.
    #[inline]
    fn keys(&self) -> Option<&'static Keys<P>> {
        match self {
            Shape::Object(keys) | Shape::OneOrMany(keys, _) | Shape::Texts(keys, _) => Some(keys),
            Shape::TextOrOne(keys) | Shape::WordOrOne(keys) => Some(keys),
            _ => None,
        }
    }

    /// The place of the elements, if the value can be an array.
    #[inline]
    fn element(&self) -> Option<P> {
        match self {
            Shape::Array(element) | Shape::OneOrMany(_, element) | Shape::Texts(_, element) => Some(*element),
            _ => None,
        }
    }

    /// True if the value can be a text.
    #[inline]
    fn is_text(&self) -> bool {
        matches!(self, Shape::Text | Shape::Texts(..) | Shape::TextOrOne(_))
    }

    /// True if the value can be a word.
    #[inline]
    fn is_word(&self) -> bool {
        matches!(self, Shape::Word | Shape::WordOrOne(_) | Shape::Number)
    }
}

/// Receives the values that the scanner finds.
pub trait Sink<P> {
    /// A value begins at `place`. Its first byte, `first`, determines its type.
    fn begin(&mut self, place: P, first: u8);

    /// Reports whether the string at a [`Shape::Text`] place is empty.
    fn text(&mut self, place: P, empty: bool);

    /// True to receive the string at this [`Shape::Text`] place, as parts of a word.
    fn wants_text(&mut self, _place: P) -> bool {
        false
    }

    /// True to receive the string at this [`Shape::Word`] place.
    fn wants_word(&mut self, place: P) -> bool;

    /// The next piece of a wanted word, with escapes decoded. An invalid string is reported as invalid UTF-8.
    fn word_part(&mut self, place: P, part: &[u8]);

    /// A wanted word is complete.
    fn word_end(&mut self, place: P);

    /// The number at a [`Shape::Number`] place, as written.
    fn number(&mut self, place: P, written: &[u8]);
}
