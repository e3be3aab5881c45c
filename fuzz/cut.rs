//! Splits one body into several reads.

/// Ends a read. This byte never occurs in UTF-8 text.
pub const MARK: u8 = 0xfc;

/// A body and the places where the input's marks split it.
#[derive(Debug)]
pub struct Cut {
    /// The input without its marks.
    pub body: Vec<u8>,
    places: Vec<usize>,
}

impl Cut {
    /// Removes the marks from the input.
    pub fn of(input: &[u8]) -> Cut {
        let mut cut = Cut { body: Vec::with_capacity(input.len()), places: Vec::new() };
        for byte in input {
            if *byte == MARK {
                cut.places.push(cut.body.len());
            } else {
                cut.body.push(*byte);
            }
        }
        cut
    }

    /// The body in the reads defined by the marks.
    pub fn pieces(&self) -> Vec<&[u8]> {
        let mut start = 0;
        let ends = self.places.iter().copied().chain([self.body.len()]);
        ends.map(|end| &self.body[std::mem::replace(&mut start, end)..end]).collect()
    }

    /// The body in one read, in the reads defined by the marks, and byte by byte.
    pub fn ways(&self) -> [Vec<&[u8]>; 3] {
        [vec![self.body.as_slice()], self.pieces(), self.body.chunks(1).collect()]
    }
}
