//! Parses a complete protobuf message field by field and in place
//! (<https://protobuf.dev/programming-guides/encoding/>).
//!
//! Nothing is allocated: a message of many empty fields needs no more memory than its bytes.

/// Maximum depth of nested groups; deeper ones are malformed.
const DEPTH: usize = 32;

/// The bytes are not a valid protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// An integer, boolean or enumeration; negative ones have all upper bits set.
    Number(u64),
    /// A `fixed64` or `double`.
    Fixed64(u64),
    /// A `fixed32` or `float`.
    Fixed32(u32),
    /// A string, bytes or a message.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn fixed64(self) -> Option<u64> {
        match self {
            Value::Fixed64(value) => Some(value),
            _ => None,
        }
    }
}

/// Iterator over the fields of one message in order: number and value.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads a varint of up to 64 bits, 7 bits per byte.
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(Malformed)?;
            self.rest = rest;
            // The tenth byte holds one bit.
            if shift == 63 && byte > 1 {
                return Err(Malformed);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    /// Number and wire type of the next field.
    fn key(&mut self) -> Result<(u32, u64), Malformed> {
        let key = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        let number = key >> 3;
        if number == 0 { Err(Malformed) } else { Ok((number, u64::from(key & 7))) }
    }

    /// The next field. Groups, which are deprecated, are skipped.
    fn field(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        while !self.rest.is_empty() {
            let (number, wire) = self.key()?;
            match self.value(wire)? {
                Some(value) => return Ok(Some((number, value))),
                None if wire == 3 => self.group(number)?,
                None => return Err(Malformed),
            }
        }
        Ok(None)
    }

    /// `None` for the start and end tags of a group.
    fn value(&mut self, wire: u64) -> Result<Option<Value<'a>>, Malformed> {
        Ok(Some(match wire {
            0 => Value::Number(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
            3 | 4 => return Ok(None),
            _ => return Err(Malformed),
        }))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    /// Skips a group up to its own end tag.
    fn group(&mut self, number: u32) -> Result<(), Malformed> {
        let mut open = vec![number];
        while let Some(&innermost) = open.last() {
            let (number, wire) = self.key()?;
            if self.value(wire)?.is_some() {
                continue;
            }
            match wire {
                3 if open.len() < DEPTH => open.push(number),
                4 if number == innermost => drop(open.pop()),
                _ => return Err(Malformed),
            }
        }
        Ok(())
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.field().transpose();
        if matches!(field, Some(Err(_))) {
            self.rest = &[];
        }
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
        Fields::of(message).collect()
    }

    #[test]
    fn all_wire_types_are_parsed() {
        let message = [0x08, 0x96, 0x01, 0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0x1a, 2, b'h', b'i', 0x25, 2, 0, 0, 0];
        let expected =
            vec![(1, Value::Number(150)), (2, Value::Fixed64(1)), (3, Value::Bytes(b"hi")), (4, Value::Fixed32(2))];
        assert_eq!(read(&message), Ok(expected));
        let negative = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(read(&negative), Ok(vec![(1, Value::Number(u64::MAX))]));
    }

    #[test]
    fn groups_are_skipped_with_their_contents() {
        // Group 1 with a group 2 and a string in it, then field 3.
        let message = [0x0b, 0x13, 0x08, 1, 0x14, 0x12, 1, b'x', 0x0c, 0x18, 7];
        assert_eq!(read(&message), Ok(vec![(3, Value::Number(7))]));
        assert_eq!(read(&[0x0b, 0x14]), Err(Malformed), "the end of another group");
        assert_eq!(read(&[0x0c]), Err(Malformed), "an end without a start");
        assert_eq!(read(&[0x0b; 100]), Err(Malformed), "too deep");
    }

    #[test]
    fn truncated_or_oversized_input_is_malformed() {
        let message = [0x08, 0x96, 0x01, 0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0x1a, 2, b'h', b'i', 0x25, 2, 0, 0, 0];
        for end in 0..message.len() {
            let whole = matches!(end, 0 | 3 | 12 | 16);
            assert_eq!(read(&message[..end]).is_ok(), whole, "cut at {end}");
        }
        for wrong in
            [&[0x00, 1][..], &[0x0e], &[0x0f], &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            assert_eq!(read(wrong), Err(Malformed), "{wrong:x?}");
        }
    }
}
