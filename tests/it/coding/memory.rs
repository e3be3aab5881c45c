//! Memory cost of decoding a compressed body.

use tokometer_wire::budget::Account;
use tokometer_wire::coding::{Codings, Decoder, Limits};
use tokometer_wire::websocket::Sender;

use super::encode::{ENCODINGS, encode, encoded_parts};
use crate::allocation::{allocations_of, held_after};

const EVENT: &[u8] = b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";

/// A decoder after it has read `body`.
fn having_read(coding: &str, body: &[u8], account: &Account) -> Decoder {
    let mut decoder =
        Decoder::new(Codings::of([coding.as_bytes()]).unwrap(), Limits::default(), account.credit(Sender::Server));
    decoder.feed(body, &mut |_| {}).unwrap();
    decoder
}

/// The zstd library does not use Rust's allocator, so for zstd only the minimum is checked.
#[test]
fn decoder_memory_matches_its_account() {
    for (name, coding) in ENCODINGS {
        let memory = Account::unlimited();
        // The body stays incomplete, because brotli frees its window at the end.
        let mut body = encode(name, &[EVENT, EVENT]);
        body.truncate(body.len() - 9);
        let (decoder, held) = held_after(|| having_read(coding, &body, &memory));
        let account = memory.held();
        println!("{name}: account {account}, Rust's allocator {held}, handle {}", size_of::<Decoder>());
        assert!(account + 1024 >= held, "{name}: the account is charged {account}, but {held} are held");
        assert!(name == "zstd" || account < 2 * held, "{name}: the account is charged {account}, but {held} are held");
        drop(decoder);
        assert_eq!(memory.held(), 0, "{name}");
    }
}

#[test]
fn long_body_holds_at_most_its_window() {
    let line: Vec<u8> = (0..20_000u32).flat_map(|n| format!("data: {{\"n\":{n}}}\n\n").into_bytes()).collect();
    for (name, coding) in ENCODINGS {
        let memory = Account::unlimited();
        let body = encode(name, &[line.as_slice(); 8]);
        let _decoder = having_read(coding, &body[..body.len() - 1], &memory);
        // These encoders use windows of 1 MiB (br), 2 MiB (zstd), and 32 KiB (the others).
        let most = if matches!(name, "br" | "zstd") { 3 << 20 } else { 48 * 1024 };
        println!("{name}: {} bytes held", memory.held());
        assert!(memory.held() <= most, "{name}: {} bytes", memory.held());
    }
}

#[test]
fn decoding_an_event_allocates_nothing() {
    // brotli is excluded, because it allocates its tables for each meta-block, that is, for each flush. Allocations of
    // the zstd library are not counted.
    for (name, coding) in ENCODINGS.into_iter().filter(|(name, _)| *name != "br") {
        let pieces = encoded_parts(name, &[EVENT; 40]);
        let memory = Account::unlimited();
        let mut decoder = having_read(coding, &pieces[..2].concat(), &memory);
        let allocations = allocations_of(|| {
            for piece in &pieces[2..40] {
                decoder.feed(piece, &mut |_| {}).unwrap();
            }
        });
        assert_eq!(allocations, 0, "{name}");
    }
}

#[test]
fn body_without_bytes_holds_no_memory() {
    let memory = Account::unlimited();
    let codings = Codings::of([b"br, zstd".as_slice()]).unwrap();
    let (_decoder, held) = held_after(|| Decoder::new(codings, Limits::default(), memory.credit(Sender::Server)));
    assert_eq!((held, memory.held()), (0, 0));
    assert!(size_of::<Decoder>() <= 96, "{} bytes", size_of::<Decoder>());
}
