//! Limits on output tokens: which keys count, for each route and engine.

use crate::{Engine, OutputLimit, RequestDecoder, Route};

/// The request's limit with `json` as its body, in pieces of every size.
fn limit(route: Route, engine: Option<Engine>, json: &str) -> (Option<u64>, OutputLimit) {
    let decode = |size| {
        let mut decoder = RequestDecoder::new(route).of_engine(engine);
        json.as_bytes().chunks(size).for_each(|piece| decoder.feed(piece));
        (decoder.facts().max_tokens, decoder.output_limit())
    };
    let whole = decode(json.len());
    for size in 1..json.len() {
        assert_eq!(decode(size), whole, "{json} in pieces of {size}");
    }
    whole
}

fn certain(tokens: u64) -> OutputLimit {
    OutputLimit { largest: tokens, certain: true }
}

/// Every key, as a member with this value.
const MEMBERS: [(&str, &str); 9] = [
    ("max_tokens", r#""max_tokens":#"#),
    ("max_completion_tokens", r#""max_completion_tokens":#"#),
    ("max_output_tokens", r#""max_output_tokens":#"#),
    ("n_predict", r#""n_predict":#"#),
    ("num_predict", r#""options":{"num_predict":#}"#),
    ("max_new_tokens", r#""sampling_params":{"max_new_tokens":#}"#),
    ("sampling max_tokens", r#""sampling_params":{"max_tokens":#}"#),
    ("parameters", r#""parameters":{"max_new_tokens":#}"#),
    ("instances", r#""instances":[{"max_tokens":#}]"#),
];

fn member(key: &str, value: &str) -> String {
    MEMBERS.iter().find(|(name, _)| *name == key).unwrap().1.replace('#', value)
}

/// The keys that an engine reads on a route, as its documentation lists them.
fn keys(route: Route, engine: Engine) -> &'static [&'static str] {
    use Engine::{LlamaCpp, LlamaCppPython, Lmdeploy, Ollama, Sglang, Tgi, Transformers, Triton};
    const LLAMA_CPP: &[&str] = &["max_tokens", "max_completion_tokens", "n_predict"];
    match (route, engine) {
        (Route::Chat | Route::Completions | Route::LlamaCompletion | Route::Infill, LlamaCpp) => LLAMA_CPP,
        (Route::Responses, LlamaCpp) => &["max_output_tokens", "max_tokens", "max_completion_tokens", "n_predict"],
        (Route::Chat, Ollama | Triton | LlamaCppPython | Transformers) => &["max_tokens"],
        (Route::Completions, Lmdeploy) | (Route::Chat, _) => &["max_tokens", "max_completion_tokens"],
        (Route::Completions | Route::Messages | Route::CohereChat, _) => &["max_tokens"],
        (Route::Responses, Lmdeploy) => &[],
        (Route::Responses, _) => &["max_output_tokens"],
        (Route::Generate, Sglang) => &["max_new_tokens"],
        (Route::Generate, Lmdeploy) => &["max_tokens"],
        (Route::Generate, Tgi) | (Route::TgiStream | Route::TgiCompat, _) => &["parameters"],
        (Route::OllamaChat, Ollama | Sglang) | (Route::OllamaGenerate, _) => &["num_predict"],
        (Route::OllamaChat, LlamaCpp) => LLAMA_CPP,
        (Route::VllmGenerate, _) => &["sampling max_tokens"],
        (Route::TritonGenerate, _) => &["max_tokens", "parameters"],
        _ => &[],
    }
}

/// Routes with a JSON body whose keys the tests above list, and the engines that have them.
fn served() -> Vec<(Route, Engine)> {
    let pairs = Route::all().flat_map(|route| Engine::ALL.into_iter().map(move |engine| (route, engine)));
    let served: Vec<_> = pairs.filter(|(route, engine)| !keys(*route, *engine).is_empty()).collect();
    assert!(served.len() > 60, "{}", served.len());
    served
}

#[test]
fn only_keys_that_the_engine_reads_are_limits() {
    for (route, engine) in served() {
        for (key, _) in MEMBERS {
            let (applied, evidence) = limit(route, Some(engine), &format!("{{{}}}", member(key, "7")));
            let is_read = keys(route, engine).contains(&key);
            assert_eq!(evidence.certain, is_read, "{route:?} {engine:?} {key}");
            assert_eq!(applied, is_read.then_some(7), "{route:?} {engine:?} {key}");
            assert_eq!(evidence.tokens(1000), if is_read { 7 } else { 1000 });
        }
    }
}

/// However the body combines keys, the evidence is at least what the engine may apply.
#[test]
fn evidence_is_never_less_than_a_limit_that_the_engine_may_apply() {
    let mut compared = 0;
    for (route, engine) in served() {
        for own in keys(route, engine) {
            for (other, _) in MEMBERS {
                let is_read = keys(route, engine).contains(&other);
                for (small, large) in [("1", "30000"), ("30000", "1")] {
                    let json = format!("{{{},{}}}", member(other, small), member(own, large));
                    for known in [Some(engine), None] {
                        let (_, evidence) = limit(route, known, &json);
                        let expected = if is_read || large == "30000" { 30_000 } else { 1 };
                        assert!(evidence.tokens(16_384) >= expected, "{route:?} {known:?} {json}: {evidence:?}");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 2000, "{compared}");
}

#[test]
fn limits_that_decoders_read_differently_count_with_the_largest() {
    for (json, expected) in [
        (r#"{"max_tokens":1,"max_tokens":30000}"#, 30_000),
        (r#"{"max_tokens":30000,"max_tokens":1}"#, 30_000),
        (r#"{"max_tokens":1,"max_\u0074okens":30000}"#, 30_000),
        (r#"{"max_\u0074\u006fkens":30000,"max_tokens":1}"#, 30_000),
        (r#"{"max_tokens":1,"\u006D\u0061x_tokens":30000}"#, 30_000),
        (r#"{"max_tokens":1,"max_completion_tokens":30000}"#, 30_000),
    ] {
        assert_eq!(limit(Route::Chat, Some(Engine::Vllm), json).1, certain(expected), "{json}");
    }
    // Values for which engines have no limit, or a limit that is not readable here.
    for json in [
        r#"{"max_tokens":1,"max_tokens":null}"#,
        r#"{"max_tokens":null,"max_tokens":1}"#,
        r#"{"max_tokens":1,"max_tokens":"30000"}"#,
        r#"{"max_tokens":1,"max_tokens":30000.0}"#,
        r#"{"max_tokens":1,"max_tokens":3e4}"#,
        r#"{"max_tokens":1,"max_tokens":-1}"#,
        r#"{"max_tokens":1,"max_completion_tokens":-1}"#,
        // Go ignores case, and folds the Kelvin sign.
        r#"{"max_tokens":1,"Max_Tokens":30000}"#,
        "{\"max_tokens\":1,\"max_to\u{212a}ens\":30000}",
        r#"{"max_tokens":1,"max_to\u212aens":30000}"#,
        // Python accepts this, and reads the rest.
        r#"{"max_tokens":1,"a":NaN,"max_tokens":30000}"#,
        r#"{"max_tokens":1"#,
    ] {
        let (_, evidence) = limit(Route::Chat, Some(Engine::Vllm), json);
        assert!(evidence.tokens(30_000) >= 30_000, "{json}: {evidence:?}");
    }
    let (_, evidence) = limit(Route::OllamaChat, Some(Engine::Ollama), r#"{"options":{"num_predict":1},"OPTIONS":{}}"#);
    assert!(evidence.tokens(30_000) >= 30_000);
    // Without a limit, the response may be as long as usual.
    for json in [r#"{"n_predict":-1}"#, r#"{"n_predict":-1,"max_tokens":5}"#, r#"{"n_predict":null}"#, "{}"] {
        assert_eq!(limit(Route::LlamaCompletion, None, json).1.tokens(1000), 1000, "{json}");
    }
    // SDKs write null for parameters that are not set.
    let unset = r#"{"max_completion_tokens":null,"max_tokens":5,"n_predict":null}"#;
    assert_eq!(limit(Route::Chat, Some(Engine::Vllm), unset), (Some(5), certain(5)));
}

#[test]
fn body_that_another_decoder_takes_for_a_whole_response_is_no_prefill_leg() {
    let leg = |limits: &str| {
        let mut decoder = RequestDecoder::new(Route::Completions).of_engine(Some(Engine::Vllm));
        let json = format!(r#"{{"kv_transfer_params":{{"do_remote_decode":true}},{limits}}}"#);
        decoder.feed(json.as_bytes());
        decoder.facts().prefill_leg
    };
    assert!(leg(r#""max_tokens":1"#));
    for limits in [
        r#""max_completion_tokens":1,"max_tokens":500"#,
        r#""n_predict":1"#,
        r#""max_tokens":500,"max_tokens":1"#,
        r#""max_tokens":1,"max_\u0074okens":500"#,
        r#""max_tokens":1,"MAX_TOKENS":500"#,
    ] {
        assert!(!leg(limits), "{limits}");
    }
}

#[test]
fn stream_flag_that_decoders_read_differently_is_unknown() {
    for (json, stream) in [
        (r#"{"stream":true,"stream":true}"#, Some(true)),
        (r#"{"stream":null}"#, None),
        (r#"{"stream":true,"stream":false}"#, None),
        (r#"{"stream":true,"str\u0065am":false}"#, None),
        (r#"{"str\u0065am":true}"#, Some(true)),
        (r#"{"stream":true,"Stream":false}"#, None),
        (r#"{"stream":true,"stream":"false"}"#, None),
        ("{\"stream\":true,\"\u{17f}tream\":false}", None),
    ] {
        let mut decoder = RequestDecoder::new(Route::Chat);
        json.as_bytes().chunks(1).for_each(|byte| decoder.feed(byte));
        assert_eq!(decoder.facts().stream, stream, "{json}");
    }
    let mut decoder = RequestDecoder::new(Route::OllamaChat);
    decoder.feed(br#"{"STREAM":false}"#);
    assert_eq!(decoder.facts().stream, None);
}
