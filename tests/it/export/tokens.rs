//! Kinds of tokens: each kind has its own series, which exists only if the engine reported the kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokometer_observe::measure::{Record, Sink};
use tokometer_telemetry::export::{Semconv, Settings};

use super::text::{Form, Samples};
use super::{records, text};

fn page(record: &Record) -> Samples {
    let settings = Settings { semconv: Semconv::Both, ..records::settings() };
    let exporters = records::start(&settings).unwrap();
    exporters.record(&Arc::new(record.clone()));
    let page = exporters.scrape(Some("application/openmetrics-text")).body;
    text::parse(&String::from_utf8(page).unwrap(), Form::OpenMetrics).samples
}

/// The values of a metric by modality.
fn modalities(samples: &Samples, name: &str) -> BTreeMap<String, f64> {
    let of = samples.iter().filter(|((n, _), _)| n == name);
    of.map(|((_, labels), value)| (labels["gen_ai_token_modality"].clone(), *value)).collect()
}

fn of<const N: usize>(expected: [(&str, f64); N]) -> BTreeMap<String, f64> {
    expected.into_iter().map(|(modality, value)| (modality.to_owned(), value)).collect()
}

/// A record with 1,000 prompt tokens and 101 output tokens of several kinds.
fn mixed() -> Record {
    records::good("m").with(|r| {
        r.tokens.parts.cache_creation = Some(300);
        r.tokens.parts.input_audio = Some(150);
        r.tokens.parts.input_image = Some(50);
        r.tokens.parts.input_video = Some(40);
        r.tokens.parts.output_audio = Some(31);
    })
}

const INPUT: &str = "gen_ai_client_inference_usage_input_tokens_total";
const OUTPUT: &str = "gen_ai_client_inference_usage_output_tokens_total";
const CACHE_READ: &str = "gen_ai_client_inference_usage_cache_read_input_tokens_total";
const CACHE_WRITE: &str = "gen_ai_client_inference_usage_cache_write_input_tokens_total";

#[test]
fn each_reported_token_kind_is_counted() {
    let samples = page(&mixed());
    let own = [
        ("tokometer_cached_tokens_total", 600.0),
        ("tokometer_cache_creation_tokens_total", 300.0),
        ("tokometer_input_audio_tokens_total", 150.0),
        ("tokometer_input_image_tokens_total", 50.0),
        ("tokometer_input_video_tokens_total", 40.0),
        ("tokometer_reasoning_tokens_total", 20.0),
        ("tokometer_output_audio_tokens_total", 31.0),
    ];
    for (name, tokens) in own {
        let found: Vec<f64> = samples.iter().filter(|((n, _), _)| n == name).map(|(_, value)| *value).collect();
        assert_eq!(found, [tokens], "{name}");
    }
}

#[test]
fn unreported_kinds_have_no_series_and_zeros_do() {
    let kinds = ["cached", "cache_creation", "input_audio", "input_image", "input_video", "reasoning", "output_audio"];
    let found = |record: &Record| -> Vec<Option<f64>> {
        let samples = page(record);
        let of = |kind| samples.iter().find(|((name, _), _)| *name == format!("tokometer_{kind}_tokens_total"));
        kinds.into_iter().map(|kind| of(kind).map(|(_, value)| *value)).collect()
    };
    let with = |reported: Option<u64>| {
        records::good("m").with(|r| {
            r.tokens.cached = reported;
            r.tokens.parts.cache_creation = reported;
            r.tokens.parts.input_audio = reported;
            r.tokens.parts.input_image = reported;
            r.tokens.parts.input_video = reported;
            r.tokens.reasoning = reported;
            r.tokens.parts.output_audio = reported;
        })
    };
    assert_eq!(found(&with(None)), [None; 7]);
    assert_eq!(found(&with(Some(0))), [Some(0.0); 7]);
    assert!(modalities(&page(&with(None)), CACHE_WRITE).is_empty());
}

#[test]
fn modalities_add_up_to_the_total() {
    let samples = page(&mixed());
    assert_eq!(
        modalities(&samples, INPUT),
        of([("audio", 150.0), ("image", 50.0), ("text", 760.0), ("unknown", 40.0)])
    );
    assert_eq!(modalities(&samples, OUTPUT), of([("audio", 31.0), ("text", 70.0)]));
    // Cached tokens of mixed inputs have no known modality, because no engine reports it.
    assert_eq!(modalities(&samples, CACHE_READ), of([("unknown", 600.0)]));
    assert_eq!(modalities(&samples, CACHE_WRITE), of([("unknown", 300.0)]));
    let text = page(&mixed().with(|r| {
        r.tokens.parts.input_audio = Some(0);
        r.tokens.parts.input_image = None;
        r.tokens.parts.input_video = None;
    }));
    assert_eq!(modalities(&text, INPUT), of([("text", 1000.0)]));
    assert_eq!(modalities(&text, CACHE_READ), of([("text", 600.0)]));
}

#[test]
fn parts_exceeding_the_total_are_unknown() {
    let samples = page(&mixed().with(|r| {
        r.tokens.parts.input_audio = Some(980);
        r.tokens.parts.output_audio = Some(u64::MAX);
    }));
    assert_eq!(modalities(&samples, INPUT), of([("unknown", 1000.0)]));
    assert_eq!(modalities(&samples, OUTPUT), of([("unknown", 101.0)]));
    let samples = page(&mixed().with(|r| r.tokens.input = None));
    assert_eq!(modalities(&samples, INPUT), of([("unknown", 0.0)]));
}
