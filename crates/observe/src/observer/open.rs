//! Open requests of a connection.

use crate::observer::request::OpenRequest;

/// Open requests, oldest first, ordered by number.
///
/// Most connections have one open request at a time. It is stored outside the vector, which saves a memory access.
#[derive(Debug, Default)]
pub(super) struct Open {
    first: Option<Box<OpenRequest>>,
    /// Empty if there is no first request. A `Vec`, because a `VecDeque` is larger. Removals from the front are rare
    /// and move at most `Settings::max_open_requests` pointers.
    // Boxed: a request is large, and is moved from here to `first`.
    #[allow(clippy::vec_box)]
    rest: Vec<Box<OpenRequest>>,
}

impl Open {
    /// Adds the newest request.
    pub(super) fn push(&mut self, request: Box<OpenRequest>) {
        match &self.first {
            None => self.first = Some(request),
            Some(_) => self.rest.push(request),
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn first(&self) -> Option<&OpenRequest> {
        self.first.as_deref()
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut OpenRequest> {
        self.first.as_deref_mut()
    }

    /// Finds the request with this number. On HTTP/1, it is the first request when a response is parsed, and the last
    /// when a request is parsed.
    pub(super) fn find(&mut self, number: u64) -> Option<&mut OpenRequest> {
        if self.is_first(number) {
            return self.first_mut();
        }
        let place = self.place(number)?;
        self.rest.get_mut(place).map(Box::as_mut)
    }

    /// Removes the request with this number.
    pub(super) fn remove(&mut self, number: u64) -> Option<Box<OpenRequest>> {
        if self.is_first(number) {
            return self.pop_first();
        }
        let place = self.place(number)?;
        Some(self.rest.remove(place))
    }

    /// Removes the oldest request.
    pub(super) fn pop_first(&mut self) -> Option<Box<OpenRequest>> {
        let next = if self.rest.is_empty() { None } else { Some(self.rest.remove(0)) };
        std::mem::replace(&mut self.first, next)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut OpenRequest> {
        self.first.iter_mut().chain(&mut self.rest).map(Box::as_mut)
    }

    fn is_first(&self, number: u64) -> bool {
        self.first.as_ref().is_some_and(|first| first.number() == number)
    }

    /// Index in `rest`.
    fn place(&self, number: u64) -> Option<usize> {
        self.rest.binary_search_by_key(&number, |request| request.number()).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn numbers(open: &mut Open) -> Vec<u64> {
        open.iter_mut().map(|request| request.number()).collect()
    }

    proptest::proptest! {
        #[test]
        fn requests_are_found_by_number_after_removals(steps in proptest::collection::vec((0_u8..4, 0_u64..12), 0..60)) {
            let (mut open, mut naive, mut next) = (Open::default(), Vec::new(), 0);
            for (step, number) in steps {
                match step {
                    0 | 1 => {
                        open.push(OpenRequest::begin(1, next, 0, Instant::now()));
                        naive.push(next);
                        next += 1;
                    }
                    2 => {
                        let removed = open.remove(number).map(|request| request.number());
                        let place = naive.iter().position(|known| *known == number);
                        proptest::prop_assert_eq!(removed, place.map(|place| naive.remove(place)));
                    }
                    _ => {
                        let first = open.pop_first().map(|request| request.number());
                        proptest::prop_assert_eq!(first, (!naive.is_empty()).then(|| naive.remove(0)));
                    }
                }
                proptest::prop_assert_eq!(numbers(&mut open), naive.clone());
                proptest::prop_assert_eq!(open.is_empty(), naive.is_empty());
                proptest::prop_assert_eq!(open.first().map(OpenRequest::number), naive.first().copied());
                proptest::prop_assert_eq!(open.find(number).is_some(), naive.contains(&number));
            }
        }
    }
}
