//! The dynamic table (RFC 7541, section 2.3.2 and 4).

use std::collections::VecDeque;

/// What a field counts for beyond its bytes (section 4.1).
const FIELD_OVERHEAD: usize = 32;

/// The size that both sides start with (RFC 9113, section 6.5.2, SETTINGS_HEADER_TABLE_SIZE).
pub(super) const INITIAL_SIZE: usize = 4096;

/// The fields that came last, the newest first, within a size that the sender sets.
#[derive(Debug)]
pub(super) struct Table {
    fields: VecDeque<Field>,
    /// The sizes of the fields together.
    size: usize,
    limit: usize,
}

#[derive(Debug)]
struct Field {
    name_length: usize,
    /// The name and the value.
    bytes: Box<[u8]>,
}

impl Field {
    fn size(&self) -> usize {
        self.bytes.len() + FIELD_OVERHEAD
    }
}

impl Table {
    pub(super) fn new() -> Table {
        Table { fields: VecDeque::new(), size: 0, limit: INITIAL_SIZE }
    }

    /// Name and value of the field with this index, from 0.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let field = self.fields.get(index)?;
        field.bytes.split_at_checked(field.name_length)
    }

    /// Adds a field; older ones make room for it. One that is larger than the table empties it.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        self.shrink_to(self.limit.saturating_sub(size));
        if size <= self.limit {
            self.size += size;
            self.fields.push_front(Field { name_length: name.len(), bytes: [name, value].concat().into() });
        }
    }

    /// The sender will keep its table within this size.
    pub(super) fn resize(&mut self, limit: usize) {
        self.limit = limit;
        self.shrink_to(limit);
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.fields.pop_back()
        {
            self.size -= oldest.size();
        }
    }

    /// Bytes it holds on the heap.
    pub(super) fn holds(&self) -> usize {
        // A field's overhead by the specification is what one takes here, boxes and all.
        self.size + self.fields.capacity() * size_of::<Field>()
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }
}
