//! Prompt classes as attributes of the times to the first token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokometer_observe::measure::{Count, CountSource, Labels, Record, Sink};
use tokometer_telemetry::export::{PromptClasses, Settings};

use super::records::ms;
use super::text::{Form, Samples};
use super::{records, text};

/// Both prompt classes.
pub(crate) fn both() -> PromptClasses {
    PromptClasses { input_length: true, cache_hit: true }
}

/// A streamed response to a prompt for which the engine reported these counts.
pub(crate) fn prompt(model: &str, input: Option<u64>, cached: Option<u64>) -> Record {
    let input_tokens = input.map(|tokens| Count { tokens, source: CountSource::Usage });
    records::good(model).with(|r| {
        r.tokens.input = input_tokens;
        r.tokens.cached = cached;
    })
}

fn page(prompt_classes: PromptClasses, max_label_sets: usize, records: &[Record]) -> Samples {
    let settings = Settings { prompt_classes, max_label_sets, ..records::settings() };
    let exporters = records::start(&settings).unwrap();
    records.iter().for_each(|record| exporters.record(&Arc::new(record.clone())));
    let page = |accept| String::from_utf8(exporters.scrape(accept).body).unwrap();
    let open = text::parse(&page(Some("application/openmetrics-text")), Form::OpenMetrics).samples;
    assert_eq!(open, text::parse(&page(None), Form::Plain).samples, "both formats have the same samples");
    open
}

/// Number of first tokens by (`input_length_class`, `cache_hit_class`); `-` means a missing label.
fn first_tokens(samples: &Samples) -> BTreeMap<(String, String), f64> {
    let mut found = BTreeMap::new();
    for ((name, labels), value) in samples {
        if name == "tokometer_time_to_first_token_seconds_count" {
            let class = |key| labels.get(key).map_or("-", String::as_str).to_owned();
            *found.entry((class("input_length_class"), class("cache_hit_class"))).or_insert(0.0) += value;
        }
    }
    found
}

fn classes(prompt_classes: PromptClasses, record: Record) -> (String, String) {
    let found = first_tokens(&page(prompt_classes, 512, &[record]));
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_keys().next().unwrap()
}

#[test]
fn input_class_is_the_first_bound_not_below_the_prompt() {
    let table = [
        (Some(0), "up_to_1024"),
        (Some(1024), "up_to_1024"),
        (Some(1025), "up_to_8192"),
        (Some(8192), "up_to_8192"),
        (Some(32768), "up_to_32768"),
        (Some(131_072), "up_to_131072"),
        (Some(131_073), "over_131072"),
        (Some(u64::MAX), "over_131072"),
        (None, "unknown"),
    ];
    for (input, class) in table {
        assert_eq!(classes(both(), prompt("m", input, None)), (class.to_owned(), "unknown".to_owned()), "{input:?}");
    }
    let bound = Some(Count { tokens: 9000, source: CountSource::Deltas });
    let record = records::good("m").with(|r| r.tokens.input = bound);
    assert_eq!(classes(both(), record).0, "unknown", "a lower bound could select a class that is too low");
}

#[test]
fn cache_hit_class_changes_at_half_of_the_prompt() {
    let table = [
        (Some(1000), Some(0), "none"),
        (None, Some(0), "none"),
        (Some(1000), Some(1), "partial"),
        (Some(1000), Some(500), "partial"),
        (Some(1000), Some(501), "most"),
        (Some(1000), Some(1000), "most"),
        (Some(u64::MAX), Some(u64::MAX), "most"),
        (Some(1000), None, "unknown"),
        (None, Some(5), "unknown"),
        (Some(1000), Some(1001), "unknown"),
    ];
    for (input, cached, class) in table {
        assert_eq!(classes(both(), prompt("m", input, cached)).1, class, "{cached:?} of {input:?}");
    }
}

#[test]
fn classes_exist_only_if_enabled() {
    let (dash, record) = ("-".to_owned(), || prompt("m", Some(2000), Some(0)));
    assert_eq!(classes(PromptClasses::default(), record()), (dash.clone(), dash.clone()));
    let length = PromptClasses { cache_hit: false, ..both() };
    assert_eq!(classes(length, record()), ("up_to_8192".to_owned(), dash.clone()));
    let cache_hit = PromptClasses { input_length: false, ..both() };
    assert_eq!(classes(cache_hit, record()), (dash, "none".to_owned()));
}

#[test]
fn only_first_token_times_have_classes() {
    let all = [prompt("m", Some(2000), Some(10)), records::cut("m"), records::busy("m"), records::gave_up("m")];
    let samples = page(both(), 512, &all);
    let family = |name: &str| {
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        stem.unwrap_or(name).to_owned()
    };
    let of = |has: bool| -> BTreeSet<String> {
        let with = |labels: &BTreeMap<String, String>| {
            let both = (labels.contains_key("input_length_class"), labels.contains_key("cache_hit_class"));
            assert!(both.0 == both.1, "{labels:?}");
            both.0
        };
        samples.keys().filter(|(_, labels)| with(labels) == has).map(|(name, _)| family(name)).collect()
    };
    let expected = [
        "gen_ai_server_time_to_first_token_seconds",
        "tokometer_prefill_tokens_per_second",
        "tokometer_time_to_first_token_seconds",
        "tokometer_time_to_first_visible_seconds",
    ];
    assert!(of(true).iter().eq(expected), "{:?}", of(true));
    assert!(of(true).is_disjoint(&of(false)), "all series of a family have the same labels");
}

/// With ten times as many long prompts the overall mean rises, but the mean of each class is unchanged.
#[test]
fn prompt_mix_does_not_change_class_means() {
    let waits =
        |model, input, first| prompt(model, Some(input), Some(0)).with(|r| r.times.first_token = Some(ms(first)));
    let (short, long) = (waits("m", 500, 110), waits("m", 20_000, 1010));
    let mean = |shorts, longs, class: Option<&str>| {
        let records = [vec![short.clone(); shorts], vec![long.clone(); longs]].concat();
        let samples = page(both(), 512, &records);
        let of = |end: &str| -> f64 {
            let name = format!("tokometer_time_to_first_token_seconds_{end}");
            let class_fits =
                |labels: &BTreeMap<String, String>| class.is_none_or(|c| labels["input_length_class"] == c);
            samples.iter().filter(|((n, labels), _)| *n == name && class_fits(labels)).map(|(_, value)| value).sum()
        };
        (of("sum") / of("count") * 1e6).round() / 1e6
    };
    assert_eq!((mean(10, 1, None), mean(10, 10, None)), (0.181818, 0.55));
    for (class, wait) in [("up_to_1024", 0.1), ("up_to_32768", 1.0)] {
        assert_eq!((mean(10, 1, Some(class)), mean(10, 10, Some(class))), (wait, wait), "{class}");
    }
}

#[test]
fn classes_over_the_cap_fold_without_folding_models() {
    let (short, long, huge) = (Some(10), Some(5000), Some(50_000));
    let all = [
        prompt("a", short, Some(0)),
        prompt("b", short, Some(0)),
        prompt("a", long, Some(0)),
        // The limit of three label sets is reached: further classes are folded into `other`.
        prompt("b", long, Some(0)),
        prompt("a", huge, None),
        prompt("c", short, Some(0)),
        // These classes already have a label set.
        prompt("a", long, Some(0)),
        prompt("b", short, Some(0)),
    ];
    let samples = page(both(), 3, &all);
    let class = |length: &str, hit: &str| (length.to_owned(), hit.to_owned());
    let expected =
        [(class("other", "other"), 3.0), (class("up_to_1024", "none"), 3.0), (class("up_to_8192", "none"), 2.0)];
    assert_eq!(first_tokens(&samples), BTreeMap::from(expected));
    let sum = |name: &str, key: &str, value: &str| -> f64 {
        let fits =
            |(n, labels): &(String, BTreeMap<String, String>)| n == name && labels.get(key).is_some_and(|v| v == value);
        samples.iter().filter(|(key, _)| fits(key)).map(|(_, value)| value).sum()
    };
    assert_eq!(sum("tokometer_labels_folded_total", "kind", "prompt_class"), 3.0);
    assert_eq!(sum("tokometer_labels_folded_total", "kind", "label_set"), 0.0);
    for (model, ended) in [("a", 4.0), ("b", 3.0), ("c", 1.0)] {
        assert_eq!(sum("tokometer_requests_total", "gen_ai_request_model", model), ended);
    }
}

#[test]
fn requests_without_first_token_take_no_place() {
    let whole = Labels { streaming: Some(false), ..records::labels("m") };
    let whole = Record { labels: Arc::new(whole), ..prompt("m", Some(5000), Some(0)) };
    let samples = page(both(), 2, &[whole, records::gave_up("m"), prompt("m", Some(10), Some(0))]);
    let expected = [(("up_to_1024".to_owned(), "none".to_owned()), 1.0)];
    assert_eq!(first_tokens(&samples), BTreeMap::from(expected));
}

#[test]
fn concurrent_threads_share_one_place_per_class() {
    let settings = Settings { prompt_classes: both(), max_label_sets: 5, ..records::settings() };
    let exporters = records::start(&settings).unwrap();
    let inputs = [Some(1), Some(2000), Some(10_000), Some(50_000), None];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for input in inputs {
                    exporters.record(&Arc::new(prompt("m", input, Some(0))));
                }
            });
        }
    });
    // In a race, two threads may reserve two places for the same class, so that another class is folded. Records after
    // the race are not folded.
    for input in inputs {
        exporters.record(&Arc::new(prompt("m", input, Some(0))));
    }
    let body = String::from_utf8(exporters.scrape(None).body).unwrap();
    let found = first_tokens(&text::parse(&body, Form::Plain).samples);
    let own: Vec<_> = found.iter().filter(|((length, _), _)| length != "other").collect();
    assert_eq!(own.len(), 5, "{found:?}");
    assert_eq!(found.values().sum::<f64>(), 25.0);
}
