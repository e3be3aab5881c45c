//! Bodies of gRPC calls on every route: the decoders read the same events and facts however a body is cut.
//!
//! The input is messages in short: a byte whose lowest bit is the compressed flag, a byte of length, and the message.
//! What is left at the end is a cut-off message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer::decode::Framing;
use tokometer::decode::RequestDecoder;
use tokometer::decode::ResponseDecoder;
use tokometer::decode::Route;

const ROUTES: [Route; 7] = [
    Route::VllmInference,
    Route::VllmInferenceStream,
    Route::VllmEngine,
    Route::SglangScheduler,
    Route::TensorrtService,
    Route::TritonInfer,
    Route::TritonInferStream,
];

fn body(mut input: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let [flag, length, rest @ ..] = input {
        let (message, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        body.extend([&[flag & 1, 0, 0, 0, *length][..], message].concat());
    }
    body
}

/// All that is read of an answer and of a request in these reads.
fn read(route: Route, reads: &[&[u8]]) -> String {
    let mut response = ResponseDecoder::new(route, Framing::Grpc);
    let mut request = RequestDecoder::new(route);
    let mut events = Vec::new();
    for bytes in reads {
        response.feed(bytes, &mut |event| events.push(*event));
        request.feed(bytes);
    }
    response.finish(&mut |event| events.push(*event));
    let said = (response.response_id(), response.model(), response.error_type(), response.engine());
    format!("{events:?} {said:?} {:?}", request.facts())
}

fuzz_target!(|input: &[u8]| {
    let body = body(input);
    for route in ROUTES {
        let whole = read(route, &[&body]);
        assert_eq!(whole, read(route, &body.chunks(1).collect::<Vec<_>>()), "bytewise reads");
        assert_eq!(whole, read(route, &body.chunks(7).collect::<Vec<_>>()), "short reads");
    }
});
