//! The known keys of an object, found by one look-up.

/// Known keys and the places of their values. A key's slot follows from its length and first byte; the table is made at
/// compile time, with a factor under which no two keys share a slot.
#[derive(Debug)]
pub(crate) struct Keys<P: 'static> {
    pairs: &'static [(&'static str, P)],
    factor: u8,
    /// One more than a pair's place; 0: no key.
    slots: [u8; SLOTS],
}

const SLOTS: usize = 64;

impl<P: Copy> Keys<P> {
    /// The table of these keys. Does not compile if two have the same length and first byte.
    pub(crate) const fn new(pairs: &'static [(&'static str, P)]) -> Self {
        let mut factor = 1;
        while factor < 255 {
            if let Some(slots) = place(pairs, factor) {
                return Self { pairs, factor, slots };
            }
            factor += 2;
        }
        panic!("no factor keeps these keys apart: two have the same length and first byte, or they are too many");
    }

    /// The place of this key's value, if the key is known.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<P> {
        let first = *key.first()?;
        let slot = *self.slots.get(slot(key.len(), first, self.factor))?;
        let (name, place) = self.pairs.get(usize::from(slot).checked_sub(1)?)?;
        if name.as_bytes() == key { Some(*place) } else { None }
    }
}

const fn slot(len: usize, first: u8, factor: u8) -> usize {
    (len.wrapping_mul(factor as usize) ^ first as usize) % SLOTS
}

/// The slots of the keys, or `None` if two share one.
const fn place<P>(pairs: &[(&str, P)], factor: u8) -> Option<[u8; SLOTS]> {
    let mut slots = [0; SLOTS];
    let mut at = 0;
    while at < pairs.len() {
        let name = pairs[at].0.as_bytes();
        let slot = slot(name.len(), name[0], factor);
        if slots[slot] != 0 {
            return None;
        }
        at += 1;
        slots[slot] = at as u8;
    }
    Some(slots)
}
