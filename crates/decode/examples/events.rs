//! Prints the events of a recorded response: `cargo run -p tokometer-decode --example events`.

use tokometer_decode::{Framing, ResponseDecoder, Route};

/// The body of a stream of vLLM 0.32 with one token (`tests/fixtures/captures/vllm-0.32.0/chat-stream-one-token.jsonl`).
const BODY: &[u8] = include_bytes!("vllm-chat-stream.sse");

fn main() {
    let mut print = |event: &tokometer_decode::StreamEvent| {
        let finishes: Vec<_> = event.finishes.iter().map(|reason| reason.as_str()).collect();
        println!("channels {:05b}, finishes {finishes:?}, usage {:?}", event.channels.0, event.usage.map(|u| u.output));
    };
    let mut decoder = ResponseDecoder::new(Route::of_request("POST", "/v1/chat/completions"), Framing::Sse);
    // Split anywhere, as received from a network.
    for part in BODY.chunks(100) {
        decoder.feed(part, &mut print);
    }
    decoder.finish(&mut print);
    println!("id {:?}, model {:?}", decoder.response_id(), decoder.model());
}
