//! Records of gRPC calls with various messages, trailers and statuses.

use prost::Message as _;
use tokometer_observe::input::{Close, Side};
use tokometer_observe::measure::{CountSource, Message, Outcome, Record, Unread};

use crate::coding::encode::encode;
use crate::endings::Wire;
use crate::http2::messages::*;
use crate::wire::http2::frames::*;

const CLIENT_CLOSES: Close = Close::Finished { first: Side::Client };

const GENERATE_STREAM: &str = "/vllm.Inference/GenerateStream";
const SGLANG: &str = "/sglang.grpc.scheduler.SglangScheduler/Generate";
const STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// A connection with a call of this method on stream 1, with this message.
fn called(method: &str, message: &impl prost::Message) -> Wire {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "x"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    Wire::open().client(&opening()).server(&settings()).client(&headers(1, 0, &fields)).client(&data(
        1,
        END_STREAM,
        &framed(message),
    ))
}

fn asked() -> vllm::GenerateRequest {
    vllm::GenerateRequest {
        request_id: "r".to_owned(),
        model: "tiny".to_owned(),
        text: "a prompt that is longer than all the other fields".to_owned(),
        temperature: Some(0.5),
        sampling: None,
        stopping: Some(vllm::Stopping { max_new_tokens: 64, stop_strings: vec!["x".to_owned()] }),
        priority: -1,
    }
}

fn begun(wire: Wire) -> Wire {
    wire.server(&headers(1, 0, &[(":status", "200"), ("content-type", "application/grpc")]))
}

fn reply(wire: Wire, message: &impl prost::Message) -> Wire {
    wire.server(&data(1, 0, &framed(message)))
}

fn trailers(wire: Wire, status: &str) -> Wire {
    wire.server(&headers(1, END_STREAM, &[("grpc-status", status), ("grpc-message", "why")]))
}

/// Sends a response without messages, whose headers contain the gRPC status.
fn trailers_only(wire: Wire, status: &str) -> Wire {
    let fields = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", status)];
    wire.server(&headers(1, END_STREAM, &fields))
}

fn record(wire: Wire) -> Record {
    let mut replayed = wire.close(CLIENT_CLOSES);
    assert_eq!((replayed.in_flight, replayed.detached.len(), replayed.records.len()), (0, 0, 1), "{replayed:?}");
    replayed.records.remove(0)
}

#[test]
fn vllm_stream_counts_tokens_per_message() {
    let wire = begun(called(GENERATE_STREAM, &asked()));
    let wire = reply(wire, &vllm_prompt(300));
    let wire = reply(reply(wire, &vllm_chunk(0, "Hel", 1)), &vllm_chunk(0, "lo wor", 4));
    let record = record(trailers(reply(wire, &vllm_end(0, 5)), "0"));
    assert_eq!((record.outcome, record.response.status), (Outcome::Ok, Some(200)));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source.is_exact())), Some((5, true)));
    assert_eq!(record.tokens.input.map(|n| n.tokens), Some(300));
    assert_eq!((record.tokens.first, record.request.max_tokens, record.tokens.chunks), (Some(1), Some(64), 2));
    assert_eq!((record.labels.request_model.as_deref(), record.labels.engine), (Some("tiny"), Some("vllm")));
    assert!(record.times.first_token < record.times.last_token && record.rate.exact.is_some());
    assert_eq!(record.response.finish_reasons.len(), 1);
}

#[test]
fn sequences_of_one_request_are_distinguished() {
    let request = vllm::GenerateRequest { sampling: Some(vllm::Sampling { num_sequences: 2 }), ..asked() };
    let wire = begun(called(GENERATE_STREAM, &request));
    let wire = reply(reply(wire, &vllm_chunk(0, "a", 2)), &vllm_chunk(1, "b", 3));
    let wire = reply(wire, &vllm_end(0, 2));
    let cut = wire.client(&reset(1, 8));
    assert_eq!(record(cut).outcome, Outcome::ClientAbortMidStream, "one of two sequences is missing");
    let wire = begun(called(GENERATE_STREAM, &request));
    let wire = reply(reply(wire, &vllm_chunk(0, "a", 2)), &vllm_chunk(1, "b", 3));
    let record = record(trailers(reply(reply(wire, &vllm_end(0, 2)), &vllm_end(1, 3)), "0"));
    assert_eq!((record.outcome, record.request.choices), (Outcome::Ok, 2));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source.is_exact())), Some((5, true)));
}

#[test]
fn response_of_one_message_has_counts_and_no_first_token() {
    let whole = vllm::GenerateResponse {
        prompt_info: vllm_prompt(3).prompt_info,
        outputs: vllm_end(0, 7).outputs.map(|outputs| vllm::SequenceOutput {
            text: "seven tokens".to_owned(),
            num_tokens: 7,
            ..outputs
        }),
    };
    let record = record(trailers(reply(begun(called("/vllm.Inference/Generate", &asked())), &whole), "0"));
    assert_eq!((record.outcome, record.times.first_token, record.labels.streaming), (Outcome::Ok, None, Some(false)));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((7, CountSource::Usage)));
    assert_eq!(record.tokens.input.map(|n| n.tokens), Some(3));
}

fn sglang_chunk(ids: &[u32], so_far: u32) -> sglang::GenerateResponse {
    let chunk = sglang::Chunk {
        token_ids: ids.to_vec(),
        prompt_tokens: 9,
        completion_tokens: so_far,
        cached_tokens: 4,
        index: 0,
    };
    sglang::GenerateResponse { request_id: "r-1".to_owned(), chunk: Some(chunk), complete: None }
}

#[test]
fn sglang_stream_counts_token_ids_and_ends_with_usage() {
    let wire = begun(called(SGLANG, &asked()));
    let wire = reply(reply(wire, &sglang_chunk(&[70_000], 1)), &sglang_chunk(&[1, 2_000_000, 3], 4));
    let complete = sglang::Complete {
        output_ids: vec![70_000, 1, 2_000_000, 3],
        finish_reason: "length".to_owned(),
        prompt_tokens: 9,
        completion_tokens: 4,
        cached_tokens: 4,
        index: 0,
    };
    let last = sglang::GenerateResponse { request_id: "r-1".to_owned(), chunk: None, complete: Some(complete) };
    let record = record(trailers(reply(wire, &last), "0"));
    assert_eq!((record.outcome, record.response.id.as_deref()), (Outcome::Ok, Some("r-1")));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((4, CountSource::Usage)));
    assert_eq!((record.tokens.input.map(|n| n.tokens), record.tokens.cached), (Some(9), Some(4)));
    assert_eq!((record.times.first_visible, record.tokens.chunks), (None, 2), "ids are tokens, not text");
    assert_eq!(record.labels.engine, Some("sglang"));
}

#[test]
fn triton_stream_is_one_request_with_a_lower_bound_of_tokens() {
    let request =
        triton::ModelInferRequest { model_name: "ensemble".to_owned(), id: "1".to_owned(), ..Default::default() };
    let stream = || begun(called(STREAM_INFER, &request));
    let texts = |wire| {
        ["Hel", "lo"].into_iter().fold(wire, |wire, text| reply(wire, &triton_stream(triton_text("1", text, false))))
    };
    let last = triton_stream(triton_text("1", "", true));
    let ended = record(trailers(reply(texts(stream()), &last), "0"));
    assert_eq!((ended.outcome, ended.tokens.chunks), (Outcome::Ok, 2));
    assert_eq!(ended.tokens.output.map(|n| (n.tokens, n.source)), Some((2, CountSource::Deltas)));
    assert_eq!(ended.labels.request_model.as_deref(), Some("ensemble"));
    // A reset after the response marked as last is no abort, because the client has received everything.
    assert_eq!(record(reply(texts(stream()), &last).client(&reset(1, 8))).outcome, Outcome::Ok);
    assert_eq!(record(texts(stream()).client(&reset(1, 8))).outcome, Outcome::ClientAbortMidStream);
    let error = triton::ModelStreamInferResponse { error_message: "no".to_owned(), infer_response: None };
    assert_eq!(record(trailers(reply(texts(stream()), &error), "0")).outcome, Outcome::ErrorInStream);
}

#[test]
fn tensors_without_text_are_not_counted() {
    let tensor = triton::Tensor { name: "scores".to_owned(), datatype: "FP32".to_owned(), ..Default::default() };
    let response = triton::ModelInferResponse {
        outputs: vec![tensor],
        raw_output_contents: vec![vec![1, 2, 3, 4]],
        ..Default::default()
    };
    let wire = begun(called("/inference.GRPCInferenceService/ModelInfer", &triton::ModelInferRequest::default()));
    let record = record(trailers(reply(wire, &response), "0"));
    assert_eq!((record.outcome, record.tokens.output), (Outcome::Ok, None));
}

#[test]
fn compressed_messages_are_counted_like_uncompressed_ones() {
    let compressed = |message: &vllm::GenerateResponse| {
        let coded = encode("gzip", &[&message.encode_to_vec()]);
        data(1, 0, &[&[1][..], &(coded.len() as u32).to_be_bytes(), &coded].concat())
    };
    let request = compressed_request();
    let fields = |encoding: &'static str| {
        [(":status", "200"), ("content-type", "application/grpc"), ("grpc-encoding", encoding)]
    };
    let wire = request.server(&headers(1, 0, &fields("gzip"))).server(&compressed(&vllm_prompt(300)));
    let wire = reply(wire.server(&compressed(&vllm_chunk(0, "Hel", 1))), &vllm_chunk(0, "lo", 4));
    let counted = record(trailers(wire.server(&compressed(&vllm_end(0, 5))), "0"));
    assert_eq!((counted.outcome, counted.tokens.chunks, counted.unread), (Outcome::Ok, 2, false));
    assert_eq!(counted.tokens.output.map(|n| (n.tokens, n.source.is_exact())), Some((5, true)));
    assert_eq!(counted.tokens.input.map(|n| n.tokens), Some(300));
    assert_eq!((counted.request.max_tokens, counted.labels.request_model.as_deref()), (Some(64), Some("tiny")));
    // A response with unreadable messages is `Ok`, but has no token count and no time of the first token.
    for (encoding, why) in [("snappy", Unread::UnknownCoding), ("identity", Unread::UnknownCoding)] {
        let wire = compressed_request().server(&headers(1, 0, &fields(encoding)));
        let wire = trailers(wire.server(&compressed(&vllm_chunk(0, "a", 1))), "0");
        let mut replayed = wire.close(CLIENT_CLOSES);
        assert_eq!(replayed.unread, [(Message::Response, why)]);
        let record = replayed.records.remove(0);
        assert_eq!((record.outcome, record.tokens.output, record.times.first_token), (Outcome::Ok, None, None));
        assert!(record.unread);
    }
}

/// A connection with the usual request, compressed.
fn compressed_request() -> Wire {
    let coded = encode("gzip", &[&asked().encode_to_vec()]);
    let message = [&[1][..], &(coded.len() as u32).to_be_bytes(), &coded].concat();
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", GENERATE_STREAM),
        (":authority", "x"),
        ("grpc-encoding", "gzip"),
        ("content-type", "application/grpc"),
    ];
    let wire = Wire::open().client(&opening()).server(&settings()).client(&headers(1, 0, &fields));
    wire.client(&data(1, END_STREAM, &message))
}

#[test]
fn status_before_the_first_token_maps_to_an_http_status() {
    for (status, name, outcome) in [
        ("3", "INVALID_ARGUMENT", Outcome::Http4xx),
        ("5", "NOT_FOUND", Outcome::Http4xx),
        ("16", "UNAUTHENTICATED", Outcome::Http4xx),
        ("8", "RESOURCE_EXHAUSTED", Outcome::RejectedBusy),
        ("14", "UNAVAILABLE", Outcome::RejectedBusy),
        ("13", "INTERNAL", Outcome::Http5xx),
        ("12", "UNIMPLEMENTED", Outcome::Http5xx),
        ("99", "UNKNOWN", Outcome::Http5xx),
        ("1", "CANCELLED", Outcome::ClientAbortBeforeFirstToken),
    ] {
        let alone = record(trailers_only(called(GENERATE_STREAM, &asked()), status));
        let after_head = record(trailers(begun(called(GENERATE_STREAM, &asked())), status));
        for record in [alone, after_head] {
            assert_eq!((record.outcome, record.response.error_type.as_deref()), (outcome, Some(name)));
            assert_eq!((record.response.status, record.tokens.output), (Some(200), None));
        }
    }
}

#[test]
fn status_after_the_first_token_is_an_error_in_the_stream() {
    let started = || reply(begun(called(GENERATE_STREAM, &asked())), &vllm_chunk(0, "a", 3));
    for status in ["8", "13", "14"] {
        let record = record(trailers(started(), status));
        assert_eq!(record.outcome, Outcome::ErrorInStream, "{status}");
        assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source.is_exact())), Some((3, false)));
    }
    let cancelled = record(trailers(started(), "1"));
    assert_eq!(cancelled.outcome, Outcome::ClientAbortMidStream);
    assert_eq!(record(started().client(&reset(1, 8))).outcome, Outcome::ClientAbortMidStream);
    assert_eq!(record(started().server(&reset(1, 2))).outcome, Outcome::UpstreamReset);
    assert_eq!(record(started().server(&data(1, END_STREAM, b""))).outcome, Outcome::Truncated, "no status at all");
}

#[test]
fn calls_of_other_services_are_recorded_as_other() {
    let health = called("/grpc.health.v1.Health/Check", &vllm::GenerateRequest::default());
    let record = record(trailers(begun(health), "0"));
    assert_eq!((record.outcome, record.labels.route.operation()), (Outcome::Ok, "other"));
}
