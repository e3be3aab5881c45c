//! What a compressed body costs to read.

use tokometer_wire::budget::Account;
use tokometer_wire::coding::Codings;
use tokometer_wire::coding::Decoder;
use tokometer_wire::coding::Limits;

use super::encode::ENCODINGS;
use super::encode::encode;
use super::encode::encoded_parts;
use crate::allocation::allocations_of;
use crate::allocation::held_after;

const EVENT: &[u8] = b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";

/// A decoder that has read `body`.
fn having_read(coding: &str, body: &[u8], account: &Account) -> Decoder {
    let mut decoder = Decoder::new(Codings::of([coding.as_bytes()]).unwrap(), Limits::default(), account.clone());
    decoder.feed(body, &mut |_| {}).unwrap();
    decoder
}

/// zstd's library allocates beside Rust, so there the account is all there is.
#[test]
fn a_decoder_holds_what_its_account_says() {
    for (name, coding) in ENCODINGS {
        let memory = Account::unlimited();
        // Not to the end: brotli gives its window back there.
        let mut body = encode(name, &[EVENT, EVENT]);
        body.truncate(body.len() - 9);
        let (decoder, held) = held_after(|| having_read(coding, &body, &memory));
        let account = memory.held();
        println!("{name}: account {account}, Rust's allocator {held}, handle {}", size_of::<Decoder>());
        assert!(account + 1024 >= held, "{name}: the account says {account}, and {held} are held");
        assert!(name == "zstd" || account < 2 * held, "{name}: the account says {account}, and {held} are held");
        drop(decoder);
        assert_eq!(memory.held(), 0, "{name}");
    }
}

#[test]
fn a_longer_body_holds_no_more_than_its_window() {
    let line: Vec<u8> = (0..20_000u32).flat_map(|n| format!("data: {{\"n\":{n}}}\n\n").into_bytes()).collect();
    for (name, coding) in ENCODINGS {
        let memory = Account::unlimited();
        let body = encode(name, &[line.as_slice(); 8]);
        let _decoder = having_read(coding, &body[..body.len() - 1], &memory);
        // The encoders here ask for windows of 1 MiB (br) and 2 MiB (zstd), the other codings for 32 KiB.
        let most = if matches!(name, "br" | "zstd") { 3 << 20 } else { 48 * 1024 };
        println!("{name}: {} bytes held", memory.held());
        assert!(memory.held() <= most, "{name}: {} bytes", memory.held());
    }
}

#[test]
fn nothing_is_allocated_for_an_event() {
    // brotli's tables come anew with each of its meta-blocks, that is, with each flush; zstd's library is not counted.
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
fn a_body_that_has_not_begun_holds_nothing() {
    let memory = Account::unlimited();
    let codings = Codings::of([b"br, zstd".as_slice()]).unwrap();
    let (_decoder, held) = held_after(|| Decoder::new(codings, Limits::default(), memory.clone()));
    assert_eq!((held, memory.held()), (0, 0));
    assert!(size_of::<Decoder>() <= 96, "{} bytes", size_of::<Decoder>());
}
