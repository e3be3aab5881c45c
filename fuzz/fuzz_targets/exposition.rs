//! Metrics pages: the samples are the same at any split, the stored values are bounded, and counters never decrease.
//!
//! The input is a page; bytes 0xfc split it into reads, and the first byte 0xfd ends it and begins the next page of the
//! same engine.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer_engine::scrape::{Page, State, Tracker};
use tokometer_engine::scrape::exposition::{Lines, Parser, Sample};
use tokometer_fuzz::cut::Cut;
use tokometer_fuzz::work::Work;

/// Ends a page. This byte never occurs in UTF-8 text.
const NEXT: u8 = 0xfd;

/// The samples of a page as text, and the page.
fn read(pieces: &[&[u8]]) -> (String, Lines, Page) {
    let (mut seen, mut page, mut parser) = (String::new(), Page::default(), Parser::default());
    let mut each = |sample: &Sample<'_>| {
        let labels: Vec<_> = sample.labels.collect();
        seen.push_str(&format!("{:?} {labels:?} {:x}\n", sample.name, sample.value.to_bits()));
        page.take(sample);
    };
    for piece in pieces {
        parser.feed(piece, &mut each);
    }
    let lines = parser.finish(&mut each);
    (seen, lines, page)
}

fn counts(state: &State) -> [Option<f64>; 7] {
    let State { cache_queries, cache_hits, preemptions, drafted, accepted, queue_seconds, queue_requests, .. } = state;
    [*cache_queries, *cache_hits, *preemptions, *drafted, *accepted, *queue_seconds, *queue_requests]
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let mut tracker = Tracker::default();
    let mut before = [None; 7];
    for text in input.splitn(2, |byte| *byte == NEXT) {
        let cut = Cut::of(text);
        let [whole, pieces, bytes] = cut.ways().map(|way| read(&way));
        assert_eq!((&whole.0, whole.1), (&pieces.0, pieces.1), "reads");
        assert_eq!((&whole.0, whole.1), (&bytes.0, bytes.1), "bytewise reads");
        let state = tracker.take(&whole.2);
        for share in [state.kv_usage, state.cache_ratio.map(|r| r.value), state.acceptance_ratio.map(|r| r.value)] {
            assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{state:?}");
        }
        assert!([state.running, state.waiting].iter().flatten().all(|level| *level >= 0.0), "{state:?}");
        for (now, before) in counts(&state).into_iter().zip(&mut before) {
            assert!(now.is_none_or(|now| now >= before.unwrap_or(0.0)), "{state:?}");
            *before = now.or(*before);
        }
    }
});
