//! SGLang's queue time, which is in a separate span two levels below the request's span.
//!
//! `prefill_waiting` ends and is sent when the request leaves the queue; its parent (the scheduler's thread) when the
//! request has ended; and the request's own span comes from another process. They arrive in any order.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::time::Duration;

use crate::engine_spans::engine::Request;

/// Trace id and span id.
type Place = (u128, u64);

/// What is known about a span.
#[derive(Debug)]
enum Known {
    /// Duration of a stage below this span (the scheduler's thread).
    Below(Duration),
    /// How long the request of this span waited.
    Waited(Duration),
    /// The request's span has arrived, but not its stage.
    Request(Box<Request>),
}

/// Assembles the parts. Keeps a limited number of places and drops the oldest first.
#[derive(Debug)]
pub(crate) struct Stages {
    most: usize,
    known: HashMap<Place, Known>,
    order: VecDeque<Place>,
}

impl Stages {
    pub(crate) fn new(most: usize) -> Stages {
        Stages { most: most.max(1), known: HashMap::new(), order: VecDeque::new() }
    }

    /// Adds a queue stage that ended below this span. With several schedulers for one request (tensor parallel) the
    /// first counts.
    pub(crate) fn queued(&mut self, thread: Place, time: Duration) {
        if !self.known.contains_key(&thread) {
            self.keep(thread, Known::Below(time));
        }
    }

    /// Adds a span that ended. If it is a thread with a stage, the wait of its parent request is now known. Returns the
    /// request if it arrived before.
    pub(crate) fn ended(&mut self, thread: Place, parent: Option<u64>) -> Option<Box<Request>> {
        let Some(Known::Below(time)) = self.known.get(&thread) else { return None };
        let time = *time;
        self.known.remove(&thread);
        let place = (thread.0, parent?);
        match self.known.remove(&place) {
            Some(Known::Request(mut request)) => {
                request.told.queue = Some(time);
                Some(request)
            }
            Some(earlier @ Known::Waited(_)) => {
                self.known.insert(place, earlier);
                None
            }
            _ => {
                self.keep(place, Known::Waited(time));
                None
            }
        }
    }

    /// Adds an ended request. Returns it when its queue time is known, else keeps it until then.
    pub(crate) fn request(&mut self, mut request: Box<Request>) -> Option<Box<Request>> {
        let place = (request.told.trace_id, request.told.span_id);
        if let Some(Known::Waited(time)) = self.known.get(&place) {
            request.told.queue = Some(*time);
            self.known.remove(&place);
            return Some(request);
        }
        self.keep(place, Known::Request(request));
        None
    }

    fn keep(&mut self, place: Place, known: Known) {
        // Places that are no longer known stay in the order until they reach its front.
        while self.order.len() >= self.most {
            let Some(oldest) = self.order.pop_front() else { break };
            self.known.remove(&oldest);
        }
        if self.known.insert(place, known).is_none() {
            self.order.push_back(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokometer_observe::measure::EngineSpan;

    const THREAD: Place = (7, 2);
    const ROOT: Place = (7, 1);
    const WAITED: Duration = Duration::from_millis(120);

    fn root() -> Box<Request> {
        let told = EngineSpan { trace_id: ROOT.0, span_id: ROOT.1, ..EngineSpan::default() };
        Box::new(Request { id: None, parent: None, spanned: Duration::ZERO, staged: true, told })
    }

    #[test]
    fn parts_are_joined_in_any_order() {
        let mut stages = Stages::new(10);
        stages.queued(THREAD, WAITED);
        assert_eq!(stages.ended(THREAD, Some(ROOT.1)), None);
        assert_eq!(stages.request(root()).unwrap().told.queue, Some(WAITED));

        stages.queued(THREAD, WAITED);
        assert_eq!(stages.request(root()), None);
        assert_eq!(stages.ended(THREAD, Some(ROOT.1)).unwrap().told.queue, Some(WAITED));
        assert!(stages.known.is_empty());
    }

    #[test]
    fn first_of_several_schedulers_counts() {
        let mut stages = Stages::new(10);
        stages.queued(THREAD, WAITED);
        stages.queued((7, 3), WAITED * 2);
        assert_eq!(stages.ended(THREAD, Some(ROOT.1)), None);
        assert_eq!(stages.ended((7, 3), Some(ROOT.1)), None);
        assert_eq!(stages.request(root()).unwrap().told.queue, Some(WAITED));
    }

    #[test]
    fn number_of_places_is_bounded() {
        let mut stages = Stages::new(4);
        for span in 0..1000 {
            stages.queued((1, span), WAITED);
            stages.ended((1, span), Some(span + 10_000));
        }
        assert!(stages.known.len() <= 4 && stages.order.len() <= 4);
    }
}
