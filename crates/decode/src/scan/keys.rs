//! The known keys of an object, found with a single lookup.

/// Known keys and the places of their values. The slot of a key depends on its length and on its first, middle and
/// last byte.
/// The table is built at compile time, with a factor that gives each key its own slot.
#[derive(Debug)]
pub struct Keys<P: 'static> {
    pairs: &'static [(&'static str, P)],
    factor: u32,
    /// Index of the pair plus one; 0 if the slot has no key.
    slots: [u8; SLOTS],
    /// The place of the values of all other keys.
    others: Option<P>,
}

const SLOTS: usize = 64;

impl<P: Copy> Keys<P> {
    /// Builds the table. Compilation fails if two keys have the same length, first, middle and last byte.
    pub const fn new(pairs: &'static [(&'static str, P)]) -> Self {
        Self::of(pairs, None)
    }

    /// Like [`Keys::new`]; the values of all other keys are at `others`.
    pub const fn with_others(pairs: &'static [(&'static str, P)], others: P) -> Self {
        Self::of(pairs, Some(others))
    }

    const fn of(pairs: &'static [(&'static str, P)], others: Option<P>) -> Self {
        // Odd factors from the Weyl sequence of the golden ratio, whose bits are well mixed.
        let mut factor: u32 = 1;
        let mut tries = 0;
        while tries < 4096 {
            factor = factor.wrapping_add(0x9e37_79b8);
            if let Some(slots) = place(pairs, factor) {
                return Self { pairs, factor, slots, others };
            }
            tries += 1;
        }
        panic!(
            "no factor separates these keys: two have the same length, first, middle and last byte, or there are too many"
        );
    }

    /// The place of this key's value, if it is read.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<P> {
        self.find_known(key).or(self.others)
    }

    /// The place of the values of unknown keys, if they are read.
    #[inline]
    pub(super) fn others(&self) -> Option<P> {
        self.others
    }

    #[inline]
    fn find_known(&self, key: &[u8]) -> Option<P> {
        let (first, middle, last) = (*key.first()?, *key.get(key.len() / 2)?, *key.last()?);
        let slot = *self.slots.get(slot(key.len(), [first, middle, last], self.factor))?;
        let (name, place) = self.pairs.get(usize::from(slot).checked_sub(1)?)?;
        if name.as_bytes() == key { Some(*place) } else { None }
    }

    /// The place of a known key that differs from this key in case only, as Go's JSON decoder compares keys: it also
    /// folds the Kelvin sign and the long s.
    #[cold]
    pub(super) fn find_folded(&self, key: &[u8]) -> Option<P> {
        let key = std::str::from_utf8(key).ok()?;
        let is_equal = |(name, _): &&(&str, P)| {
            let folded = key.chars().map(|char| match char {
                '\u{212a}' => 'k',
                '\u{17f}' => 's',
                char => char.to_ascii_lowercase(),
            });
            folded.eq(name.chars())
        };
        self.pairs.iter().find(is_equal).map(|(_, place)| *place)
    }
}

const fn slot(len: usize, [first, middle, last]: [u8; 3], factor: u32) -> usize {
    let bytes = u32::from_le_bytes([len as u8, first, middle, last]);
    (bytes.wrapping_mul(factor) >> (u32::BITS - SLOTS.trailing_zeros())) as usize
}

/// The slot of each key, or `None` if two keys share a slot.
const fn place<P>(pairs: &[(&str, P)], factor: u32) -> Option<[u8; SLOTS]> {
    let mut slots = [0; SLOTS];
    let mut at = 0;
    while at < pairs.len() {
        let name = pairs[at].0.as_bytes();
        let slot = slot(name.len(), [name[0], name[name.len() / 2], name[name.len() - 1]], factor);
        if slots[slot] != 0 {
            return None;
        }
        at += 1;
        slots[slot] = at as u8;
    }
    Some(slots)
}
