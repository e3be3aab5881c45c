//! Header decompression (RFC 7541).
//!
//! Each direction of a connection has a table that every header block may use and change, so skipping a block makes the
//! rest of the connection undecodable. Only the sender's size updates set the table size. These updates must not
//! exceed the receiver's SETTINGS, so SETTINGS need not be tracked.

mod fixed;
mod huffman;
mod table;
#[cfg(test)]
mod tests;

use std::str;

use httparse::Header;

use crate::http2::hpack::table::Table;
use crate::message::Fault;

/// Maximum table size. Browsers allow servers this size; most other peers keep 4 KiB.
const MAX_TABLE: usize = 64 * 1024;

/// Maximum number of fields, as in HTTP/1.
const MAX_FIELDS: usize = 512;

/// Initial capacity, which is enough for the fields of most blocks.
const USUAL_BYTES: usize = 512;
const USUAL_FIELDS: usize = 16;

/// Decodes the header blocks of one direction, in order.
#[derive(Debug)]
pub(super) struct Decoder {
    table: Table,
}

/// The fields of one block.
#[derive(Debug, Default)]
pub(super) struct Fields {
    /// Names and values, concatenated.
    bytes: Vec<u8>,
    /// End offsets of the name and the value of each field.
    ends: Vec<(u32, u32)>,
    /// Further fields were omitted because their total size exceeds the limit.
    truncated: bool,
}

impl Fields {
    /// True if fields were omitted because of the limit.
    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Names and values in order; a name that is not UTF-8 is empty.
    pub(super) fn iter(&self) -> impl Iterator<Item = Header<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |(name_end, value_end)| {
            let (name_end, value_end) = (*name_end as usize, *value_end as usize);
            let name = self.bytes.get(start..name_end).unwrap_or_default();
            let value = self.bytes.get(name_end..value_end).unwrap_or_default();
            start = value_end;
            Header { name: str::from_utf8(name).unwrap_or_default(), value }
        })
    }

    /// Number of fields.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Removes the fields and bytes added since the counts were `fields` and `bytes`.
    fn truncate(&mut self, fields: usize, bytes: usize) {
        self.ends.truncate(fields);
        self.bytes.truncate(bytes);
        self.truncated = true;
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(name);
        let name_end = self.end();
        self.bytes.extend_from_slice(value);
        self.ends.push((name_end as u32, self.end() as u32));
    }
}

impl Decoder {
    pub(super) fn new() -> Decoder {
        Decoder { table: Table::new() }
    }

    /// Bytes held on the heap.
    pub(super) fn holds(&self) -> usize {
        self.table.holds()
    }

    /// Decodes one whole block. Fields beyond `cap` total bytes or [`MAX_FIELDS`] update the table but are omitted from
    /// the result. Bytes that the block copies from the tables reduce `allowance` before they are copied: one coded
    /// byte may refer to a field of any size.
    ///
    /// # Errors
    /// The allowance is used up, or the block cannot be decoded; later blocks cannot be decoded either.
    pub(super) fn decode(&mut self, mut block: &[u8], cap: usize, allowance: &mut usize) -> Result<Fields, Fault> {
        let mut fields =
            Fields { bytes: Vec::with_capacity(USUAL_BYTES), ends: Vec::with_capacity(USUAL_FIELDS), truncated: false };
        while let Some(first) = block.first().copied() {
            let (count, before) = (fields.len(), fields.end());
            if first & 0x80 != 0 {
                let (name, value) = self.field(integer(&mut block, 7)?)?;
                let length = name.len() + value.len();
                fields.truncated |= count >= MAX_FIELDS || before + length > cap;
                if !fields.truncated {
                    charge(allowance, length)?;
                    fields.push(name, value);
                }
            } else if first & 0x40 != 0 {
                let name_end = self.literal(&mut block, 6, &mut fields, allowance)?;
                let (name, value) = fields.bytes.get(before..).unwrap_or_default().split_at(name_end - before);
                self.table.add(name, value);
            } else if first & 0x20 != 0 {
                let size = integer(&mut block, 5)?;
                if size > MAX_TABLE {
                    return Err(Fault::HeaderTableTooLarge);
                }
                self.table.resize(size);
            } else {
                // A literal without indexing or never indexed: an observer decodes both in the same way.
                self.literal(&mut block, 4, &mut fields, allowance)?;
            }
            if fields.truncated || fields.end() > cap || fields.len() > MAX_FIELDS {
                fields.truncate(count, before);
            }
        }
        Ok(fields)
    }

    /// Name and value of the field with this index, counted from 1.
    fn field(&self, index: usize) -> Result<(&[u8], &[u8]), Fault> {
        let index = index.checked_sub(1).ok_or(Fault::HeaderCompression)?;
        match fixed::FIELDS.get(index) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => self.table.get(index - fixed::FIELDS.len()).ok_or(Fault::HeaderCompression),
        }
    }

    /// Adds the literal field whose index has this many bits; returns the end of its name.
    fn literal(&self, block: &mut &[u8], bits: u8, fields: &mut Fields, allowance: &mut usize) -> Result<usize, Fault> {
        match integer(block, bits)? {
            0 => string(block, &mut fields.bytes)?,
            index => {
                let (name, _) = self.field(index)?;
                charge(allowance, name.len())?;
                fields.bytes.extend_from_slice(name);
            }
        }
        let name_end = fields.end();
        string(block, &mut fields.bytes)?;
        fields.ends.push((name_end as u32, fields.end() as u32));
        Ok(name_end)
    }
}

/// Subtracts bytes that are about to be copied from the allowance.
fn charge(allowance: &mut usize, bytes: usize) -> Result<(), Fault> {
    *allowance = allowance.checked_sub(bytes).ok_or(Fault::HeaderExpansion)?;
    Ok(())
}

/// Decodes an integer whose first byte has a prefix of this many bits (section 5.1). No valid length or index here
/// exceeds 28 bits.
fn integer(bytes: &mut &[u8], prefix: u8) -> Result<usize, Fault> {
    let mut next = || {
        let (first, rest) = bytes.split_first().ok_or(Fault::HeaderCompression)?;
        *bytes = rest;
        Ok(*first)
    };
    let mask = (1u8 << prefix) - 1;
    let first = next()? & mask;
    let mut value = usize::from(first);
    if first < mask {
        return Ok(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Fault::HeaderCompression)
}

/// Appends a string literal (section 5.2).
fn string(bytes: &mut &[u8], text: &mut Vec<u8>) -> Result<(), Fault> {
    let coded = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(bytes, 7)?;
    let (literal, rest) = bytes.split_at_checked(length).ok_or(Fault::HeaderCompression)?;
    *bytes = rest;
    if coded {
        huffman::decode(literal, text).map_err(|huffman::BadCode| Fault::HeaderCompression)
    } else {
        text.extend_from_slice(literal);
        Ok(())
    }
}
