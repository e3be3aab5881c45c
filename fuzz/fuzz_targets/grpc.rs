//! gRPC bodies on every route: the decoders report the same events and facts at any split.
//!
//! The first input byte selects the coding. The rest is messages in short form: a byte whose lowest bit is the
//! compressed flag and whose next bit requests compression of the message, a length byte, and the message. Remaining
//! bytes at the end form an incomplete message.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use tokometer_decode::{Framing, RequestDecoder, ResponseDecoder, Route};
use tokometer_wire::budget::Account;
use tokometer_wire::websocket::Sender;
use tokometer_wire::coding::{Limits, Unreadable};
use tokometer_wire::grpc::{Messages, Event};
use tokometer_fuzz::work::Work;

const ROUTES: [Route; 7] = [
    Route::VllmInference,
    Route::VllmInferenceStream,
    Route::VllmEngine,
    Route::SglangScheduler,
    Route::TensorrtService,
    Route::TritonInfer,
    Route::TritonInferStream,
];

/// Names of codings; the last means no coding.
const ENCODINGS: [&str; 4] = ["gzip", "deflate", "zstd", "identity"];

fn gzip(message: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(message).and_then(|()| encoder.finish()).unwrap_or_default()
}

fn body(mut input: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let [flag, length, rest @ ..] = input {
        let (message, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        if flag & 2 == 0 {
            body.extend([&[flag & 1, 0, 0, 0, *length][..], message].concat());
        } else {
            let coded = gzip(message);
            body.extend([&[1][..], &(coded.len() as u32).to_be_bytes(), &coded].concat());
        }
    }
    body
}

/// Everything that the decoders report for these reads, once as a response and once as a request.
fn read(route: Route, encoding: &str, reads: &[&[u8]]) -> String {
    let account = Account::unlimited();
    let mut messages = Messages::new(Some(encoding.as_bytes()), Limits::default(), account.credit(Sender::Server));
    let mut response = ResponseDecoder::new(route, Framing::Grpc);
    let mut request = RequestDecoder::new(route);
    let mut events = Vec::new();
    let mut why = None;
    for bytes in reads {
        let read = messages.feed(bytes, &mut |seen| match seen {
            Event::Data(bytes) => {
                response.feed(bytes, &mut |event| events.push(*event));
                request.feed(bytes);
            }
            Event::End => {
                response.end_message(&mut |event| events.push(*event));
                request.end_message();
            }
        });
        why = read.err();
        if why.is_some() {
            break;
        }
    }
    assert!(why != Some(Unreadable::Memory));
    drop(messages);
    assert_eq!(account.held(), 0);
    response.finish(&mut |event| events.push(*event));
    let stated = (response.response_id(), response.model(), response.error_type(), response.engine());
    format!("{events:?} {stated:?} {:?} {why:?}", request.facts())
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let Some((coding, input)) = input.split_first() else { return };
    let encoding = ENCODINGS[usize::from(*coding) % ENCODINGS.len()];
    let body = body(input);
    for route in ROUTES {
        let whole = read(route, encoding, &[&body]);
        assert_eq!(whole, read(route, encoding, &body.chunks(1).collect::<Vec<_>>()), "bytewise reads");
        assert_eq!(whole, read(route, encoding, &body.chunks(7).collect::<Vec<_>>()), "short reads");
    }
});
