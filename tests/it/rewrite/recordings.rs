//! Sends recorded streams with counts to a client that did not request counts. The client must receive the events of
//! the recorded stream without counts.

use serde_json::Value;
use tokometer_observe::measure::{CountSource, Outcome};

use super::{Proxy, chat, exchange, header, post, usage};
use crate::relay::captures::reads;
use crate::relay::peer;
use crate::truth::captures;

/// The data of the events in a response, without the values that differ between two runs.
fn events(response: &[u8]) -> Vec<Value> {
    let start = memchr::memmem::find(response, b"\r\n\r\n").unwrap() + 4;
    let (head, body) = response.split_at(start);
    assert!(header(std::str::from_utf8(head).unwrap(), "transfer-encoding").is_some());
    let body = super::read_chunks(&mut &body[..]);
    let text = String::from_utf8(body).unwrap();
    let data = text.split("\n\n").filter_map(|event| event.trim_start_matches('\n').strip_prefix("data: "));
    data.map(|data| {
        let mut value: Value = serde_json::from_str(data).unwrap_or_else(|_| data.into());
        if let Some(object) = value.as_object_mut() {
            for volatile in ["id", "created", "timings"] {
                if let Some(value) = object.get_mut(volatile) {
                    *value = volatile.into();
                }
            }
            if let Some(details) = value.pointer_mut("/usage/prompt_tokens_details") {
                *details = "depend on the cache".into();
            }
        }
        value
    })
    .collect()
}

#[test]
fn client_that_did_not_ask_gets_the_stream_without_counts() {
    let mut checked = 0;
    let cases = [
        ("/v1/chat/completions", "chat-stream-usage", "chat-stream-nousage"),
        ("/v1/completions", "completions-stream-usage", "completions-stream"),
    ];
    let engines = ["vllm-0.32.0", "vllm-0.32.0-rustfe", "sglang-0.5.23", "llamacpp-0.5.0-dev"];
    for (engine, (path, with, without)) in engines.into_iter().flat_map(|engine| cases.map(|case| (engine, case))) {
        let case = |name: &str| captures().join(engine).join(format!("{name}.jsonl"));
        let meta = case(with).with_extension("meta.json");
        let (with, _) = reads(&case(with));
        let (without, _) = reads(&case(without));
        let expected = events(&without.concat());
        assert!(expected.len() > 40, "{engine}{path}");
        // Sends the stream in the recorded writes, and in writes of seven bytes.
        let seven: Vec<Vec<u8>> = with.concat().chunks(7).map(<[u8]>::to_vec).collect();
        for writes in [&with, &seven] {
            let (listener, server) = peer::listen();
            let mut proxy = Proxy::to(server, usage());
            let body = br#"{"model":"tiny","stream":true,"messages":[]}"#;
            let writes: Vec<&[u8]> = writes.iter().map(Vec::as_slice).collect();
            let ((head, sent), got) = exchange(&proxy, &listener, &[&post(path, body)], &writes);
            assert_eq!(
                std::str::from_utf8(&sent).unwrap(),
                r#"{"model":"tiny","stream":true,"messages":[],"stream_options":{"include_usage":true}}"#
            );
            assert_eq!(header(&head, "content-length"), Some(sent.len().to_string().as_str()));
            let got = events(&got);
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{engine}{path}, event {index}");
            }
            assert_eq!(got.len(), expected.len(), "{engine}{path}");
            proxy.stop();
            let replayed = proxy.notebook.take();
            let [record] = replayed.records.as_slice() else { panic!("{} records", replayed.records.len()) };
            let truth: Value = serde_json::from_slice(&std::fs::read(&meta).unwrap()).unwrap();
            let tokens = record.tokens.output.unwrap();
            assert_eq!(
                (record.outcome, tokens.source, Some(tokens.tokens)),
                (Outcome::Ok, CountSource::Usage, truth["truth"]["completion_tokens"].as_u64()),
                "{engine}{path}"
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 16);
}

#[test]
fn client_that_asked_gets_every_byte_of_the_stream() {
    for engine in ["vllm-0.32.0", "vllm-0.32.0-rustfe", "sglang-0.5.23", "llamacpp-0.5.0-dev"] {
        for name in ["chat-stream-usage", "chat-stream-continuous-usage", "completions-stream-usage"] {
            let Ok((with, _)) =
                std::panic::catch_unwind(|| reads(&captures().join(engine).join(format!("{name}.jsonl"))))
            else {
                continue;
            };
            let (listener, server) = peer::listen();
            let proxy = Proxy::to(server, usage());
            let body = br#"{"stream":true,"stream_options":{"include_usage":true}}"#;
            let writes: Vec<&[u8]> = with.iter().map(Vec::as_slice).collect();
            let ((_, sent), got) = exchange(&proxy, &listener, &[&chat(body)], &writes);
            assert_eq!(sent, body);
            let content = |response: &[u8]| {
                let start = memchr::memmem::find(response, b"\r\n\r\n").unwrap() + 4;
                super::read_chunks(&mut &response[start..])
            };
            assert!(content(&got) == content(&with.concat()), "{engine}/{name}");
        }
    }
}
