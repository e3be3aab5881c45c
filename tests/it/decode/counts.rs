//! Events that differ only in a text and in the numbers of `usage`, as with `continuous_usage_stats`.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokometer_decode::{Framing, Route};

use super::recording::recordings;
use super::{cut, decode, model};

/// A number, or a value that is not a valid count.
fn written() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (0u64..100_000).prop_map(|count| count.to_string()),
        1 => any::<u64>().prop_map(|count| count.to_string()),
        4 => select(vec![
            "0", "007", "-1", "-", "1.5", "1.", "1e3", "1E+2", "123456789012", "1234567890123", "99999999999999999999",
            "0000000000000000000000000000000000000001", "null", "\"7\"", "[7]", "{}", "", " 7", "7 ", "7x", "7\n", "7\r\n",
            "7\n\n", "7,\"x\":8", "7}", "7,", "true", "\u{661}",
        ]).prop_map(str::to_owned),
    ]
}

/// The JSON around the three numbers.
fn shape() -> impl Strategy<Value = [&'static str; 4]> {
    select(vec![
        [
            r#""},"token_ids":null}],"usage":{"prompt_tokens":"#,
            r#","total_tokens":"#,
            r#","completion_tokens":"#,
            r#","completion_tokens_details":null}}"#,
        ],
        [
            r#""}}],"usage":{"prompt_tokens":"#,
            r#","total_tokens":"#,
            r#","completion_tokens":"#,
            r#","completion_tokens_details":{"reasoning_tokens":3}}}"#,
        ],
        [r#""}}],"usage":{"prompt_tokens":"#, r#","total_tokens":"#, r#","completion_tokens":"#, "}}"],
        [
            r#""}}],"usage":{"prompt_tokens":"#,
            r#","total_tokens":"#,
            r#","completion_tokens":"#,
            r#"},"usage":{"prompt_tokens":4}}"#,
        ],
        [r#""}}],"usage":{"completion_tokens":"#, r#","total_tokens":"#, r#","prompt_tokens":"#, "}}"],
        [r#""}}],"usage": {"prompt_tokens": "#, r#", "total_tokens": "#, r#", "completion_tokens": "#, "}}"],
        [r#""}}],"other":{"prompt_tokens":"#, r#","total_tokens":"#, r#","completion_tokens":"#, "}}"],
        [r#""},"usage":{"prompt_tokens":"#, r#","total_tokens":"#, r#","completion_tokens":"#, "}}]}"],
        [r#""}}],"timings":{"cache_n":"#, r#","prompt_ms":"#, r#","predicted_n":"#, "}}"],
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_differing_in_counts_decode_as_byte_by_byte(
        shape in shape(),
        events in vec((select(vec!["a", "", "\\\"", "é"]), written(), written(), written(), 0u32..20), 1..12),
        end in select(vec!["\n\n", "\n\n", "\n\n", "\r\n\r\n", "\r\r"]),
        places in vec(any::<usize>(), 0..4),
    ) {
        let mut body = String::new();
        for (text, prompt, total, completion, missing) in &events {
            let [before, second, third, after] = shape;
            // One in 20 events has no numbers.
            let usage = if *missing == 0 { r#""}}]}"#.to_owned() } else { format!("{before}{prompt}{second}{total}{third}{completion}{after}") };
            body.push_str(&format!(r#"data: {{"id":"c","choices":[{{"index":0,"delta":{{"content":"{text}{usage}{end}"#));
        }
        let (whole, a) = decode(Route::Chat, Framing::Sse, [body.as_bytes()]);
        let (bytes, b) = decode(Route::Chat, Framing::Sse, body.as_bytes().chunks(1));
        prop_assert_eq!(&whole, &bytes);
        prop_assert_eq!((a.engine(), a.response_id(), a.error_type()), (b.engine(), b.response_id(), b.error_type()));
        let (pieces, _) = decode(Route::Chat, Framing::Sse, cut(body.as_bytes(), &places));
        prop_assert_eq!(&pieces, &bytes);
    }
}

/// Decodes line by line those recordings in which many events have counts or in which choices alternate.
#[test]
fn recorded_usage_counts_belong_to_their_event() {
    let mut counted = 0;
    for engine in ["vllm-0.32.0", "vllm-0.32.0-rustfe", "sglang-0.5.23", "llamacpp-0.5.0-dev"] {
        for recording in recordings(engine) {
            let case = recording.name.trim_start_matches(engine);
            if !case.contains("continuous") && !case.contains("-n2") {
                continue;
            }
            let expected = model::events(recording.route, recording.framing, &recording.body);
            let (bytes, _) = decode(recording.route, recording.framing, recording.body.chunks(1));
            let events = recording.body.split_inclusive(|byte| *byte == b'\n');
            let (lines, _) = decode(recording.route, recording.framing, events);
            model::assert_same(&recording.name, &lines, &expected);
            assert_eq!(lines, bytes, "{}", recording.name);
            counted += lines.iter().filter(|event| event.usage.is_some() && event.choices > 0).count();
        }
    }
    assert!(counted > 300, "{counted}");
}
