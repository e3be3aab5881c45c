//! The dynamic table (RFC 7541, sections 2.3.2 and 4).

use std::collections::VecDeque;

/// Size of a field in addition to its bytes (section 4.1).
const FIELD_OVERHEAD: usize = 32;

/// The initial size for both sides (RFC 9113, section 6.5.2, SETTINGS_HEADER_TABLE_SIZE).
pub(super) const INITIAL_SIZE: usize = 4096;

/// The most recent fields, newest first, within a size set by the sender.
#[derive(Debug)]
pub(super) struct Table {
    fields: VecDeque<Field>,
    /// Total size of the fields.
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

    /// Name and value of the field with this index, counted from 0.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let field = self.fields.get(index)?;
        field.bytes.split_at_checked(field.name_length)
    }

    /// Adds a field and evicts older fields as needed. A field larger than the table empties it.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        self.shrink_to(self.limit.saturating_sub(size));
        if size <= self.limit {
            self.size += size;
            self.fields.push_front(Field { name_length: name.len(), bytes: [name, value].concat().into() });
        }
    }

    /// Sets the maximum size chosen by the sender.
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

    /// Bytes held on the heap.
    pub(super) fn holds(&self) -> usize {
        // The overhead defined in the RFC matches the actual overhead, including boxes.
        self.size + self.fields.capacity() * size_of::<Field>()
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }
}
