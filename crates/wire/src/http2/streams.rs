//! The open streams of a connection.

use std::collections::VecDeque;

use crate::message::Activity;

/// One stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    id: u32,
    /// The client has not ended its side of the stream.
    pub(super) request_open: bool,
    /// The headers of the final response were received.
    pub(super) has_response: bool,
}

/// The client's open streams, by ID, which is also the order of opening.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: VecDeque<Stream>,
    /// The highest ID opened so far.
    highest: u32,
    /// A stream was opened that is not followed.
    has_skipped: bool,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// True for a stream that a client may open now: an odd ID above all previous IDs.
    pub(super) fn is_new(&self, id: u32) -> bool {
        id % 2 == 1 && id > self.highest
    }

    /// Bytes held on the heap.
    pub(super) fn holds(&self) -> usize {
        self.open.capacity() * size_of::<Stream>()
    }

    /// Records a stream that was opened but is not followed.
    pub(super) fn skip(&mut self, id: u32) {
        self.highest = id;
        self.has_skipped = true;
    }

    pub(super) fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    pub(super) fn open(&mut self, id: u32, request_open: bool) {
        self.highest = id;
        self.open.push_back(Stream { id, request_open, has_response: false });
    }

    pub(super) fn get(&mut self, id: u32) -> Option<&mut Stream> {
        let place = self.place(id)?;
        self.open.get_mut(place)
    }

    /// The highest ID opened so far.
    pub(super) fn highest(&self) -> u32 {
        self.highest
    }

    /// What the open streams wait for. The first one usually decides.
    pub(super) fn activity(&self) -> Activity {
        if self.open.is_empty() {
            Activity::Idle
        } else if self.open.iter().any(|stream| stream.has_response || !stream.request_open) {
            Activity::InProgress
        } else {
            Activity::Incomplete
        }
    }

    /// No longer follows an open stream.
    pub(super) fn lose(&mut self, id: u32) {
        self.has_skipped |= self.close(id);
    }

    /// True if the stream was open.
    pub(super) fn close(&mut self, id: u32) -> bool {
        self.place(id).and_then(|place| self.open.remove(place)).is_some()
    }

    /// Closes the streams above this ID and returns their IDs.
    pub(super) fn close_above(&mut self, id: u32) -> impl Iterator<Item = u32> + use<> {
        let kept = self.open.partition_point(|stream| stream.id <= id);
        self.open.split_off(kept).into_iter().map(|stream| stream.id)
    }

    /// Closes all streams and returns their IDs.
    pub(super) fn close_all(&mut self) -> impl Iterator<Item = u32> + use<> {
        std::mem::take(&mut self.open).into_iter().map(|stream| stream.id)
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.open.binary_search_by_key(&id, |stream| stream.id).ok()
    }
}
