//! The JSON scanner: its results are the same at any split and with any pauses. It accepts exactly the texts that its
//! leniency allows. For JSON, it reports the same values as `serde_json`.
//!
//! Texts are separated by the byte `1E`; one scanner reads them all.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer_decode::scan::{Pause, Scanner};
use tokometer_fuzz::cut::Cut;
use tokometer_fuzz::work::Work;

use tokometer_fuzz::scanner::{lenient, strict};
use tokometer_fuzz::scanner::tree::{Finds, Node};

/// The findings, and whether the text was accepted to its end.
fn read(scanner: &mut Scanner<Node>, pieces: &[&[u8]]) -> (Finds, bool) {
    let mut finds = Finds::default();
    for piece in pieces {
        assert_eq!(scanner.feed(piece, Pause::Never, &mut finds), piece.len());
    }
    end(scanner, finds)
}

/// Like `read`, with a pause at both ends of every measured string, where another scanner takes over.
fn read_with_pauses(scanner: &mut Scanner<Node>, pieces: &[&[u8]]) -> (Finds, bool) {
    let mut finds = Finds::default();
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let pause = if scanner.is_at_text() {
                let position = scanner.position();
                *scanner = Scanner::new(Node::Mark);
                scanner.resume_at(position);
                Pause::TextEnd
            } else {
                Pause::TextStart
            };
            let taken = scanner.feed(rest, pause, &mut finds);
            assert!(taken > 0, "a pause makes progress");
            rest = &rest[taken..];
        }
    }
    end(scanner, finds)
}

fn end(scanner: &mut Scanner<Node>, mut finds: Finds) -> (Finds, bool) {
    scanner.finish(&mut finds);
    let done = scanner.is_done();
    scanner.restart(Node::Tree);
    (finds, done)
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let mut shared = Scanner::new(Node::Tree);
    for text in input.split(|byte| *byte == 0x1e) {
        let cut = Cut::of(text);
        let (finds, done) = read(&mut Scanner::new(Node::Tree), &[&cut.body]);
        for pieces in cut.ways() {
            assert_eq!((&finds, done), as_ref(&read(&mut shared, &pieces)), "{} reads", pieces.len());
            assert_eq!(
                (&finds, done),
                as_ref(&read_with_pauses(&mut shared, &pieces)),
                "{} reads, paused",
                pieces.len()
            );
        }
        assert_eq!(done, lenient::accepts(&cut.body), "accepted to its end");
        if let Some(expected) = strict::finds(&cut.body) {
            assert!(done, "JSON is accepted to its end");
            assert_eq!(finds, expected);
        }
    }
});

fn as_ref(read: &(Finds, bool)) -> (&Finds, bool) {
    (&read.0, read.1)
}
