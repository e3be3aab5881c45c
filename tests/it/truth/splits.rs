//! Different splits of the same bytes must not change the results.
//!
//! A record depends only on the output of `wire` and `decode`, and on the times of that output. So each read is split
//! at each of its bytes, with copies of both parsers' states before the read. The output for both halves and for the
//! following bytes must not change. Whole recordings, split randomly and byte by byte, are also replayed through the
//! observer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokometer::replay::Recording;
use tokometer_decode::{EngineFacts, Framing, ResponseDecoder, Route, StreamEvent};
use tokometer_observe::measure::Record;
use tokometer_wire::{Http1, Limits, RequestHead, Reset, ResponseHead, Trailers, Visitor};

use super::{Case, all, run};

/// Longer reads are first split into pieces of this length, which are then split at every byte. The reason is that the
/// cost grows with the square of the length.
const PIECE: usize = 2048;

/// Number of bytes after a split read that are also parsed. They contain the next event, which depends on the state
/// after the split.
const AHEAD: usize = 512;

/// One output of the parsers.
#[derive(Clone, Debug, PartialEq)]
enum Reported {
    Interim(u16),
    Head(u16),
    Event(Box<StreamEvent>),
    End,
}

/// Values in a response: id, model, error type, engine marks.
type Names<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a str>, EngineFacts);

/// A decoder for the bodies that `wire` finds, with the output of both.
#[derive(Clone, Default)]
struct Reader {
    route: Route,
    decoder: Option<ResponseDecoder>,
    reported: Vec<Reported>,
    body_bytes: usize,
}

impl Reader {
    fn events(&mut self, read: impl FnOnce(&mut ResponseDecoder, &mut dyn FnMut(&StreamEvent))) {
        let Reader { decoder, reported, .. } = self;
        if let Some(decoder) = decoder {
            read(decoder, &mut |event| reported.push(Reported::Event(Box::new(*event))));
        }
    }

    /// All output so far.
    fn stated(&self) -> (&[Reported], usize, Option<Names<'_>>) {
        let names = self.decoder.as_ref().map(|d| (d.response_id(), d.model(), d.error_type(), d.engine()));
        (&self.reported, self.body_bytes, names)
    }
}

impl Visitor for Reader {
    fn request_head(&mut self, _: u64, head: &RequestHead<'_>, _at: Instant) {
        self.route = Route::of_target(head.target);
    }

    fn request_body(&mut self, _: u64, _bytes: &[u8], _at: Instant) {}

    fn request_end(&mut self, _: u64, _at: Instant) {}

    fn interim(&mut self, _: u64, status: u16, _at: Instant) {
        self.reported.push(Reported::Interim(status));
    }

    fn response_head(&mut self, _: u64, head: &ResponseHead<'_>, _at: Instant) {
        self.reported.push(Reported::Head(head.status));
        let framing = head.header("content-type").and_then(Framing::of_content_type);
        self.decoder = framing.map(|framing| ResponseDecoder::new(self.route, framing));
    }

    fn response_body(&mut self, _: u64, bytes: &[u8], _at: Instant) {
        self.body_bytes += bytes.len();
        self.events(|decoder, mut each| decoder.feed(bytes, &mut each));
    }

    fn response_trailers(&mut self, _: u64, _: &Trailers<'_>, _at: Instant) {}

    fn reset(&mut self, _: u64, _: Reset, _at: Instant) {}

    fn response_end(&mut self, _: u64, _at: Instant) {
        self.events(|decoder, mut each| decoder.finish(&mut each));
        self.reported.push(Reported::End);
    }
}

/// Both parsers with their state at some position of a connection.
#[derive(Clone)]
struct Place {
    http: Http1,
    reader: Reader,
}

impl Place {
    fn after_request(request: &[u8], now: Instant) -> Place {
        let mut place = Place { http: Http1::new(Limits::default()), reader: Reader::default() };
        place.http.request(request, now, &mut place.reader).expect("the request is valid");
        place
    }

    /// Parses further pieces.
    fn reads(&mut self, pieces: &[&[u8]], now: Instant) {
        for piece in pieces {
            self.http.response(piece, now, &mut self.reader).expect("the response is valid");
        }
    }

    /// A copy of this state after these pieces, with only the output for these pieces.
    fn then(&self, pieces: &[&[u8]], now: Instant) -> Place {
        let Reader { route, decoder, .. } = &self.reader;
        let reader = Reader { route: *route, decoder: decoder.clone(), ..Reader::default() };
        let mut place = Place { http: self.http.clone(), reader };
        place.reads(pieces, now);
        place
    }
}

/// Splits each read of a recording at each of its bytes; returns the number of splits.
fn cut_everywhere(case: &Case) -> usize {
    let now = Instant::now();
    let mut place = Place::after_request(&case.recording.request, now);
    let reads: Vec<&[u8]> = case.recording.reads.iter().flat_map(|(_, bytes)| bytes.chunks(PIECE)).collect();
    let mut cuts = 0;
    for (number, read) in reads.iter().enumerate() {
        let next = reads.get(number + 1).copied().unwrap_or_default();
        let ahead = &next[..next.len().min(AHEAD)];
        let whole = place.then(&[read, ahead], now);
        for at in 1..read.len() {
            let (a, b) = read.split_at(at);
            let cut = place.then(&[a, b, ahead], now);
            if cut.reader.stated() != whole.reader.stated() {
                let (cut, whole) = (cut.reader.stated(), whole.reader.stated());
                panic!("{}, read {number} cut at {at}:\n  {cut:?}\nwhole:\n  {whole:?}", case.title());
            }
        }
        cuts += read.len().saturating_sub(1);
        place.reads(&[read], now);
    }
    cuts
}

#[test]
fn splitting_reads_at_every_byte_changes_nothing() {
    let mut cases = all();
    // Expensive recordings are first, so that the threads finish at about the same time.
    cases
        .sort_by_key(|case| std::cmp::Reverse(case.recording.reads.iter().map(|(_, b)| b.len().pow(2)).sum::<usize>()));
    let (next, cuts) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    cuts.fetch_add(cut_everywhere(case), Ordering::Relaxed);
                }
            });
        }
    });
    let (cuts, bytes) = (cuts.into_inner(), cases.iter().map(|case| length(&case.recording)).sum::<usize>());
    println!("{} recordings, {bytes} bytes, {cuts} cuts", cases.len());
    assert!(cuts > bytes * 9 / 10 && cuts > 1_000_000, "only {cuts} cuts of {bytes} bytes");
}

fn length(recording: &Recording) -> usize {
    recording.reads.iter().map(|(_, bytes)| bytes.len()).sum()
}

/// The recording with its reads split into pieces of `length()` bytes. Each piece has the time of its read.
fn in_pieces(recording: &Recording, mut length: impl FnMut() -> usize) -> Recording {
    let mut reads: Vec<(Duration, Vec<u8>)> = Vec::new();
    for (at, bytes) in &recording.reads {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(length().clamp(1, rest.len()));
            reads.push((*at, piece.to_vec()));
            rest = after;
        }
    }
    Recording { reads, ..recording.clone() }
}

#[test]
fn random_splits_give_same_record_and_timeline() {
    let mut random = fastrand::Rng::with_seed(7);
    let started = Instant::now();
    let record = |recording: &Recording| {
        let replayed = run(recording);
        let line = replayed.records.first().and_then(|record| replayed.line(record));
        let record = replayed.records.first().map(|record| Record { started, ..record.clone() });
        format!("{record:?} {line:?}")
    };
    for case in all() {
        let whole = record(&case.recording);
        let same = |pieces: &str, length: &mut dyn FnMut() -> usize| {
            let cut = record(&in_pieces(&case.recording, length));
            assert_eq!(cut, whole, "{} in pieces of {pieces}", case.title());
        };
        same("1", &mut || 1);
        // `cut_everywhere` splits reads into pieces of this length first, so this split must be correct too.
        same("2048", &mut || PIECE);
        for most in [7, 40, 40, 300, 300, 4000] {
            same(&format!("1 to {most}"), &mut || random.usize(1..=most));
        }
    }
}
