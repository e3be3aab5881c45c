//! Compares reassembly with a naive model.

use proptest::collection::vec;
use proptest::prelude::*;
use tokometer_observe::input::Direction;

use crate::tests::log::Call;
use crate::tests::packets::{ACK, Tcp};
use crate::tests::talk::Talk;

/// A captured piece of a stream: position and length. The index of a piece is its copy number.
type Piece = (usize, usize);

/// The byte of a stream at this position, in this copy. Copies differ, to test that the first one is kept.
fn byte(position: usize, copy: usize) -> u8 {
    b'!' + ((position * 7 + copy * 13) % 90) as u8
}

/// The bytes that Linux reads in order after all pieces: a queue of pieces after holes, in which a piece is dropped if
/// another one contains it.
fn model(pieces: &[Piece]) -> Vec<u8> {
    let (mut read, mut queue) = (Vec::new(), Vec::<(usize, Vec<u8>)>::new());
    let contains = |a: &(usize, Vec<u8>), b: &(usize, Vec<u8>)| a.0 <= b.0 && a.0 + a.1.len() >= b.0 + b.1.len();
    for (copy, (start, len)) in pieces.iter().enumerate() {
        let piece = (*start, (*start..start + len).map(|position| byte(position, copy)).collect::<Vec<_>>());
        if *start > read.len() {
            if !queue.iter().any(|queued| contains(queued, &piece)) {
                queue.retain(|queued| !contains(&piece, queued));
                queue.push(piece);
                queue.sort();
            }
            continue;
        }
        for (start, bytes) in std::iter::once(&piece).chain(&queue) {
            if *start <= read.len() {
                read.extend_from_slice(bytes.get(read.len() - start..).unwrap_or_default());
            }
        }
        queue.retain(|(start, _)| *start > read.len());
    }
    read
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reassembly_agrees_with_the_model(
        pieces in vec((0_usize..60, 1_usize..25), 1..40),
        start in prop_oneof![any::<u32>(), (u32::MAX - 70)..],
        down in any::<bool>(),
    ) {
        let mut talk = Talk::new();
        (talk.up, talk.down) = (start, start);
        talk.open();
        let direction = if down { Direction::Response } else { Direction::Request };
        for (copy, (position, len)) in pieces.iter().enumerate() {
            let payload: Vec<u8> = (*position..position + len).map(|position| byte(position, copy)).collect();
            let tcp = if down { talk.server_segment(ACK, &payload) } else { talk.client_segment(ACK, &payload) };
            talk.capture(&Tcp { seq: tcp.seq.wrapping_add(*position as u32), ..tcp });
            prop_assert_eq!(talk.log.bytes(direction), model(&pieces[..=copy]));
        }
        talk.end();
        prop_assert_eq!(talk.tap.stats().reassembly_bytes.get(), 0);
    }

    #[test]
    fn every_split_in_every_order_gives_the_whole_stream(len in 2_usize..12, start in (u32::MAX - 12)..) {
        const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let whole: Vec<u8> = (0..len).map(|position| byte(position, 0)).collect();
        for (first, second) in (0..=len).flat_map(|first| (first..=len).map(move |second| (first, second))) {
            let bounds = [0, first, second, len];
            for order in ORDERS {
                let mut talk = Talk::new();
                (talk.up, talk.down) = (start, start);
                talk.open();
                for part in order {
                    let tcp = talk.server_segment(ACK, &whole[bounds[part]..bounds[part + 1]]);
                    talk.capture(&Tcp { seq: tcp.seq.wrapping_add(bounds[part] as u32), ..tcp });
                }
                prop_assert_eq!(talk.log.bytes(Direction::Response), &whole[..], "{:?} {:?}", bounds, order);
            }
        }
    }

    #[test]
    fn segments_in_any_order_give_the_whole_stream(
        lens in vec(1_usize..9, 1..20),
        order in vec(any::<prop::sample::Index>(), 0..60),
        start in (u32::MAX - 90)..,
    ) {
        let mut starts = vec![0];
        starts.extend(lens.iter().scan(0, |end, len| { *end += len; Some(*end) }));
        // Each segment at least once; some several times.
        let mut shuffled: Vec<usize> = order.iter().map(|index| index.index(lens.len())).collect();
        shuffled.extend((0..lens.len()).rev());
        let mut talk = Talk::new();
        (talk.up, talk.down) = (start, start);
        talk.open();
        for index in shuffled {
            let payload: Vec<u8> = (starts[index]..starts[index + 1]).map(|position| byte(position, 0)).collect();
            let tcp = talk.server_segment(ACK, &payload);
            talk.capture(&Tcp { seq: tcp.seq.wrapping_add(starts[index] as u32), ..tcp });
        }
        let whole: Vec<u8> = (0..starts[lens.len()]).map(|position| byte(position, 0)).collect();
        prop_assert_eq!(talk.log.bytes(Direction::Response), whole);
    }

    /// The delivered bytes are always the beginning of the stream; a gap is reported if and only if bytes are missing.
    #[test]
    fn losses_are_gaps_and_never_wrong_bytes(
        lens in vec(1_usize..9, 1..20),
        lost in vec(any::<bool>(), 20),
    ) {
        let mut talk = Talk::new();
        talk.open();
        let (mut expected, mut position, mut gap) = (Vec::new(), 0, false);
        for (len, lost) in lens.iter().zip(&lost) {
            let payload: Vec<u8> = (position..position + len).map(|position| byte(position, 0)).collect();
            let tcp = talk.server_segment(ACK, &payload);
            talk.down = talk.down.wrapping_add(*len as u32);
            if !lost {
                talk.capture(&tcp);
            }
            gap |= lost;
            if !gap {
                expected.extend(payload);
            }
            position += len;
        }
        talk.lose().c("").wait(100).tick();
        let bytes = talk.log.bytes(Direction::Response);
        prop_assert_eq!(&bytes, &expected);
        prop_assert_eq!(talk.tap.stats().gaps.get(), u64::from(gap));
        let was_observed = !bytes.is_empty() || lost.iter().zip(&lens).any(|(lost, _)| !lost);
        prop_assert_eq!(talk.log.take().contains(&Call::Lost), gap && was_observed);
    }
}
