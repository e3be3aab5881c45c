//! Messages of gRPC services for text generation, encoded by `prost`, which shares no code with tokometer's decoder.

use std::collections::HashMap;

use prost::Message;

/// Messages of vLLM's `rust/proto/inference.proto`.
pub(crate) mod vllm {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Sampling {
        #[prost(uint32, tag = "1")]
        pub(crate) num_sequences: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Stopping {
        #[prost(uint32, tag = "1")]
        pub(crate) max_new_tokens: u32,
        #[prost(string, repeated, tag = "4")]
        pub(crate) stop_strings: Vec<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct GenerateRequest {
        #[prost(string, tag = "1")]
        pub(crate) request_id: String,
        #[prost(string, tag = "2")]
        pub(crate) model: String,
        #[prost(string, tag = "3")]
        pub(crate) text: String,
        #[prost(float, optional, tag = "5")]
        pub(crate) temperature: Option<f32>,
        #[prost(message, optional, tag = "6")]
        pub(crate) sampling: Option<Sampling>,
        #[prost(message, optional, tag = "8")]
        pub(crate) stopping: Option<Stopping>,
        #[prost(int32, tag = "12")]
        pub(crate) priority: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct PromptInfo {
        #[prost(uint32, tag = "1")]
        pub(crate) num_prompt_tokens: u32,
        #[prost(uint32, repeated, tag = "2")]
        pub(crate) token_ids: Vec<u32>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct FinishInfo {
        #[prost(uint32, tag = "1")]
        pub(crate) num_output_tokens: u32,
        #[prost(int32, tag = "2")]
        pub(crate) finish_reason: i32,
        #[prost(string, tag = "5")]
        pub(crate) stop_string: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct SequenceOutput {
        #[prost(uint32, tag = "1")]
        pub(crate) index: u32,
        #[prost(string, tag = "2")]
        pub(crate) text: String,
        #[prost(uint32, tag = "3")]
        pub(crate) num_tokens: u32,
        #[prost(uint32, repeated, tag = "4")]
        pub(crate) token_ids: Vec<u32>,
        #[prost(float, repeated, tag = "5")]
        pub(crate) logprobs: Vec<f32>,
        #[prost(message, optional, tag = "8")]
        pub(crate) finish_info: Option<FinishInfo>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct GenerateResponse {
        #[prost(message, optional, tag = "1")]
        pub(crate) prompt_info: Option<PromptInfo>,
        #[prost(message, optional, tag = "2")]
        pub(crate) outputs: Option<SequenceOutput>,
    }
}

/// Messages of SMG's `sglang_scheduler.proto`.
pub(crate) mod sglang {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Chunk {
        #[prost(uint32, repeated, tag = "1")]
        pub(crate) token_ids: Vec<u32>,
        #[prost(uint32, tag = "2")]
        pub(crate) prompt_tokens: u32,
        #[prost(uint32, tag = "3")]
        pub(crate) completion_tokens: u32,
        #[prost(uint32, tag = "4")]
        pub(crate) cached_tokens: u32,
        #[prost(uint32, tag = "8")]
        pub(crate) index: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Complete {
        #[prost(uint32, repeated, tag = "1")]
        pub(crate) output_ids: Vec<u32>,
        #[prost(string, tag = "2")]
        pub(crate) finish_reason: String,
        #[prost(uint32, tag = "3")]
        pub(crate) prompt_tokens: u32,
        #[prost(uint32, tag = "4")]
        pub(crate) completion_tokens: u32,
        #[prost(uint32, tag = "5")]
        pub(crate) cached_tokens: u32,
        #[prost(uint32, tag = "11")]
        pub(crate) index: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct GenerateResponse {
        #[prost(string, tag = "1")]
        pub(crate) request_id: String,
        #[prost(message, optional, tag = "2")]
        pub(crate) chunk: Option<Chunk>,
        #[prost(message, optional, tag = "3")]
        pub(crate) complete: Option<Complete>,
    }
}

/// Messages of Triton's `grpc_service.proto`.
pub(crate) mod triton {
    use std::collections::HashMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Parameter {
        #[prost(bool, optional, tag = "1")]
        pub(crate) bool_param: Option<bool>,
        #[prost(string, optional, tag = "3")]
        pub(crate) string_param: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Contents {
        #[prost(bytes = "vec", repeated, tag = "8")]
        pub(crate) bytes_contents: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Tensor {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(string, tag = "2")]
        pub(crate) datatype: String,
        #[prost(int64, repeated, tag = "3")]
        pub(crate) shape: Vec<i64>,
        #[prost(message, optional, tag = "5")]
        pub(crate) contents: Option<Contents>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ModelInferResponse {
        #[prost(string, tag = "1")]
        pub(crate) model_name: String,
        #[prost(string, tag = "3")]
        pub(crate) id: String,
        #[prost(map = "string, message", tag = "4")]
        pub(crate) parameters: HashMap<String, Parameter>,
        #[prost(message, repeated, tag = "5")]
        pub(crate) outputs: Vec<Tensor>,
        #[prost(bytes = "vec", repeated, tag = "6")]
        pub(crate) raw_output_contents: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ModelStreamInferResponse {
        #[prost(string, tag = "1")]
        pub(crate) error_message: String,
        #[prost(message, optional, tag = "2")]
        pub(crate) infer_response: Option<ModelInferResponse>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ModelInferRequest {
        #[prost(string, tag = "1")]
        pub(crate) model_name: String,
        #[prost(string, tag = "3")]
        pub(crate) id: String,
        #[prost(bytes = "vec", repeated, tag = "7")]
        pub(crate) raw_input_contents: Vec<Vec<u8>>,
    }
}

/// A message in gRPC framing.
pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
}

/// New text of one sequence, of this many tokens.
pub(crate) fn vllm_chunk(index: u32, text: &str, num_tokens: u32) -> vllm::GenerateResponse {
    let outputs = vllm::SequenceOutput { index, text: text.to_owned(), num_tokens, ..Default::default() };
    vllm::GenerateResponse { prompt_info: None, outputs: Some(outputs) }
}

/// The end of one sequence.
pub(crate) fn vllm_end(index: u32, num_output_tokens: u32) -> vllm::GenerateResponse {
    let finish_info = vllm::FinishInfo { num_output_tokens, finish_reason: 2, stop_string: "</s>".to_owned() };
    let outputs = vllm::SequenceOutput { index, finish_info: Some(finish_info), ..Default::default() };
    vllm::GenerateResponse { prompt_info: None, outputs: Some(outputs) }
}

pub(crate) fn vllm_prompt(tokens: u32) -> vllm::GenerateResponse {
    let prompt_info = vllm::PromptInfo { num_prompt_tokens: tokens, token_ids: (0..tokens).collect() };
    vllm::GenerateResponse { prompt_info: Some(prompt_info), outputs: None }
}

/// A response of the vLLM or TensorRT-LLM backend in Triton: log probabilities and text, both in raw form.
pub(crate) fn triton_text(id: &str, text: &str, last: bool) -> triton::ModelInferResponse {
    let tensor = |name: &str, datatype: &str| triton::Tensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![1],
        contents: None,
    };
    let raw_text = [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let flag = triton::Parameter { bool_param: Some(last), string_param: None };
    triton::ModelInferResponse {
        model_name: "ensemble".to_owned(),
        id: id.to_owned(),
        parameters: HashMap::from([("triton_final_response".to_owned(), flag)]),
        outputs: vec![tensor("cum_log_probs", "FP32"), tensor("text_output", "BYTES")],
        raw_output_contents: vec![vec![0, 0, 128, 63], raw_text],
    }
}

pub(crate) fn triton_stream(response: triton::ModelInferResponse) -> triton::ModelStreamInferResponse {
    triton::ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}
