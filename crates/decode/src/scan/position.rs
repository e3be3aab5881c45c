//! The position of the scanner in a JSON text.

use super::{Place, Shape};

/// Maximum nesting depth of known containers; the deepest dialect has seven levels.
const DEPTH: usize = 8;

/// What the scanner expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A value.
    Value,
    /// The first value of an array, or the end of the array.
    FirstValue,
    /// The first key of an object, or the end of the object.
    FirstKey,
    /// A key after a comma.
    NextKey,
    /// Inside a key.
    Key,
    /// Inside a key, after a backslash.
    KeyEscape,
    /// The colon after a key.
    Colon,
    /// A comma, or the end of the container.
    AfterValue,
    /// The first byte of a [`Shape::Text`] string.
    Text,
    /// Inside a string that is skipped.
    String,
    /// Inside a skipped string, after a backslash.
    StringEscape,
    /// Inside a wanted string.
    Word,
    /// Inside an escape of a wanted string.
    WordEscape,
    /// Inside a number, `true`, `false` or `null`.
    Scalar,
    /// Inside a skipped container.
    Nested,
    /// Inside a string in a skipped container.
    NestedString,
    /// Inside a string in a skipped container, after a backslash.
    NestedEscape,
    /// After the top-level value.
    Done,
    /// After something that is not JSON.
    Broken,
}

/// The scanner's position, without the bytes of an incomplete token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position<P> {
    pub(super) state: State,
    /// The place of the current value, if it is a known place.
    pub(super) place: Option<P>,
    depth: u8,
    /// One bit per open container, innermost container lowest: set if the container is an object.
    objects: u8,
    stack: [P; DEPTH],
}

impl<P: Place> Position<P> {
    /// The position before the top-level value, whose place is `root`.
    pub fn before(root: P) -> Self {
        Self { state: State::Value, place: Some(root), depth: 0, objects: 0, stack: [root; DEPTH] }
    }

    /// Enters the container at `place`; returns false if the stack is full.
    #[inline]
    pub(super) fn descend(&mut self, place: P, is_object: bool) -> bool {
        let Some(top) = self.stack.get_mut(usize::from(self.depth)) else { return false };
        *top = place;
        self.depth += 1;
        self.objects = self.objects << 1 | u8::from(is_object);
        true
    }

    /// The innermost container.
    #[inline]
    pub(super) fn container(&self) -> Option<Shape<P>> {
        Some(self.stack.get(usize::from(self.depth).checked_sub(1)?)?.shape())
    }

    /// True if the innermost container is an object, not an array.
    #[inline]
    pub(super) fn is_in_object(&self) -> bool {
        self.objects & 1 != 0
    }

    /// Leaves the innermost container, which also ends a value.
    #[inline]
    pub(super) fn ascend(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.objects >>= 1;
        self.end_value();
    }

    #[inline]
    pub(super) fn end_value(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::AfterValue };
    }

    /// True before a member value of the top-level object.
    #[inline]
    pub(super) fn is_before_member(&self) -> bool {
        self.depth == 1 && self.state == State::Value && self.is_in_object()
    }

    /// True outside of every container.
    pub(super) fn is_top(&self) -> bool {
        self.depth == 0
    }

    /// True right after a value.
    pub(super) fn has_ended_value(&self) -> bool {
        matches!(self.state, State::AfterValue | State::Done)
    }
}
